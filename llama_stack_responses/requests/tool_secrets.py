"""Secrets in the declarations of tools: which there are, and the declaration without them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any, Final
from urllib.parse import urlsplit

from ..core.types import Json
from ..items.registry import HOSTED_TOOL_NAMES, TOOL_TYPES

_SECRETS: Final = ("authorization", "headers")

SECRETS: Final[Mapping[str, Sequence[Sequence[str]]]] = {
    "mcp": (*((name,) for name in _SECRETS), ("server_url",)),
    **{name: TOOL_TYPES[of].secrets for name, of in HOSTED_TOOL_NAMES.items() if of in TOOL_TYPES},
}
"""The paths of what is secret, or may be, in a declaration, by its type; a path leads through each entry of a list."""

_PLAIN_PATH: Final = re.compile(r"(/([a-z][a-z_.-]{0,15}|v\d{1,2}))*/?")
"""Words and versions, such as `/api/v1/mcp`. Any other path may contain a secret that gives access to the server."""


def without_secrets(tool: Json) -> Json:
    """Return a declaration as its user may see it again: without secrets, and without the path of an MCP server."""
    if tool["type"] != "mcp":
        return reduce(_emptied, SECRETS.get(tool["type"], ()), tool)
    public = {name: value for name, value in tool.items() if name not in _SECRETS}
    if "server_url" in public:
        public["server_url"] = _without_path(public["server_url"])
    return public


def holds_secrets(tool: Json) -> bool:
    """Return whether a request's tool contains, or may contain, secrets, which must not be stored in plain text."""
    if tool["type"] != "mcp":
        return bool(_secret_fields(tool))
    url = urlsplit(tool.get("server_url") or "")
    return any(tool.get(name) for name in _SECRETS) or bool(url.query) or not _PLAIN_PATH.fullmatch(url.path)


def split_secrets(tools: Sequence[Json]) -> tuple[list[Json], dict[str, Json]]:
    """Split the secrets from the tools, by position in the list; `join_secrets` is the inverse."""
    hidden = [_secret_fields(tool) for tool in tools]
    public = [
        {name: tool[name] for name in tool if name not in names} for tool, names in zip(tools, hidden, strict=True)
    ]
    secrets = {str(at): {name: tools[at][name] for name in names} for at, names in enumerate(hidden) if names}
    return public, secrets


def join_secrets(tools: Sequence[Json], secrets: Mapping[str, Json]) -> list[Json]:
    """Return the tools with their secrets restored."""
    return [tool | secrets.get(str(position), {}) for position, tool in enumerate(tools)]


def _secret_fields(tool: Json) -> Collection[str]:
    """Return the fields of a tool that are stored sealed."""
    return [path[0] for path in SECRETS.get(tool["type"], ()) if _has(tool, path)]


def _has(value: Any, path: Sequence[str]) -> bool:
    """Return whether a value has a member at a path."""
    if isinstance(value, list):
        return any(_has(each, path) for each in value)
    return not path or (isinstance(value, dict) and path[0] in value and _has(value[path[0]], path[1:]))


def _emptied(value: Any, path: Sequence[str]) -> Any:
    """Return a value with an empty text at a path, where it has a member there."""
    if isinstance(value, list):
        return [_emptied(each, path) for each in value]
    if not path:
        return ""
    if not isinstance(value, dict) or path[0] not in value:
        return value
    return {**value, path[0]: _emptied(value[path[0]], path[1:])}


def _without_path(url: str) -> str:
    """Return the URL with the part after the host redacted, since it often grants access."""
    parts = urlsplit(url)
    rest = "/<redacted>" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{rest}"
