"""A stack without moderation refuses requests for it, and shows no output that was to be checked."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.moderation_results import NOT_YET
from llama_stack_responses.inputs.moderation import NoModeration
from llama_stack_responses.requests.request import CreateRequest, parse_create
from llama_stack_responses.stream.deltas import Text

LARGE_WORK = LargeWork()


def request_with(**fields: Any) -> CreateRequest:
    return parse_create({"model": "m", "input": "hi", **fields})


@pytest.mark.parametrize(("kind", "value"), [("moderation", {"model": "m"}), ("guardrails", ["a"])])
async def test_moderation_without_moderator_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(ApiError, match="this stack has none") as raised:
        await NoModeration().of_input(request_with(**{kind: value}), [], LARGE_WORK)
    assert (raised.value.status, raised.value.param, raised.value.code) == (400, kind, "unsupported_parameter")


async def test_request_without_moderation_needs_no_moderator() -> None:
    moderation = NoModeration()
    assert await moderation.of_input(request_with(), [], LARGE_WORK) is None  # type: ignore[func-returns-value]
    assert moderation.of_output(request_with(), {"moderation": None}) is None


async def test_begun_moderation_without_moderator_shows_nothing() -> None:
    response = {"moderation": {"input": NOT_YET, "output": NOT_YET}}
    begun = NoModeration().of_output(request_with(moderation={"model": "m"}), response)
    assert begun is not None
    assert (begun.blocks, begun.input_refusal) == (True, None)
    with pytest.raises(ApiError, match="this stack has none"):
        begun.feed(Text("hi"))
    with pytest.raises(ApiError, match="this stack has none"):
        await begun.moderation([])
