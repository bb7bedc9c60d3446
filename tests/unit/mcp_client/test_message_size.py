"""How much a JSON text holds, without decoding it."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.mcp_client.message_size import has_room

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\,[]{}:'), max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('a"\\,['), max_size=4), inner)
)


def counted(value: Any) -> tuple[int, int]:
    """The values, and how deep arrays and objects are in one another."""
    if not isinstance(value, list | dict):
        return 1, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(values for values, _ in inner), 1 + max((depth for _, depth in inner), default=0)


@given(VALUES)
def test_a_text_has_room_from_its_depth_on(value: Any) -> None:
    _, depth = counted(value)
    text = orjson.dumps(value)
    assert has_room(text, 10_000, depth)
    assert depth == 0 or not has_room(text, 10_000, depth - 1)


@given(VALUES)
def test_a_text_has_room_for_its_values(value: Any) -> None:
    """An empty array counts as if it had one."""
    values, _ = counted(value)
    text = orjson.dumps(value)
    assert has_room(text, 2 * values + 1, 100)
    assert values == 1 or not has_room(text, values // 2, 100)


@pytest.mark.parametrize("text", [b'["' + b",[{" * 10_000 + b'"]', b'["\\\\\\"' + b",[{" * 10_000 + b'"]'])
def test_what_stands_in_a_string_does_not_count(text: bytes) -> None:
    assert has_room(text, 3, 1)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 50_000, b"[0," * 30_000, b"]" * 9 + b"[" * 99])
def test_a_text_that_is_too_deep_has_no_room(text: bytes) -> None:
    assert not has_room(text, 1_000_000, 64)


@pytest.mark.parametrize("text", [b"[" + b"0," * 5_000, b"[" + b"[]," * 5_000, b'{"a":0,' * 5_000, b"[[" * 5_000])
def test_a_text_with_too_many_values_has_no_room(text: bytes) -> None:
    assert not has_room(text, 1_000, 1_000_000)
