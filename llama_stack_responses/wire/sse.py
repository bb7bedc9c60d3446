"""Server-sent events as bytes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import orjson

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


def encode(events: Iterable[dict[str, Any]]) -> bytes:
    """The frames of several events as one piece: `event:` with the type, `data:` with the JSON."""
    return b"".join([b"event: %b\ndata: %b\n\n" % (event["type"].encode(), dumps(event)) for event in events])


def dumps(value: Any) -> bytes:
    """JSON. A lone surrogate, which a server can send when it cuts a character in two, is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()
