"""Reasoning of the model."""

from __future__ import annotations

from typing import Any, Final

from ...core.item_fields import OWN_ID, STATUS, TEXT
from ...core.shapes import Check, Location, any_of, array, data, object_of, one_of, schema_of, takes
from ..form import ItemType
from ..kind import ItemKind
from ..view import ReasoningView, Shown, objects


def _reasoning_texts(kind: str) -> Check:
    """Return a check for reasoning text or its summary, normalized to parts of this kind.

    It accepts a string, or an array of strings and of parts of this kind or of type `text`, so text that some clients
    flatten is stored in one form.
    """
    part = object_of({"type": one_of(kind, "text"), "text": TEXT}, "text")

    @takes(any_of({"type": "string"}, schema_of(part)))
    def check(value: Any, at: Location) -> dict[str, Any]:
        checked = part({"text": value} if isinstance(value, str) else value, at)
        return {"type": kind, "text": checked["text"]}

    several = array(check)

    @takes(any_of({"type": "string"}, schema_of(several)))
    def check_all(value: Any, at: Location) -> list[dict[str, Any]]:
        checked: list[dict[str, Any]] = several(list(filter(None, [value])) if isinstance(value, str) else value, at)
        return checked

    return check_all


_REASONING: Final = object_of(
    {
        "id": OWN_ID,
        "summary": _reasoning_texts("summary_text"),
        "content": _reasoning_texts("reasoning_text"),
        "encrypted_content": data,
        "status": STATUS,
    },
    defaults={"summary": []},
)


def _parts(item: Shown) -> list[Shown]:
    return [*objects(item.get("summary")), *objects(item.get("content"))]


KINDS: Final = (
    ItemKind(
        ItemType("reasoning", "rs"),
        _REASONING,
        view=ReasoningView(_parts, "encrypted_content"),
        written={"content": ("text",), "summary": ("text",)},
        includable=("reasoning.encrypted_content",),
    ),
)
