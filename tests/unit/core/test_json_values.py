"""The values of a JSON document are counted; characters within its strings are not."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.json_values import bytes_left, count_values, fits, is_large

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{},:"\\ab'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{,"\\x'), inner, max_size=4),
)

LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.sampled_from('a"\\,[]{}:'), max_size=8)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(st.sampled_from('a"\\,['), max_size=4), inner)
)


def structure(value: Any) -> int:
    """Return the number of opening brackets and commas of a value."""
    if not isinstance(value, list | dict):
        return 0
    members = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(structure, members))


@given(JSON, st.integers(1, 9))
def test_value_count_ignores_characters_of_strings(value: Any, size: int) -> None:
    body = json.dumps(value).encode()
    exact = structure(value)
    assert count_values(body, exact, size) >= exact
    if exact:
        assert count_values(body, exact - 1, size) > exact - 1
    assert (count_values(body, exact, size) > exact) is False


@pytest.mark.parametrize("text", ["[{,", '\\"[', "\\\\", '"', "a\\"])
def test_text_of_any_length_counts_once(text: str) -> None:
    assert count_values(json.dumps({"input": text * 100_000}).encode(), 10) == 1


def test_many_small_values_exceed_limit() -> None:
    assert count_values(b"[" + b"[]," * 100_000 + b"[]]", 50_000) > 50_000


def counted(value: Any) -> tuple[int, int]:
    """Return the number of values, and the nesting depth of arrays and objects."""
    if not isinstance(value, list | dict):
        return 1, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    return 1 + sum(values for values, _ in inner), 1 + max((depth for _, depth in inner), default=0)


@given(VALUES, st.integers(1, 9))
def test_document_fits_from_its_depth_on(value: Any, size: int) -> None:
    _, depth = counted(value)
    text = orjson.dumps(value)
    assert fits(text, 10_000, depth, size)
    assert depth == 0 or not fits(text, 10_000, depth - 1, size)


@given(VALUES)
def test_document_fits_within_twice_its_values(value: Any) -> None:
    """An empty array counts as if it had one value."""
    values, _ = counted(value)
    text = orjson.dumps(value)
    assert fits(text, 2 * values + 1, 100)
    assert values == 1 or not fits(text, values // 2, 100)


@pytest.mark.parametrize("text", [b'["' + b",[{" * 10_000 + b'"]', b'["\\\\\\"' + b",[{" * 10_000 + b'"]'])
def test_brackets_in_strings_are_not_counted(text: bytes) -> None:
    assert fits(text, 3, 1)


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"a":' * 50_000, b"[0," * 30_000, b"]" * 9 + b"[" * 99])
def test_too_deep_document_does_not_fit(text: bytes) -> None:
    assert not fits(text, 1_000_000, 64)


@pytest.mark.parametrize("text", [b"[" + b"0," * 5_000, b"[" + b"[]," * 5_000, b'{"a":0,' * 5_000, b"[[" * 5_000])
def test_document_with_too_many_values_does_not_fit(text: bytes) -> None:
    assert not fits(text, 1_000, 1_000_000)


@pytest.mark.parametrize(
    ("value", "size"), [("abc", 3), ({"a": ["bb", ("c",)], 1: None, "dd": {}}, 54), ([[], {"e": "f"}], 26)]
)
def test_size_of_decoded_value_counts_keys_strings_and_members(value: Any, size: int) -> None:
    assert bytes_left(value, 100) == 100 - size
    assert is_large(value, size - 1)
    assert not is_large(value, size)


def test_members_past_the_limit_are_not_counted() -> None:
    assert bytes_left([["x"] * 1_000, ["x"] * 1_000], 100) == 100 - 16 - 8_000
