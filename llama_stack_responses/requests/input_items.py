"""The items of a request's `input`, normalized to the form in which they are stored.

Clients send the same item in many ways: a bare string, a message without its type, an assistant's text as `input_text`,
a reasoning item with nulls. In the normal form, every item has its `type`, a message's content is a list of parts, and
there are only keys that OpenAI declares. Normalizing is idempotent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..core.errors import bad_request
from ..core.item_fields import ID, OWN_ID
from ..core.shapes import (
    DEFAULT_LIMITS,
    Check,
    Location,
    RequestLimits,
    an_object,
    any_of,
    array,
    check_json,
    invalid,
    invalid_type,
    missing,
    object_of,
    schema_of,
    tagged,
    takes,
)
from ..items.kinds.codex import CONTEXT_COMPACTION
from ..items.kinds.compaction import COMPACTION
from ..items.kinds.message import message, one_text
from ..items.registry import ITEM_KINDS, JOINABLE
from .item_tools import CARRIER_ITEMS

TRIGGER: Final = "compaction_trigger"
"""The type of an input's last item that requests a compaction of the conversation."""


def parse_input(value: Any, limits: RequestLimits = DEFAULT_LIMITS) -> list[dict[str, Any]]:
    """Return the items of an `input`, in the form in which they are stored.

    Args:
        value: a decoded JSON value: a string, which means one user message, or an array of items.

    Raises:
        ApiError: 400; `param` is the path of the invalid value, such as `input[3].content[0].type`.
    """
    check_json(value)
    return check_input(value, Location("input", limits))


def check_input(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check and normalize an `input` that has passed `check_json`."""
    if isinstance(value, str):
        return [{"type": "message", "role": "user", "content": one_text("input_text", value, at)}]
    if not isinstance(value, list):
        raise invalid_type(value, at, "one of a string or an array of input items")
    items: list[dict[str, Any]] = array(_item)(value, at)
    for position, item in enumerate(items[:-1]):
        if item["type"] == TRIGGER:
            raise invalid(at.index(position), "a 'compaction_trigger' must be the last item of the input.")
    return items


def check_ids(history: Iterable[Mapping[str, Any]], items: Iterable[Mapping[str, Any]], param: str = "input") -> None:
    """Raise a 400 that names `param` if one of `items` has the id of an earlier item of `history` or `items`."""
    known = {item.get("id") for item in history}
    for item in items:
        if (item_id := item.get("id")) is None:
            continue
        if item_id in known:
            message = f"Duplicate item found with id {item_id}. Remove duplicate items from your input and try again."
            raise bad_request(message, param)
        known.add(item_id)


# Items

_ITEMS: Final[Mapping[str, Check]] = {
    **{name: kind.check for name, kind in ITEM_KINDS.items() if kind.check},
    **CARRIER_ITEMS,
    TRIGGER: object_of({"id": OWN_ID}),
    "item_reference": object_of({"id": ID}, "id"),
}
"""Checks of the items that this server supports, by type."""


def _joined_later(check: Check) -> Check:
    """Return the check for an output whose `call_id` may be absent, null or empty if the limits do not require it."""

    @takes(schema_of(check))
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        members = an_object(value, at)
        if at.limits.call_ids_required or members.get("call_id"):
            checked: dict[str, Any] = check(members, at)
            return checked
        checked = check({**members, "call_id": "call"}, at)
        del checked["call_id"]
        return checked

    return check_it


_TYPED_ITEM: Final = tagged(
    {kind: _joined_later(check) if kind in JOINABLE else check for kind, check in _ITEMS.items()}
)


@takes(any_of(schema_of(_TYPED_ITEM), schema_of(message), {"type": "object", "required": ["id"]}))
def _item(value: Any, at: Location) -> dict[str, Any]:
    members = an_object(value, at)
    if members.get("type") is None:
        members = {**members, "type": _implied_type(members, at)}
    if members["type"] == CONTEXT_COMPACTION and members.get("encrypted_content"):
        members = {**members, "type": COMPACTION}
    item: dict[str, Any] = _TYPED_ITEM(members, at)
    if item.get("id") == "":
        del item["id"]
    return item


def _implied_type(members: dict[str, Any], at: Location) -> str:
    """Return the type of an item without one: with a role it is a message, with only an id a reference."""
    names = {name for name, member in members.items() if member is not None}
    if "role" in names:
        return "message"
    if names == {"id"}:
        return "item_reference"
    raise missing(at.key("type"))


ITEMS_SCHEMA: Final = schema_of(array(_item))
"""JSON Schema of an array of items."""

INPUT_SCHEMA: Final = any_of({"type": "string"}, ITEMS_SCHEMA)
"""JSON Schema of what `check_input` accepts."""
