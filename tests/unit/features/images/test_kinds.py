"""The declaration of the tool, and the item of its calls: as clients send them, its events, and its end if cut off."""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import pytest
from openai.types.responses.tool_param import ImageGeneration

from llama_stack_responses.chat.function_calls import as_functions
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.images.kinds import FORM
from llama_stack_responses.items.listed_items import with_ids
from llama_stack_responses.requests.input_items import parse_input
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.stream import events
from llama_stack_responses.stream.call_kinds import ServerCall
from llama_stack_responses.stream.recovery import close_cut
from llama_stack_responses.stream.usage import Usage
from tests.support.one_pixel import ONE_PIXEL
from tests.unit.stream.test_recovery import fresh

Json = dict[str, Any]

USER: Final[Json] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
CALL: Final[Json] = {"type": "image_generation_call", "id": "ig_1", "status": "in_progress", "result": None}
IMAGES: Final[Json] = {
    "type": "image_generation",
    "action": "auto",
    "background": "transparent",
    "complexity": "low",
    "input_fidelity": "high",
    "input_image_mask": {
        "file_id": "file-1",
        "image_url": ONE_PIXEL,
    },
    "model": "flux",
    "moderation": "low",
    "output_compression": 80,
    "output_format": "webp",
    "partial_images": 3,
    "quality": "xhigh",
    "size": "1536x864",
}
GIF: Final[Json] = {"type": "image_generation", "output_format": "gif", "frame_count": 9, "frame_duration_ms": 200}


def tools(*declared: Json) -> list[Json]:
    return parse_create({"model": "m", "input": "hi", "tools": list(declared)}).tools


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({**IMAGES, "size": "big"}, ".size", "invalid_value"),
        ({**IMAGES, "size": "0x512"}, ".size", "invalid_value"),
        ({**IMAGES, "quality": "hd"}, ".quality", "invalid_value"),
        ({**IMAGES, "action": "draw"}, ".action", "invalid_value"),
        ({**IMAGES, "partial_images": 4}, ".partial_images", "integer_above_max_value"),
        ({**IMAGES, "output_compression": 101}, ".output_compression", "integer_above_max_value"),
        ({**IMAGES, "output_compression": 50, "output_format": "png"}, ".output_compression", "invalid_value"),
        ({**IMAGES, "output_format": "svg"}, ".output_format", "unsupported_value"),
        ({**IMAGES, "svg": {"model": "m"}}, ".svg", "unsupported_parameter"),
        ({**IMAGES, "output_format": "jpeg"}, ".background", "invalid_value"),
        ({"type": "image_generation", "frame_count": 2}, ".frame_count", "invalid_value"),
        (
            {"type": "image_generation", "frame_count": 1, "output_format": "gif"},
            ".frame_count",
            "integer_below_min_value",
        ),
        ({"type": "image_generation", "output_format": "gif", "partial_images": 1}, ".partial_images", "invalid_value"),
        ({**IMAGES, "action": "generate"}, ".input_image_mask", "invalid_value"),
        ({**IMAGES, "input_image_mask": {}}, ".input_image_mask.image_url", "missing_required_parameter"),
        ({**IMAGES, "input_image_mask": {"image_url": "abc"}}, ".input_image_mask.image_url", "invalid_value"),
    ],
)
def test_invalid_declaration_is_refused_at_its_field(tool: Json, param: str, code: str) -> None:
    with pytest.raises(ApiError) as raised:
        tools(tool)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, f"tools[0]{param}", code)


def test_image_generation_with_every_declared_key_stays_unchanged() -> None:
    assert tools(IMAGES, GIF) == [IMAGES, GIF]
    known = get_type_hints(ImageGeneration).keys()
    assert IMAGES.keys() | GIF.keys() == known - {"svg"}


def test_image_format_does_not_restrict_values_that_mean_the_same_as_absent_ones() -> None:
    plain = {"type": "image_generation", "partial_images": 0, "output_compression": 100}
    assert tools({**plain, "output_format": "gif"}, plain) == [{**plain, "output_format": "gif"}, plain]


@pytest.mark.parametrize("more", [{}, {"result": None}, {"result": None, "status": "completed"}])
def test_image_call_without_its_image_names_a_stored_call(more: Json) -> None:
    assert parse_input([USER, {"type": "image_generation_call", "id": "ig_1", **more}]) == [
        USER,
        {"type": "item_reference", "id": "ig_1"},
    ]


@pytest.mark.parametrize("more", [{"id": "ig_1"}, {}])
def test_image_call_with_an_empty_image_stays_what_it_is(more: Json) -> None:
    cleared = {"type": "image_generation_call", "status": "completed", "revised_prompt": "x", "result": "", **more}
    assert parse_input([cleared]) == [cleared]
    [call, output] = as_functions(with_ids([cleared]), {})
    assert (call["name"], output["output"]) == ("generate_image", "(The image was generated, and is left out here.)")


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
