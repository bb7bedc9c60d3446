"""The parts of the chat requests of the checks that are the same for every model."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import Any, Final

from ...core.types import Json

LIMIT: Final = "max_completion_tokens"
SHORT: Final = 32
"""Tokens of a short answer."""
LONG: Final = 512
"""Tokens of a call or of JSON: a model may reason first."""
FEW: Final = 8
"""Tokens of an answer that has to be cut."""
SPEED: Final = 64
"""Tokens of an answer whose speed is measured."""
TOGETHER: Final = 3
"""Number of answers at the same time."""

COLOR: Final[Json] = {"type": "string", "enum": ["red", "blue"]}
PAINT: Final[Json] = {
    "type": "object",
    "properties": {"color": COLOR},
    "required": ["color"],
    "additionalProperties": False,
}
"""The schema of the tool `paint`, and of answers."""
_HEIGHT: Final[Json] = {"type": "object", "properties": {"unit": {"type": "string"}}, "required": ["unit"]}
_ODD: Final[Json] = {
    "type": "object",
    "properties": {
        "color": {"$ref": "#/$defs/color"},
        "day": {"type": "string", "format": "date", "pattern": "^[0-9-]+$"},
        "layers": {"type": "integer", "exclusiveMinimum": 0, "multipleOf": 2},
    },
    "required": ["color"],
    "$defs": {"color": COLOR},
}
"""A schema with what grammar compilers refuse."""


def says(role: str, content: Any) -> Json:
    """Return a message."""
    return {"role": role, "content": content}


HELLO: Final = says("user", "Say hello to Ada in one sentence.")
COUNT: Final = says("user", "Count from 1 to 200 in words, and write nothing else.")


def tool(name: str, description: str, parameters: Json, **more: Any) -> Json:
    """Return a function that a model can call."""
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters, **more},
    }


BRUSH: Final = tool("paint", "Paint the wall in a color.", PAINT)
STRICT_BRUSH: Final = tool("paint", "Paint the wall in a color.", PAINT, strict=True)
ODD_BRUSH: Final = tool("paint", "Paint the wall in a color.", _ODD)
RULER: Final = tool("measure", "Measure the wall.", _HEIGHT)
ASKED_TO_PAINT: Final = says("user", "Paint the wall red with the tool 'paint'.")

CALL_ID: Final = "call_0123456789abcdefghijklmnopqrstuv"
"""An id as clients have them: longer than nine characters, and not of letters and digits alone."""
RESULTS: Final = (
    ASKED_TO_PAINT,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": CALL_ID, "type": "function", "function": {"name": "paint", "arguments": '{"color":"red"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": CALL_ID, "content": "The wall is red now."},
)
"""A call and its output."""

JSON_SCHEMA: Final[Json] = {"type": "json_schema", "json_schema": {"name": "paint", "schema": PAINT, "strict": True}}
JSON_OBJECT: Final[Json] = {"type": "json_object"}
ASKED_FOR_JSON: Final = says("user", 'Which color has blood? Answer with JSON such as {"color": "blue"}.')
HINTS: Final[Json] = {
    "prompt_cache_key": "doctor",
    "safety_identifier": "doctor",
    "service_tier": "auto",
    "user": "doctor",
    "verbosity": "medium",
}
SAMPLING: Final[Json] = {"temperature": 0.5, "top_p": 0.9, "frequency_penalty": 0.1, "presence_penalty": 0.1}
CACHED: Final = says("user", f"{'The wall is red and the door is blue. ' * 150}Which color has the door?")
"""A prompt of about 1,500 tokens: servers do not keep shorter ones."""


def image() -> str:
    """Return the data URL of a red picture of 64 by 64 pixels."""
    rows = (b"\0" + b"\xe0\x10\x10" * 64) * 64
    header = struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0)
    chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")
    return f"data:image/png;base64,{b64encode(b'\x89PNG\r\n\x1a\n' + chunks).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
