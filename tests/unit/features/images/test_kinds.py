"""The item of a call for an image: how clients send it back, its events, and how a cut-off call ends."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.schema.items import parse_input
from llama_stack_responses.core.stream import events
from llama_stack_responses.core.stream.calls import ServerCall
from llama_stack_responses.core.stream.recovery import close_cut
from llama_stack_responses.core.stream.usage import Usage
from llama_stack_responses.features.images.kinds import FORM
from tests.unit.core.test_recovery import fresh

Json = dict[str, Any]

USER: Final[Json] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL: Final[Json] = {"type": "image_generation_call", "id": "ig_1", "status": "in_progress", "result": None}


@pytest.mark.parametrize("more", [{}, {"result": None}, {"result": "", "status": "completed"}])
def test_image_call_without_its_image_names_a_stored_call(more: Json) -> None:
    assert parse_input([USER, {"type": "image_generation_call", "id": "ig_1", **more}]) == [
        USER,
        {"type": "item_reference", "id": "ig_1"},
    ]


def test_failed_image_call_stays_what_it_is() -> None:
    failed = {"type": "image_generation_call", "id": "ig_1", "status": "failed"}
    assert parse_input([{**failed, "result": None}]) == [failed]


def test_image_call_without_image_and_id_is_refused() -> None:
    with pytest.raises(ApiError) as raised:
        parse_input([{"type": "image_generation_call", "status": "completed"}])
    assert (raised.value.param, raised.value.code) == ("input[0].id", "missing_required_parameter")


def test_partial_images_of_repeated_call_are_shown_once() -> None:
    image = {"result": "AA=="}
    assert FORM.partial
    emitted = [FORM.partial.event(7, "ig_1", 0, 0, image)]
    for happened, shown in ((emitted, []), ([], emitted)):
        assembler = fresh([dict(CALL)])
        assembler.resume(7, Usage(), (), [ServerCall("generate_image", "call_1", "{}", 0)], happened)
        assert assembler.calls.show_partial(0, 0, image) == shown


def test_call_for_an_image_that_is_cut_off_is_failed() -> None:
    [done] = close_cut("resp_1", [], [events.output_item_added(0, "resp_1", 0, CALL)], 1)
    assert done["item"] == {**CALL, "status": "failed"}
