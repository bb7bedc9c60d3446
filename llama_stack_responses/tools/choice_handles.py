"""Handles: what an entry of a `tool_choice` may refer to."""

from __future__ import annotations

from ..core.types import Json


def handle_of(entry: Json) -> str:
    """Return what selects the tools that an entry of a `tool_choice` may refer to: its type, and the name in it."""
    return handle(entry["type"], entry.get("server_label") or entry.get("name"))


def handle(kind: str, name: str | None = None) -> str:
    """Return the handle of the entries with this type and this name or label."""
    return kind if name is None else f"{kind}/{name}"
