"""Convert every kind of tool call to the one kind of the chat API: a function call and its output."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from ..core.exchanges import EXCHANGE
from ..core.types import Json
from ..items.kind import Names
from ..items.kinds.mcp import exchange_of
from ..items.mcp_approvals import Approvals
from ..items.program_calls import NOT_CONTINUED, ProgramCalls
from ..items.registry import ITEM_KINDS

NO_OUTPUT: Final = "(The call was interrupted: it has no output, and may have run in part.)"
"""What the model sees in place of the output of a call after which the user went on."""

HOSTED: Final = "hosted"
"""The key that marks a `function_call_output` of a hosted tool."""


def as_functions(items: Iterable[Json], names: Names) -> Iterator[Json]:
    """Yield the items with all calls as `function_call` and `function_call_output`.

    A call without an output gets one that says so, after the calls that were made with it. A hosted tool's call is
    replayed from its stored exchange; without one, from the fields of its item.

    Args:
        names: the model's names for the client's functions.
    """
    yield from _with_outputs(list(_functions(list(items), names)))


def _with_outputs(items: Sequence[Json]) -> Iterator[Json]:
    unanswered = _unanswered(items)
    lacking = list[str]()
    for place, item in enumerate(items):
        if item["type"] != "function_call":
            yield from (tool_output(call_id, NO_OUTPUT) for call_id in lacking)
            lacking.clear()
        elif place in unanswered:
            lacking.append(item["call_id"])
        yield item
    yield from (tool_output(call_id, NO_OUTPUT) for call_id in lacking)


def _unanswered(items: Sequence[Json]) -> frozenset[int]:
    """Return the places of the calls without an output.

    A model that restarts its numbering in each turn reuses call ids: an output answers a call of its turn first.
    """
    newest: defaultdict[str, deque[int]] = defaultdict(deque)
    earlier: defaultdict[str, deque[int]] = defaultdict(deque)
    for place, item in enumerate(items):
        if item["type"] == "function_call":
            newest[item["call_id"]].append(place)
        elif item["type"] == "function_call_output":
            if calls := newest.get(item["call_id"]) or earlier.get(item["call_id"]):
                calls.popleft()
        elif item.get("role") == "user":
            for call_id, calls in newest.items():
                earlier[call_id].extend(calls)
            newest.clear()
    return frozenset(place for group in (newest, earlier) for calls in group.values() for place in calls)


def _functions(items: Sequence[Json], names: Names) -> Iterator[Json]:
    approvals = Approvals(items)
    answered: set[str] = set()
    of_programs = ProgramCalls(items)
    for item in items:
        if of_programs.include(item):
            continue  # only the program sees its calls
        if made := item.get(EXCHANGE) or _exchange_of(item, approvals):
            call_id = item.get("call_id") or item["id"]
            answered.add(call_id)
            yield {
                "type": "function_call",
                "call_id": call_id,
                "name": made["name"],
                "arguments": made["arguments"],
            }
            yield tool_output(call_id, made["output"])
        elif call := _as_call(item, names):
            yield call
            if of_programs.waits(item):
                yield tool_output(item["call_id"], NOT_CONTINUED)
        elif _is_servers(item) or item.get("call_id") in answered:
            continue  # the output of a hosted call, which was yielded with the call
        else:
            yield item if item.get(HOSTED) else _as_output(item, names) or item


def tool_output(call_id: str, output: str | list[Json]) -> Json:
    """Return a hosted tool's output, which may contain media that the model does not accept."""
    return {"type": "function_call_output", "call_id": call_id, "output": output, HOSTED: True}


def _exchange_of(item: Json, approvals: Approvals) -> Json | None:
    """Return the exchange of a call that the server ran, or did not run for lack of approval; None for other items."""
    if item["type"] == "mcp_approval_request":
        refusal = approvals.refusal(item)
        return exchange_of(item, refusal) if refusal else None
    kind, ran_here = ITEM_KINDS.get(item["type"]), "execution" not in item or _is_servers(item)
    return kind.exchange(item) if kind and kind.exchange and ran_here else None


def _as_call(item: Json, names: Names) -> Json | None:
    """Return a call whose output is an item of its own as a `function_call`; None for other items."""
    kind = ITEM_KINDS.get(item["type"])
    if kind is None or kind.call is None:
        return None
    return {"type": "function_call", "call_id": item["call_id"], **kind.call(item, names)}


def _as_output(item: Json, names: Names) -> Json | None:
    """Return the output of such a call as a `function_call_output`; None for other items."""
    kind = ITEM_KINDS.get(item["type"])
    if kind is None or kind.output is None:
        return None
    return {"type": "function_call_output", "call_id": item["call_id"], "output": kind.output(item, names)}


def _is_servers(item: Json) -> bool:
    """Return whether an item belongs to a tool search by the server."""
    return item.get("execution") == "server"
