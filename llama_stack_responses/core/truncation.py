"""Which items of a conversation may be left out so that the rest is shorter, and makes sense by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from .exchanges import EXCHANGE
from .schema.items import ANSWERS

Json = dict[str, Any]

PINNED: Final = "pinned"
"""The key of an item that is never left out."""

_OUTPUTS: Final = frozenset(ANSWERS.values())
_SAID: Final = frozenset({"message", "reasoning"})


def droppable(items: Sequence[Json], *, to_answer: bool = True) -> list[list[int]]:
    """The parts of a conversation that may be left out, the oldest first, each as the numbers of its items.

    An old turn, from its user's message to the next one's, is one part. In the turn that goes on, each round of the
    model with its reasoning, its calls and their outputs is one. No part holds instructions, what is pinned, or the
    newest user's message, and what came last of all is in none.

    Args:
        items: every output in it comes after its call.
        to_answer: whether the user's newest message is to be answered; if not, it is like others.
    """
    newest = _newest_message(items) if to_answer else -1
    parts: list[list[int]] = [[]]
    waiting: Counter[str] = Counter()
    for number, item in enumerate(items):
        if not waiting.total() and _begins(items, number, newest):
            parts.append([])
        _follow(item, waiting)
        if number != newest and not _is_kept(item):
            parts[-1].append(number)
    if newest + 1 < len(items):
        parts.pop()
    return [part for part in parts if part]


def without(items: Sequence[Json], parts: Sequence[Sequence[int]]) -> list[Json]:
    """The items that are in none of `parts`."""
    gone = {number for part in parts for number in part}
    return [item for number, item in enumerate(items) if number not in gone]


def _newest_message(items: Sequence[Json]) -> int:
    """The number of the newest user's message, or -1."""
    return next((number for number in range(len(items) - 1, -1, -1) if _is_users(items[number])), -1)


def _begins(items: Sequence[Json], number: int, newest: int) -> bool:
    """Whether a part may begin with this item, in front of which no call waits for its output."""
    if number <= newest or _is_users(items[number]):
        return _is_users(items[number])
    before = items[number - 1]["type"] if number else ""
    return number == newest + 1 or (items[number]["type"] not in _OUTPUTS and before not in _SAID)


def _follow(item: Json, waiting: Counter[str]) -> None:
    """Notes which calls wait for their outputs behind this item."""
    call_id = item.get("call_id")
    if call_id is None or EXCHANGE in item or item.get("execution") == "server":
        return
    if item["type"] in ANSWERS:
        waiting[call_id] += 1
    elif waiting[call_id]:
        waiting[call_id] -= 1


def _is_users(item: Json) -> bool:
    return item.get("role") == "user"


def _is_kept(item: Json) -> bool:
    return PINNED in item or item.get("role") in ("system", "developer")
