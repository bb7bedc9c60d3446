"""The form of a packed chain."""

from __future__ import annotations

import pytest

from llama_stack_responses.features.cold.pack import opened, packed, packed_part
from llama_stack_responses.store import codec
from llama_stack_responses.store.codec import UnreadableError

TEXT = "The same words again and again. " * 40
ROWS = [
    ("r/resp_1", codec.encode({"text": TEXT})),
    ("n/abc", codec.encode([TEXT], b"head")),
    ("b/def", codec.encode(["\ud800", "lenient " * 40])),
    ("i/ghi", b"n/abc 0"),
    ("f/abc/resp_1", b""),
]


def test_rows_come_back_unchanged() -> None:
    data, key = packed(ROWS)
    assert opened(data, key) == ROWS
    assert b"again" not in data


def test_large_row_comes_back_by_its_number() -> None:
    _, key = packed(ROWS)
    first, second = (packed_part(ROWS[1], key, number) for number in (1, 2))
    assert opened(first, key, 1) == opened(second, key, 2) == [ROWS[1]]
    assert first != second
    with pytest.raises(UnreadableError, match="damaged"):
        opened(second, key, 1)


def test_what_rows_have_in_common_is_packed_once() -> None:
    words = " ".join(f"word {number}" for number in range(400))
    rows = [(f"n/{number}", codec.encode([words, number])) for number in range(9)]
    data, _ = packed(rows)
    assert len(data) < sum(len(value) for _, value in rows) / 4


def test_each_chain_has_a_key_of_its_own() -> None:
    (one, _), (other, key) = packed(ROWS), packed(ROWS)
    assert one != other
    with pytest.raises(UnreadableError, match="damaged"):
        opened(one, key)


@pytest.mark.parametrize("at", [0, 1, 40, -1])
def test_damaged_chain_is_refused(at: int) -> None:
    data, key = packed(ROWS)
    damaged = bytearray(data)
    damaged[at] ^= 1
    with pytest.raises(UnreadableError):
        opened(bytes(damaged), key)
