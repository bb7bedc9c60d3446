"""Calls of MCP servers, as the model sees them: the function's name, and the text of an error."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Final

from .types import Json

_NAME_CHARACTERS: Final = 64
"""Maximum characters of a function name that every model server accepts."""


def qualified_name(server_label: str, name: str) -> str:
    """Return the name by which the model calls a server's tool: unique and stable.

    It is `label__name` if that is a valid, unambiguous function name; otherwise as much of it as fits, followed by a
    digest.
    """
    plain = f"{server_label}__{name}"
    fitting = re.sub("[^a-zA-Z0-9_-]", "_", plain)
    unambiguous = "__" not in server_label and not server_label.endswith("_")
    if fitting == plain and len(plain) <= _NAME_CHARACTERS and unambiguous:
        return plain
    digest = sha256(f"{server_label}\0{name}".encode()).hexdigest()[:10]
    return f"{fitting[: _NAME_CHARACTERS - len(digest) - 1]}-{digest}"


def error_text(error: Json) -> str:
    """Return the text of the `error` of an `mcp_call`, for the model."""
    if error["type"] != "mcp_tool_execution_error":
        return str(error["message"])
    content = error["content"]
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in parts)
