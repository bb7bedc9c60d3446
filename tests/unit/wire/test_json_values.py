"""Values of a JSON document are counted, and characters of its strings are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.wire import json_values
from llama_stack_responses.wire.json_values import count_values

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{},:"\\ab'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{,"\\x'), inner, max_size=4),
)


def structure(value: Any) -> int:
    """The opening brackets and commas of a value."""
    if not isinstance(value, list | dict):
        return 0
    members = value.values() if isinstance(value, dict) else value
    return 1 + max(0, len(value) - 1) + sum(map(structure, members))


@given(JSON, st.integers(1, 9))
def test_count_over_the_limit_leaves_strings_out(value: Any, size: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_values, "_SLICE", size)
        body = json.dumps(value).encode()
        exact = structure(value)
        assert count_values(body, exact) >= exact
        if exact:
            assert count_values(body, exact - 1) > exact - 1
        assert (count_values(body, exact) > exact) is False


@pytest.mark.parametrize("text", ["[{,", '\\"[', "\\\\", '"', "a\\"])
def test_text_of_any_length_is_one_value(text: str) -> None:
    assert count_values(json.dumps({"input": text * 100_000}).encode(), 10) == 1


def test_small_values_are_over_the_limit() -> None:
    assert count_values(b"[" + b"[]," * 100_000 + b"[]]", 50_000) > 50_000
