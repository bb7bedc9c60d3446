"""The parts of a chat request that a model server may refuse, alone or together.

A part has a name. The value of a parameter, an image and the declared tools are parts of their own, so that what is
said of one value is told apart from what is said of all: they are named by a digest, never by what a user has sent.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from ...core.types import Json
from .message_edits import INSTRUCTING, MEDIA, parts_of
from .parameters import HINTS, LIMITS

_UNNAMED: Final = frozenset({"messages", "model", "n", *HINTS, *LIMITS})
"""Members of a request that no other part is refused with."""
_CAPABILITIES: Final = frozenset({"image_url", "input_audio", "reasoning_effort", "response_format", "tools"})
"""Parts that models are often said not to have together."""
_OF_TOOLS: Final = frozenset({"parallel_tool_calls", "tool_choice"})
"""Parameters that mean nothing without tools."""
_MAX_MEDIA: Final = 16
"""Images and recordings of a request that are told apart: the newest."""
_DIGEST_BYTES: Final = 6
_ENDS: Final = 64
"""Characters at the beginning and at the end by which images and recordings are told apart, and by their lengths."""
_DATA: Final = ("url", "data", "file_data", "file_id")


def request_parts(chat: Json) -> frozenset[str]:
    """Return the names of the parts of a chat request: a parameter, a role, a type of media, and digests of values."""
    return frozenset((*_of_parameters(chat), *_of_messages(chat["messages"])))


def named(parts: frozenset[str]) -> list[str]:
    """Return the names of parts without those that are digests of values, in order."""
    return sorted(each for each in parts if "=" not in each)


def values_of(parts: frozenset[str]) -> frozenset[str]:
    """Return the parts that are digests of values."""
    return frozenset(each for each in parts if "=" in each)


def may_be_together(chat: Json, changed: Json) -> bool:
    """Return whether a server that refuses a request may refuse two of its parts together.

    Args:
        chat: the request.
        changed: what it takes instead.
    """
    before, after = request_parts(chat), request_parts(changed)
    own = {each.partition("=")[0] for each in before ^ after}
    others = _CAPABILITIES & before - own
    return bool(others - {"tools"} if own & _OF_TOOLS else others)


def _of_parameters(chat: Json) -> Iterator[str]:
    for name, value in chat.items():
        if name in _UNNAMED or value is None or value == "auto" or (name == "stream" and not value):
            continue
        yield name
        if name != "stream":
            yield f"{name}={_digest(json.dumps(value, sort_keys=True, default=str))}"
    if any(_is_strict(tool) for tool in chat.get("tools") or ()):
        yield "strict"


def _is_strict(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and bool(function.get("strict"))


def _of_messages(messages: list[Json]) -> set[str]:
    found, media = set[str](), deque[str](maxlen=_MAX_MEDIA)
    for message in messages:
        if message["role"] in INSTRUCTING:
            found.add(message["role"])
        if message.get("tool_calls"):
            found.add("calls")
        content = message.get("content")
        for part in parts_of(content) if isinstance(content, list) else ():
            if (kind := part.get("type")) in MEDIA:
                found.add(kind)
                media.append(f"{kind}={_digest(_mark(part.get(kind)))}")
    return found | set(media)


def _mark(held: Any) -> str:
    """Return what tells an image, a recording or a file apart."""
    data = next((held[name] for name in _DATA if name in held), "") if isinstance(held, dict) else held
    text = data if isinstance(data, str) else ""
    return f"{len(text)} {text[:_ENDS]} {text[-_ENDS:]}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=_DIGEST_BYTES).hexdigest()
