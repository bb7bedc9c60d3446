"""The advisory locks of a commit on PostgreSQL, and how many the server has.

A key belongs to the group of its first two parts: `f/NAME/...` belongs to `f/NAME`. A key of two parts or fewer is its
own group. A commit holds, until its transaction is on the disk:

- an exclusive lock on each key that it writes, and a shared lock on each key whose version it depends on;
- a shared lock on the groups of those keys;
- an exclusive lock on the group of each range that must be empty, and on each group of which it writes many keys, in
  place of the locks on those keys; if it needs many locks, on each group of which it writes any.

A commit therefore waits for another only if one of them writes what the other writes or depends on. All commits take
their locks in the same order, which rules out deadlocks. A range that spans groups, or a commit that needs too many
locks, takes the lock of the whole store exclusively; all other commits share it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Final

from .records import Condition, Empty, Write

LOCKS_PER_CONNECTION: Final = 64
"""Number of locks that the server's lock table holds per connection (`max_locks_per_transaction`)."""

_MAX_SINGLE_LOCKS: Final = 4
"""Maximum number of keys of one group that a commit locks one by one when it writes them."""


def lock_id(schema: str, name: str) -> int:
    """Return the number of the lock with this name; the empty name is the whole store."""
    return int.from_bytes(blake2b(f"{schema}/{name}".encode(), digest_size=8).digest(), signed=True)


def locks(
    schema: str, writes: Sequence[Write], conditions: Sequence[Condition], limit: int
) -> list[tuple[int, bool]] | None:
    """Return the numbers of a commit's locks in order, and whether each is exclusive.

    None means that the commit takes the lock of the whole store exclusively, and no other one.
    """
    if any(isinstance(each, Empty) and each.prefix.count("/") < 2 for each in conditions):
        return None
    written = {write.key for write in writes}
    read = {each.key for each in conditions if not isinstance(each, Empty)}
    empty = {_group(each.prefix) for each in conditions if isinstance(each, Empty)}
    for singly in (_MAX_SINGLE_LOCKS, 0):
        numbers = _numbers(schema, _names(written, read, empty, singly))
        if len(numbers) <= limit:
            return sorted(numbers.items())
    return None


def _numbers(schema: str, names: Mapping[str, bool]) -> Mapping[int, bool]:
    """Return the numbers of locks with these names; two names may have the same one."""
    numbers: dict[int, bool] = {}
    for name, exclusive in names.items():
        number = lock_id(schema, name)
        numbers[number] = numbers.get(number, False) or exclusive
    return numbers


def _names(written: Collection[str], read: Collection[str], empty: Collection[str], singly: int) -> Mapping[str, bool]:
    """Return the names to lock, and whether exclusively.

    Args:
        singly: maximum number of written keys of one group that are locked one by one.
    """
    groups: dict[str, list[str]] = {}
    for key in written:
        groups.setdefault(_group(key), []).append(key)
    whole = {*empty, *(group for group, keys in groups.items() if len(keys) > singly)}
    names = dict.fromkeys((_group(key) for key in (*written, *read)), False)
    names |= dict.fromkeys((key for key in read if _group(key) not in whole), False)
    names |= dict.fromkeys((key for key in written if _group(key) not in whole), True)
    return names | dict.fromkeys(whole, True)


def _group(key: str) -> str:
    """Return a key's first two parts: `f/NAME` of `f/NAME/...`."""
    return "/".join(key.split("/", 2)[:2])
