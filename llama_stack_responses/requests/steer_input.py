"""Steering: the user's messages, and the input that a stopped response still needs from the client."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ..core.errors import bad_request
from ..core.types import Json
from ..items.registry import REPLIES, REQUESTS
from .input_items import parse_input

_EVENT: Final = frozenset({"type", "previous_response_id", "input"})
_MESSAGE: Final = frozenset({"type", "role", "content"})
_PARTS: Final = frozenset({"input_text", "input_image", "input_file"})


def check_steer(event: Json) -> None:
    """Raise a 400 unless the event can steer a response.

    Raises:
        ApiError: it has unknown fields, or its input contains more than user messages.
    """
    if extra := sorted(event.keys() - _EVENT):
        raise bad_request(
            f"Unknown parameter: '{extra[0]}'. 'response.steer' takes 'previous_response_id' and 'input'."
        )
    steer_input = event["input"]
    if not steer_input:
        raise bad_request("Invalid 'input': expected a text, or an array with at least one message.", "input")
    if isinstance(steer_input, list):
        for number, item in enumerate(steer_input):
            _check_message(item, f"input[{number}]")
    parse_input(steer_input)


def _check_message(item: Any, path: str) -> None:
    if not isinstance(item, dict) or item.get("type", "message") != "message" or item.get("role") != "user":
        raise bad_request(f"Invalid '{path}': only messages with the role 'user' can steer a response.", path)
    if extra := sorted(item.keys() - _MESSAGE):
        raise bad_request(f"Unknown parameter: '{path}.{extra[0]}'.", f"{path}.{extra[0]}")
    content = item.get("content")
    for number, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict) or part.get("type") not in _PARTS:
            where = f"{path}.content[{number}]"
            raise bad_request(f"Invalid '{where}': expected a part of type {', '.join(sorted(_PARTS))}.", where)


def as_items(steer_input: str | list[Json] | None) -> list[Json]:
    """Return an `input` as an array."""
    return [{"role": "user", "content": steer_input}] if isinstance(steer_input, str) else steer_input or []


def required_input(output: Iterable[Json]) -> list[Json]:
    """Return stubs of the tool outputs and approvals that the client has yet to send for this output."""
    items = list(output)
    replied = {_name(item) for item in items if item["type"] in REPLIES}
    return [stub for item in items if (stub := _stub(item)) and _name(stub) not in replied]


def _name(reply: Json) -> tuple[str, str | None]:
    return reply["type"], reply.get(REPLIES[reply["type"]].names)


def _stub(item: Json) -> Json | None:
    """Return a stub of the client's answer to this item; None if it needs none."""
    if item["type"] not in REQUESTS or item.get("execution") == "server" or item.get("status") == "incomplete":
        return None
    kind, reply = REQUESTS[item["type"]]
    return {"type": kind, reply.names: item[reply.named_by], **{name: item[name] for name in reply.repeats}}
