"""Where a row is: the tag of its key, and the partition of the tag.

A store in a cluster consists of partitions, one on PostgreSQL may, and a commit is atomic within one. All rows of a
chain of responses and of a conversation have one tag, from 0 to 4,095, which its ids and the names of its content begin
with. What is kept of a user beside them has the tag of the user's hash, and so has what counts for a limit of a user, a
team or a key. Batches, endpoints of webhooks, skills and refused requests get that tag in their ids, and so do the
responses of the lines of batches; what a user has used has it at the end of its keys. A key with which users
authenticate has the tag of its digits. A tag is in the partition of that number, modulo the number of partitions.
Ids without a tag have the tag 0.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ..core.ids import tag_of
from .content_names import home_of, tag_of_name
from .records import Notify, Op

_WITH_TAG: Final = re.compile(r"\.([0-9a-f]{3})$")
"""The end of a key of `layout.with_tag`."""
_HEXADECIMAL: Final = re.compile(r"[0-9a-f]{3}")


def _at_end(key: str) -> int:
    match = _WITH_TAG.search(key)
    return int(match[1], 16) if match else 0


def _end_of(number: int) -> Callable[[str], int]:
    return lambda key: _at_end(_part(key, number))


def _id(number: int) -> Callable[[str], int]:
    return lambda key: tag_of(_part(key, number))


def _name(number: int) -> Callable[[str], int]:
    return lambda key: tag_of_name(_part(key, number))


def _of_owner(number: int) -> Callable[[str], int]:
    return lambda key: home_of(_part(key, number))


def _digits(number: int) -> Callable[[str], int]:
    """Return what reads the tag of rows with an id or a hash of hexadecimal digits, from its first ones."""

    def tag(key: str) -> int:
        digits = _part(key, number)[:3]
        return int(digits, 16) if _HEXADECIMAL.fullmatch(digits) else 0

    return tag


def _part(key: str, number: int) -> str:
    parts = key.split("/")
    return parts[number] if number < len(parts) else ""


def _job_or_pointer(key: str) -> int:
    return (tag_of_name if key.count("/") > 1 else tag_of)(_part(key, 1))


def _branch_or_key(key: str) -> int:
    match key.split("/"):
        case [_, name]:
            return home_of(name)
        case [_, _, tag]:
            return int(tag, 16)
        case _:
            return tag_of(_part(key, 2))


_ENDING: Final = ("p", "u", "x", "ob", "cl", "co", "cp", "so", "su", "us")
"""First parts of keys that end with the tag."""

_TAGS: Final[Mapping[str, tuple[int, Callable[[str], int]]]] = {
    **dict.fromkeys(("a", "c", "ch", "cr", "e", "k", "m", "r", "s", "sl", "sv", "v", "w", "z"), (1, _id(1))),
    **dict.fromkeys(("ce", "d", "up"), (1, _of_owner(1))),
    "sk": (2, _id(2)),
    "sp": (1, _end_of(1)),
    **dict.fromkeys(("h", "o", "q", "t"), (2, _id(2))),
    **dict.fromkeys(("l", "rf", "sc"), (3, _id(3))),
    "y": (2, _branch_or_key),
    "ck": (1, lambda key: int(_part(key, 1), 16)),
    **dict.fromkeys(("b", "f", "i", "n"), (1, _name(1))),
    **dict.fromkeys(("ak", "au", "ub", "uj", "ur"), (1, _digits(1))),
    "uq": (2, _digits(2)),
    "g": (2, _name(2)),
    "j": (1, _job_or_pointer),
    **dict.fromkeys(_ENDING, (2, _at_end)),
    **dict.fromkeys(("bt/c", "wh/c"), (2, _of_owner(2))),
    **dict.fromkeys(("bt/o", "bt/u", "wh/e", "wh/o"), (3, _id(3))),
    **dict.fromkeys((*(f"bt/{kind}" for kind in "pqrtdni"), *(f"wh/{kind}" for kind in "dqls")), (2, _id(2))),
}
"""What says the tag of a row, by the first part of its key, or the first two: which of the parts between slashes, and
how it is read."""

_WITH_KINDS: Final = frozenset(kind.partition("/")[0] for kind in _TAGS if "/" in kind)
"""First parts of keys of which the second one counts too."""

_LISTED: Final = ("l/", "sc/")
"""Beginnings of the keys of rows that are listed for an owner, whose hash follows, and have all tags of the owner."""
_AT_HOME: Final = ("bt/o/", "bt/u/", "rf/", "sk/", "wh/o/")
"""The same of rows that have the tag of the owner's hash, or none."""


def _kind(key: str) -> str:
    kind, _, rest = key.partition("/")
    return f"{kind}/{rest.partition('/')[0]}" if kind in _WITH_KINDS else kind


def tag_of_key(key: str) -> int:
    """Return the tag of a row; 0 of those that belong to no chain and no conversation."""
    kind = _kind(key)
    if kind == "z" and key.startswith("z/turn"):
        return _at_end(key)
    return _TAGS[kind][1](key) if kind in _TAGS else 0


def tag_of_op(op: Op) -> int:
    """Return the tag of what is written or notified."""
    return tag_of(op.name) if isinstance(op, Notify) else tag_of_key(op.key)


def by_partition[Each: Op](ops: Iterable[Each], partitions: int) -> dict[int, list[Each]]:
    """Return ops that need not be one commit by the partition in which they are.

    Args:
        partitions: the number of partitions of the store.
    """
    groups: dict[int, list[Each]] = {}
    for op in ops:
        groups.setdefault(tag_of_op(op) % partitions if partitions > 1 else 0, []).append(op)
    return groups


def tag_of_range(start: str, end: str) -> int | None:
    """Return the tag of all rows with start <= key < end; None if they may have several."""
    kind = _kind(start)
    if not start.startswith(f"{kind}/") or not (end.startswith(f"{kind}/") or end == f"{kind}0"):
        return None
    if kind not in _TAGS:
        return 0
    parts = start.split("/")
    number = _TAGS[kind][0]
    if kind in _ENDING or len(parts) <= number + 1:
        return None
    known = "/".join(parts[: number + 1])
    return tag_of_key(start) if end.startswith(known) else None


def owner_of_range(start: str, end: str) -> str | None:
    """Return the owner of all rows with start <= key < end, if they may have all tags of an owner; None otherwise."""
    return _owner_in(start, end, _LISTED)


def home_of_range(start: str, end: str) -> int | None:
    """Return the tag of all rows with start <= key < end but those without one; None if they may have further ones."""
    of = _owner_in(start, end, _AT_HOME)
    return home_of(of) if of else None


def _owner_in(start: str, end: str, kinds: Iterable[str]) -> str | None:
    for kind in kinds:
        of, slash, _ = start.removeprefix(kind).partition("/")
        if start.startswith(kind) and slash and end.startswith(f"{kind}{of}"):
            return of
    return None
