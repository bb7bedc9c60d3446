"""What this installation has and the `openai` package lacks: tools, items and events of features, fields of requests.

Nothing here is listed. A tool or a field that the package gets later is checked against its types from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, get_args, get_type_hints

from openai.types.responses import Response, ResponseStreamEvent
from openai.types.responses.response_input_item_param import ResponseInputItemParam
from openai.types.responses.tool_param import ToolParam

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import Location, RequestLimits
from llama_stack_responses.items.form import ItemForm
from llama_stack_responses.items.kind import ItemKind
from llama_stack_responses.items.registry import ITEM_KINDS, KINDS_OF_FEATURES, TOOL_TYPES
from llama_stack_responses.requests.request import ECHOED

type Json = dict[str, Any]

ITEM: Final[Json] = {
    "id": "i_1",
    "name": "f",
    "action": {"commands": ["ls"]},
    "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
}
"""Fields of the items of all kinds whose events have any."""
FIELDS: Final[Json] = {
    "result": "AA==",
    "background": "auto",
    "output_format": "png",
    "quality": "low",
    "size": "auto",
}
"""Fields of an unfinished item."""


def words(annotation: Any) -> Iterator[str]:
    """Yield the strings of a literal, at any depth."""
    for each in get_args(annotation):
        if isinstance(each, str):
            yield each
        else:
            yield from words(each)


def types(union: Any) -> set[str]:
    """Return the values of `type` in a union of dictionaries."""
    return {word for member in get_args(union) for word in words(get_type_hints(member)["type"])}


def event_types(union: Any) -> set[str]:
    """Return the event types in a union of models."""
    inner = get_args(union)
    members = get_args(inner[0]) or inner
    return {word for member in members for word in words(member.model_fields["type"].annotation)}


def events_of(form: ItemForm) -> list[Json]:
    """Return an event of each type that belongs to an item of this form, with the number 7."""
    streamed, details, partial = form.streamed, form.details, form.partial
    return [
        *(stage(7, "i_1", 0) for stage in form.stages.values()),
        *([partial.event(7, "i_1", 0, 1, FIELDS)] if partial else ()),
        *([streamed.delta(7, "i_1", 0, "a"), streamed.done(7, ITEM, 0, "a")] if streamed else ()),
        *(event | {"sequence_number": 7} for event in (details.events(0, ITEM, 0) if details else ())),
    ]


def events_of_kinds() -> list[Json]:
    """Return an event of each type that belongs to one kind of item."""
    forms = [kind.form for kind in ITEM_KINDS.values() if isinstance(kind.form, ItemForm)]
    return [event for form in forms for event in events_of(form)]


@cache
def own_tools() -> frozenset[str]:
    """Return the types of tools that the package lacks."""
    return frozenset(TOOL_TYPES.keys() - types(ToolParam))


@cache
def _own_kinds() -> dict[str, ItemKind]:
    known = types(ResponseInputItemParam)
    kinds = [kind for each in KINDS_OF_FEATURES for kind in each.items]
    return {kind.form.type: kind for kind in kinds if kind.form.type not in known}


@cache
def own_events() -> dict[str, Json]:
    """Return an event of each type that the package lacks, by its type."""
    forms = [kind.form for kind in _own_kinds().values() if isinstance(kind.form, ItemForm)]
    known = event_types(ResponseStreamEvent)
    return {event["type"]: event for form in forms for event in events_of(form) if event["type"] not in known}


OWN_RESPONSE_FIELDS: Final = frozenset(ECHOED.keys() - Response.model_fields.keys())
"""Fields of a request that a response repeats, and that the package's type of a response lacks."""


def own_problem(value: Json) -> str | None:
    """Return what is wrong with a tool, item or event that the package lacks, by what its feature says of it.

    Raises:
        KeyError: there is no such tool, item or event here.
    """
    name = value["type"]
    if name in own_tools():
        return _refusal(TOOL_TYPES[name].declaration, value)
    if name in _own_kinds():
        check = _own_kinds()[name].check
        return _refusal(check, value) if check else None
    wrong = value.keys() ^ own_events()[name].keys()
    return f"not the keys of this event: {', '.join(sorted(wrong))}" if wrong else None


def _refusal(check: Callable[[Json, Location], Any], value: Json) -> str | None:
    fields = {name: member for name, member in value.items() if name != "type" and member is not None}
    try:
        check(fields, Location("", RequestLimits(), refuse_unknown=True))
    except ApiError as error:
        return error.message
    return None
