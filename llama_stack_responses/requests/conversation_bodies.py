"""Conversations in the API: request bodies and response objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..core.errors import ApiError, bad_request, import_hint
from ..core.shapes import (
    Location,
    RequestLimits,
    check_count,
    check_json,
    excerpt,
    invalid,
    invalid_type,
    metadata,
    missing,
)
from ..core.types import Json
from .input_items import TRIGGER, check_input

MAX_ADDED_ITEMS: Final = 20
"""Maximum number of items that one request may add."""


def check_fields(body: Json, *known: str) -> None:
    """Refuse unknown fields of a request, as OpenAI does for responses.

    Raises:
        ApiError: 400 `unknown_parameter`.
    """
    unknown = next((name for name, value in body.items() if name not in known and value is not None), None)
    if unknown is not None:
        raise bad_request(f"Unknown parameter: '{excerpt(unknown)}'.", excerpt(unknown), "unknown_parameter")


def read_items(body: Json, limits: RequestLimits, *, required: bool) -> list[Json]:
    """Return the `items` of a request, in the form in which they are stored.

    Raises:
        ApiError: 400; `param` is the path of the invalid value, such as `items[1].role`.
    """
    at = Location("items", limits)
    items = body.get("items")
    if items is None:
        if required:
            raise missing(at)
        return []
    check_json(items)
    if not isinstance(items, list):
        raise invalid_type(items, at, "an array")
    check_count(items, at, MAX_ADDED_ITEMS)
    checked = check_input(items, at)
    if any(item["type"] == TRIGGER for item in checked):
        raise invalid(
            at, "a 'compaction_trigger' cannot be stored in a conversation: send it in the request for a response."
        )
    return checked


def read_metadata(body: Json, limits: RequestLimits, *, required: bool) -> dict[str, str]:
    """Return the `metadata` of a request; null counts as empty.

    Raises:
        ApiError: 400.
    """
    at = Location("metadata", limits)
    if required and "metadata" not in body:
        raise missing(at)
    pairs = body.get("metadata")
    check_json(pairs)
    return {} if pairs is None else metadata(pairs, at)


def conversation_object(conversation_id: str, created_at: int, pairs: Mapping[str, str]) -> Json:
    """Return a conversation in the form of `openai.types.conversations.Conversation`."""
    return {"id": conversation_id, "object": "conversation", "created_at": created_at, "metadata": dict(pairs)}


def no_conversation(conversation_id: str) -> ApiError:
    """Return the 404 of a conversation that is unknown, deleted, or another user's."""
    return ApiError(404, f"Conversation with id '{conversation_id}' not found.{import_hint(conversation_id)}")


def no_item(item_id: str) -> ApiError:
    """Return the 404 of an item that is not in its conversation."""
    return ApiError(404, f"Item with id '{item_id}' not found in this conversation.")
