"""Secrets in the declarations of tools: which there are, and the declaration without them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final
from urllib.parse import urlsplit

from ..core.types import Json
from ..items.registry import HOSTED_TOOL_NAMES, TOOL_TYPES

_SECRETS: Final = ("authorization", "headers")

_PLAIN_PATH: Final = re.compile(r"(/([a-z][a-z_.-]{0,15}|v\d{1,2}))*/?")
"""Words and versions, such as `/api/v1/mcp`. Any other path may contain a secret that gives access to the server."""


def without_secrets(tool: Json) -> Json:
    """Return the declaration of an MCP server as its user may see it again: without secrets and without the path."""
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
    secrets = {
        str(position): {name: tool[name] for name in names if name in tool}
        for position, (tool, names) in enumerate(zip(tools, hidden, strict=True))
    }
    public = [
        {name: tool[name] for name in tool if name not in names} for tool, names in zip(tools, hidden, strict=True)
    ]
    return public, {position: secret for position, secret in secrets.items() if secret}


def join_secrets(tools: Sequence[Json], secrets: Mapping[str, Json]) -> list[Json]:
    """Return the tools with their secrets restored."""
    return [tool | secrets.get(str(position), {}) for position, tool in enumerate(tools)]


def _secret_fields(tool: Json) -> Collection[str]:
    """Return the fields of a tool that are stored sealed."""
    if tool["type"] == "mcp":
        return (*_SECRETS, "server_url")
    known = TOOL_TYPES.get(HOSTED_TOOL_NAMES.get(tool["type"], ""))
    return known.secret_fields(tool) if known else ()


def _without_path(url: str) -> str:
    """Return the URL with the part after the host redacted, since it often grants access."""
    parts = urlsplit(url)
    rest = "/<redacted>" if parts.path.strip("/") or parts.query else ""
    return f"{parts.scheme}://{parts.netloc}{rest}"
