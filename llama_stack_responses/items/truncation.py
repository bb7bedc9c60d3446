"""The items of a conversation that may be dropped, so that the rest is shorter and still consistent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from ..core.exchanges import EXCHANGE
from ..core.types import Json
from .kinds.compaction import COMPACTION
from .program_calls import ProgramCalls
from .registry import ANSWERS, REPLIES

PINNED: Final = "pinned"
"""The key that marks an item that is never dropped."""

INSTRUCTING: Final = ("system", "developer")
"""Roles of messages that are never dropped."""

_NAMED_BY: Final = {reply.to: reply.named_by for reply in REPLIES.values()}
"""The field by which later items name an item that they reply to, by its type."""
_OUTPUTS: Final = frozenset(name for name, reply in REPLIES.items() if reply.names == "call_id")
"""The types of the outputs of calls."""
_TEXT_OF_MODEL: Final = frozenset({"message", "reasoning"})


def droppable(items: Sequence[Json], *, to_answer: bool = True) -> list[list[int]]:
    """Return the parts of a conversation that may be dropped, the oldest first, each as the indices of its items.

    An old turn, from its user message to the next one, is one part. In the current turn, each model round with its
    reasoning, its calls and their outputs is one part. No part contains instructions, pinned items, the newest user
    message, or the items that came last.

    Args:
        items: the conversation, with every output after its call.
        to_answer: whether the newest user message is to be answered; if not, it is treated like the others.
    """
    newest = _newest_message(items) if to_answer else -1
    parts: list[list[int]] = [[]]
    waiting: Counter[str] = Counter()
    programs = ProgramCalls(items)
    for number, item in enumerate(items):
        if not waiting.total() and _begins(items, number, newest):
            parts.append([])
        _follow(item, waiting, programs)
        if number != newest and not _is_kept(item):
            parts[-1].append(number)
    if newest + 1 < len(items):
        parts.pop()
    return [part for part in parts if part]


def without(items: Sequence[Json], parts: Sequence[Sequence[int]]) -> list[Json]:
    """Return the items that are in none of `parts`."""
    gone = {number for part in parts for number in part}
    return [item for number, item in enumerate(items) if number not in gone]


def opening_instructions(items: Sequence[Json]) -> list[Json]:
    """Return the messages of developers and the system with which a conversation begins."""
    end = next((number for number, item in enumerate(items) if item.get("role") not in INSTRUCTING), len(items))
    return list(items[:end])


def whole_turns(items: Sequence[Json]) -> list[Json]:
    """Return the end of a conversation, without the rest of a turn whose beginning is missing.

    The result begins with a user message or a compaction item, and no item in it answers a call or a request that is
    missing. It is empty if there is no such part.
    """
    calls: dict[tuple[str, str], int] = {}
    # The sum up to an index is the number of answers that a start there would separate from their calls.
    changes = [0] * (len(items) + 1)
    for number, item in enumerate(items):
        kind = item["type"]
        if kind in _NAMED_BY and (name := item.get(_NAMED_BY[kind])) is not None:
            calls[kind, name] = number
        elif of := _answered(item):
            changes[calls.get(of, -1) + 1] += 1
            changes[number + 1] -= 1
    separated = zip(items, accumulate(changes), strict=False)
    starts = (number for number, (item, count) in enumerate(separated) if not count and _is_start(item))
    return list(items[next(starts, len(items)) :])


def _answered(item: Json) -> tuple[str, str] | None:
    """Return the type and the id of the call or the request that this item answers; None if it answers none."""
    reply = REPLIES.get(item["type"])
    if reply and (name := item.get(reply.names)) is not None and item.get("execution") != "server":
        return reply.to, name
    return None


def _is_start(item: Json) -> bool:
    return _is_users(item) or item["type"] == COMPACTION


def _newest_message(items: Sequence[Json]) -> int:
    """Return the index of the newest user message, or -1."""
    return next((number for number in range(len(items) - 1, -1, -1) if _is_users(items[number])), -1)


def _begins(items: Sequence[Json], number: int, newest: int) -> bool:
    """Return whether a part may begin with this item, given that no earlier call waits for its output."""
    if number <= newest or _is_users(items[number]):
        return _is_users(items[number])
    before = items[number - 1]["type"] if number else ""
    return number == newest + 1 or (items[number]["type"] not in _OUTPUTS and before not in _TEXT_OF_MODEL)


def _follow(item: Json, waiting: Counter[str], programs: ProgramCalls) -> None:
    """Update the calls that wait for their outputs after this item."""
    call_id = item.get("call_id")
    if programs.is_program(item):
        # The items of its calls follow, and its output if it ended.
        waiting[item["call_id"]] = int(not programs.waits(item))
        return
    if call_id is None or EXCHANGE in item or item.get("execution") == "server":
        return
    if item["type"] in ANSWERS:
        waiting[call_id] += 1
    elif waiting[call_id]:
        waiting[call_id] -= 1


def _is_users(item: Json) -> bool:
    return item.get("role") == "user"


def _is_kept(item: Json) -> bool:
    return PINNED in item or item.get("role") in INSTRUCTING
