"""Messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.item_fields import ID, OWN_ID, STATUS, TEXT
from ...core.shapes import (
    Check,
    Location,
    Schema,
    any_of,
    array,
    integer,
    invalid_type,
    number,
    object_of,
    one_of,
    schema_of,
    tagged,
    takes,
)
from ..content_parts import INPUT_PARTS
from ..form import ItemType
from ..kind import ItemKind
from ..view import MessageView, Shown, objects

_ROLE: Final = one_of("user", "assistant", "system", "developer")
_INDEX: Final = integer(0)


def one_text(kind: str, value: str, at: Location) -> list[dict[str, Any]]:
    """Check a text, and return the content that it stands for: one part of this type."""
    part = {"type": kind, "text": TEXT(value, at)}
    return [{**part, "annotations": []} if kind == "output_text" else part]


def content_of(text_kind: str, part: Check) -> Check:
    """Return a check for a message's content, a string or an array of parts, normalized to parts."""
    parts = array(part)

    @takes(any_of({"type": "string"}, schema_of(parts)))
    def check(value: Any, at: Location) -> list[dict[str, Any]]:
        if isinstance(value, str):
            return one_text(text_kind, value, at)
        if not isinstance(value, list):
            raise invalid_type(value, at, "one of a string or an array of objects")
        checked: list[dict[str, Any]] = parts(value, at)
        return checked

    return check


_ANNOTATIONS: Final[Mapping[str, Check]] = {
    "file_citation": object_of({"file_id": ID, "filename": TEXT, "index": _INDEX}, "file_id", "filename", "index"),
    "url_citation": object_of(
        {"url": TEXT, "title": TEXT, "start_index": _INDEX, "end_index": _INDEX},
        "url",
        "title",
        "start_index",
        "end_index",
    ),
    "container_file_citation": object_of(
        {"container_id": ID, "file_id": ID, "filename": TEXT, "start_index": _INDEX, "end_index": _INDEX},
        "container_id",
        "file_id",
        "filename",
        "start_index",
        "end_index",
    ),
    "file_path": object_of({"file_id": ID, "index": _INDEX}, "file_id", "index"),
}

_TOKEN: Final[Mapping[str, Check]] = {"token": TEXT, "bytes": array(integer(0, 255)), "logprob": number()}

_LOGPROB: Final = object_of(
    {**_TOKEN, "top_logprobs": array(object_of(_TOKEN, *_TOKEN))},
    *_TOKEN,
    "top_logprobs",
)

_OUTPUT_TEXT: Final = object_of(
    {"text": TEXT, "annotations": array(tagged(_ANNOTATIONS)), "logprobs": array(_LOGPROB)},
    "text",
    defaults={"annotations": []},
)

_SPOKEN_PARTS: Final[Mapping[str, Check]] = {
    "output_text": _OUTPUT_TEXT,
    "refusal": object_of({"refusal": TEXT}, "refusal"),
}
_SPOKEN_PART: Final = tagged(_SPOKEN_PARTS)


@takes(schema_of(tagged({**_SPOKEN_PARTS, "input_text": _OUTPUT_TEXT})))
def _assistant_part(value: Any, at: Location) -> dict[str, Any]:
    """Check a part of an assistant's message. Many clients send back all text as `input_text`."""
    if isinstance(value, dict) and value.get("type") == "input_text":
        value = {**value, "type": "output_text"}
    part: dict[str, Any] = _SPOKEN_PART(value, at)
    return part


_MESSAGE: Final = object_of(
    {
        "id": OWN_ID,
        "role": _ROLE,
        "content": content_of("input_text", tagged(INPUT_PARTS)),
        "status": STATUS,
    },
    "content",
)

_ASSISTANT_MESSAGE: Final = object_of(
    {
        "id": OWN_ID,
        "role": _ROLE,
        "content": content_of("output_text", _assistant_part),
        "phase": one_of("commentary", "final_answer"),
        "status": STATUS,
    },
    "content",
)

_MESSAGES: Final[Mapping[str, Check]] = {
    "user": _MESSAGE,
    "assistant": _ASSISTANT_MESSAGE,
    "system": _MESSAGE,
    "developer": _MESSAGE,
}
"""Checks of messages, by role."""

_WITH_ROLE: Final = object_of({"role": _ROLE}, "role")


def _message_schema(check: Check, *roles: str) -> Schema:
    schema = schema_of(check)
    return {
        **schema,
        "properties": {**schema["properties"], "role": schema_of(one_of(*roles))},
        "required": ["role", "content"],
    }


@takes(
    any_of(_message_schema(_MESSAGE, "user", "system", "developer"), _message_schema(_ASSISTANT_MESSAGE, "assistant"))
)
def message(value: Any, at: Location) -> dict[str, Any]:
    """Check a message."""
    role = _WITH_ROLE(value, at)["role"]
    checked: dict[str, Any] = _MESSAGES[role](value, at)
    return checked


def shown_parts(item: Shown) -> list[Shown]:
    """Return the content parts of a message."""
    content = item.get("content")
    return objects([{"type": "input_text", "text": content}] if isinstance(content, str) else content)


KINDS: Final = (
    ItemKind(
        ItemType("message", "msg"),
        message,
        written={"content": ("text", "refusal")},
        view=MessageView(shown_parts),
        includable=("message.input_image.image_url", "message.output_text.logprobs"),
    ),
)
