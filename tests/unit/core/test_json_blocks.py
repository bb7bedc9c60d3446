"""A large value is encoded in blocks that make up the same JSON."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.json_blocks import BLOCK_BYTES, blocks, check, ordered_blocks, ordered_dumps
from llama_stack_responses.wire import sse

VALUE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
)
LARGE: dict[str, Any] = {
    "text": "ä\n\U0001f600" * 200_000,
    "many": [{"type": "message", "n": [n], "empty": [[], {}]} for n in range(30_000)],
    "deep": json.loads("[" * 200 + '"' + "x" * 200_000 + '"' + "]" * 200),
}


@given(VALUE, st.integers(1, 50))
def test_joined_blocks_equal_json_of_value(value: Any, size: int) -> None:
    assert b"".join(blocks(value, size, 3)) == orjson.dumps(value)


ODD = {"numbers": [2**70] * 3, "ä": ["\ud83d", "ä"] * 20_000, "z": 1, "b": {"y": 1.5, "x": None}}


@given(VALUE, st.integers(1, 50))
def test_joined_ordered_blocks_equal_ordered_json(value: Any, size: int) -> None:
    assert b"".join(ordered_blocks(value, size, 3)) == ordered_dumps(value)


@pytest.mark.parametrize("value", [LARGE, ODD, {"b": LARGE, "a": ODD}])
def test_ordered_blocks_of_large_or_odd_value_equal_ordered_json(value: Any) -> None:
    pieces = list(ordered_blocks(value))
    assert b"".join(pieces) == ordered_dumps(value)
    assert len(pieces) > 1


def test_large_value_is_never_encoded_whole() -> None:
    pieces = list(blocks({name: LARGE[name] for name in ("text", "many")}))
    assert max(map(len, pieces)) < 4 * BLOCK_BYTES
    assert b"".join(pieces) == orjson.dumps({name: LARGE[name] for name in ("text", "many")})


def test_deep_and_large_value_is_encoded() -> None:
    assert b"".join(blocks(LARGE)) == orjson.dumps(LARGE)


def test_lone_surrogate_is_escaped() -> None:
    value = {"text": "\ud83d" + "x" * 100_000}
    assert json.loads(b"".join(blocks(value))) == value


@pytest.mark.parametrize("sizes", [[1], [1, 200_000, 1], [200_000], [40_000] * 5, [1] * 500])
def test_joined_blocks_equal_encoded_events(sizes: list[int]) -> None:
    events = [{"type": "response.x", "delta": "y" * size} for size in sizes]
    pieces = list(sse.pieces(events))
    assert b"".join(pieces) == sse.encode(events)
    assert max(map(len, pieces)) <= 2 * BLOCK_BYTES


MEGABYTES = "x" * 3 * 2**20


@pytest.mark.parametrize("name", ["small", "large", "in text", "in name", "in list"])
@pytest.mark.parametrize("odd", ["\ud800", 2**70, json.loads("[" * 260 + "]" * 260)])
def test_check_refuses_values_that_orjson_does_not_encode(odd: Any, name: str) -> None:
    text = odd if isinstance(odd, str) else ""
    value = {
        "small": [odd],
        "large": {"a": [MEGABYTES, {"b": [odd]}]},
        "in text": [MEGABYTES + text + MEGABYTES, odd],
        "in name": {MEGABYTES: 1, text: odd},
        "in list": [MEGABYTES, *range(300_000), odd],
    }[name]
    for refuse in (orjson.dumps, check):
        with pytest.raises(TypeError):
            refuse(value)


@pytest.mark.parametrize("nested", [5, 33, 260])
def test_check_counts_levels_around_large_value(nested: int) -> None:
    value = json.loads("[" * nested + f'"{MEGABYTES}",' + "[" * 250 + "]" * 250 + "]" * nested)
    for refuse in (orjson.dumps, check):
        with pytest.raises(TypeError):
            refuse(value)


@pytest.mark.parametrize("name", LARGE)
def test_check_accepts_values(name: str) -> None:
    check({"a": [LARGE[name], MEGABYTES]})


def test_check_encodes_little_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(orjson, "dumps", lambda value: sizes.append(len(json.dumps(value))))
    check({"input": [{"role": "user", "content": MEGABYTES}, *[{"content": "y" * 1_000}] * 5_000, MEGABYTES[:500_000]]})
    assert sum(sizes) > 8_400_000
    assert max(sizes) < 1_200_000
