"""Base64 of large contents, plain and in data URLs."""

from __future__ import annotations

import base64

import pytest

from llama_stack_responses.concurrency.large_base64 import decoded, decoded_bytes
from llama_stack_responses.core.base64_pieces import data_start

CONTENT = bytes(range(256)) * 4


@pytest.mark.parametrize(
    "head", ["", "data:image/png;base64,", "DATA:text/plain;charset=utf-8;base64,", f"data:{'x' * 900},"]
)
async def test_base64_is_decoded_with_and_without_the_head_of_a_data_url(head: str) -> None:
    text = head + base64.b64encode(CONTENT).decode()
    start = data_start(text)
    assert await decoded(text, start) == CONTENT
    assert 0 <= decoded_bytes(text, start) - len(CONTENT) < 3


async def test_head_that_does_not_end_is_not_skipped() -> None:
    text = f"data:{'x' * 2_000},{base64.b64encode(CONTENT).decode()}"
    assert data_start(text) == 0
    with pytest.raises(ValueError, match="base64"):
        await decoded(text)
