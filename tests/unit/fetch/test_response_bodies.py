"""JSON answers of other servers are decoded within limits, large ones in a thread."""

from __future__ import annotations

import orjson
import pytest

from llama_stack_responses.fetch.response_bodies import BodyTooLarge, decoded
from tests.support.thread_calls import calls_of_this_thread

LARGE = {"results": [{"title": f"Page {number}", "content": "word " * 10} for number in range(10_000)]}


async def test_large_answer_is_decoded_in_a_thread() -> None:
    with calls_of_this_thread() as called:
        assert await decoded(orjson.dumps(LARGE)) == LARGE
    assert not {"_loads", "loads", "fits"} & called


async def test_small_answer_is_decoded_at_once() -> None:
    with calls_of_this_thread() as called:
        assert await decoded(b'{"results": []}') == {"results": []}
    assert "_loads" in called


@pytest.mark.parametrize(
    "body", [b"[" + b"[]," * 70_000 + b"[]]", b"[" * 100_000 + b"]" * 100_000, b"[" * 65 + b"]" * 65]
)
async def test_answer_with_too_many_or_too_deep_values_is_refused(body: bytes) -> None:
    with pytest.raises(BodyTooLarge, match="more JSON values"):
        await decoded(body)


@pytest.mark.parametrize("body", [b"", b"{", b'"' + b"x" * 100_000, b"\xff" * 100_000])
async def test_invalid_json_answer_raises_value_error(body: bytes) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (each decoder has its own message)
        await decoded(body)
    assert not isinstance(caught.value, BodyTooLarge)
