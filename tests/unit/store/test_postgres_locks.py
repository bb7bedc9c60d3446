"""The locks of a commit, and how many a process may hold at once."""

from __future__ import annotations

import pytest

from llama_stack_responses.store.postgres_locks import lock_id, locks
from llama_stack_responses.store.records import Condition, Delete, Empty, Ensure, Put, VersionIs, Write

S, X = False, True


def named(*names: tuple[str, bool]) -> list[tuple[int, bool]]:
    return sorted((lock_id("s", name), exclusive) for name, exclusive in names)


@pytest.mark.parametrize(
    ("writes", "conditions", "expected"),
    [
        ([Put("a", b"")], [], [("a", X)]),
        ([Put("r/1", b"")], [VersionIs("r/1", 1)], [("r/1", X)]),
        ([], [VersionIs("r/1", 1)], [("r/1", S)]),
        ([Delete("f/x/1")], [], [("f/x", S), ("f/x/1", X)]),
        ([Ensure("f/x/1", b"")], [VersionIs("f/x/2", None)], [("f/x", S), ("f/x/1", X), ("f/x/2", S)]),
        ([Put("f/x/1", b"")], [Empty("f/x/", "f/x/1")], [("f/x", X)]),
        ([Put("f/y/1", b"")], [Empty("f/x/1/2")], [("f/y", S), ("f/y/1", X), ("f/x", X)]),
        ([Put(f"m/c/{number}", b"") for number in range(5)], [VersionIs("m/c/9", None)], [("m/c", X)]),
    ],
)
def test_commit_locks_writes_exclusively_and_reads_shared(
    writes: list[Write], conditions: list[Condition], expected: list[tuple[str, bool]]
) -> None:
    assert locks("s", writes, conditions, 64) == named(*expected)


def test_locks_have_one_order_for_any_order_of_keys() -> None:
    writes: list[Write] = [Put(f"k/{number}", b"") for number in range(20)]
    found = locks("s", writes, [], 64)
    assert found == locks("s", writes[::-1], [], 64)
    assert found is not None
    assert found == sorted(found)


def test_commit_needing_too_many_locks_locks_whole_store() -> None:
    writes: list[Write] = [Put(f"k/{number}", b"") for number in range(65)]
    assert locks("s", writes, [], 64) is None
    assert locks("s", writes[:64], [], 64) is not None
    assert locks("s", [], [Empty("k/")], 64) is None


def test_commit_needing_many_locks_locks_groups_in_place_of_their_keys() -> None:
    """A new item of a conversation writes a pointer, and a key in a group of its own."""
    writes: list[Write] = [Put(key, b"") for number in range(30) for key in (f"i/{number}", f"j/{number}/row")]
    conditions: list[Condition] = [VersionIs("c/1", 1), VersionIs("j/0/other", None)]
    assert locks("s", writes, conditions, 61) == named(
        ("c/1", S), *((f"{kind}/{number}", X) for number in range(30) for kind in "ij")
    )
    assert locks("s", writes, conditions, 60) is None
    singly = locks("s", writes, conditions, 92)
    assert singly is not None
    assert len(singly) == 92
