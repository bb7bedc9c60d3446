"""MCP servers in a request: the tool and its `tool_choice`."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from ..core.item_fields import NAME
from ..core.shapes import (
    Check,
    Location,
    an_object,
    any_of,
    array,
    boolean,
    invalid,
    invalid_type,
    object_of,
    one_of,
    schema_of,
    string,
    takes,
)

_ADDRESS: Final = string(1, 4096, r"[!-~]+")


@takes(schema_of(_ADDRESS))
def _server_url(value: Any, at: Location) -> str:
    """Check the address of an MCP server. It may contain a secret, so no error message repeats it."""
    url: str = _ADDRESS(value, at)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme not in ("http", "https"):
        raise invalid(at, "it is not an address that begins with 'http://' or 'https://'.")
    if "@" in parts.netloc:
        raise invalid(at, "it contains a user name. Send credentials in 'authorization' or 'headers'.")
    return url


_HEADER_NAME: Final = string(1, 256, r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE: Final = string(0, 16_384, r"[\t\x20-\x7e\x80-\xff]*")
_MAX_HEADERS: Final = 64
_HEADERS_CHARACTERS: Final = 65_536
"""Maximum headers of one MCP server, and their characters. Many take the HTTP client quadratic time."""
_DESCRIPTION_CHARACTERS: Final = 4_096
"""Maximum characters of the description of a server, which the model gets with each tool of the server."""
_OWN_HEADERS: Final = frozenset({"connection", "content-length", "content-type", "host", "transfer-encoding"})


@takes({"type": "object", "maxProperties": _MAX_HEADERS, "additionalProperties": schema_of(_HEADER_VALUE)})
def _headers(value: Any, at: Location) -> dict[str, str]:
    """Check headers for an MCP server. Their values are secrets, so no error message repeats them."""
    headers = an_object(value, at)
    if at.limits.bounded and len(headers) > _MAX_HEADERS:
        why = f"too many headers. Expected at most {_MAX_HEADERS}, but got {len(headers)} instead."
        raise invalid(at, why, "object_above_max_properties")
    for name, text in headers.items():
        _HEADER_NAME(name, at)
        _HEADER_VALUE(text, at.key(name))
        if name.lower() in _OWN_HEADERS:
            raise invalid(at, f"the header '{name}' is set by this server itself.")
    length = sum(len(name) + len(text) for name, text in headers.items())
    if at.limits.bounded and length > _HEADERS_CHARACTERS:
        raise invalid(at, f"the headers are longer than {_HEADERS_CHARACTERS} characters.", "string_above_max_length")
    return headers


_FILTER: Final = object_of({"read_only": boolean, "tool_names": array(string(1, 512))})


_TOOL_NAMES: Final = array(string(1, 512))


@takes(any_of(schema_of(_TOOL_NAMES), schema_of(_FILTER)))
def _allowed_tools(value: Any, at: Location) -> list[str] | dict[str, Any]:
    """Check a list of names, or a filter."""
    if not isinstance(value, list | dict):
        raise invalid_type(value, at, "one of an array of strings or an object")
    allowed: list[str] | dict[str, Any]
    allowed = (_TOOL_NAMES if isinstance(value, list) else _FILTER)(value, at)
    return allowed


_APPROVAL: Final = one_of("always", "never")
_APPROVALS: Final = object_of({"always": _FILTER, "never": _FILTER})


@takes(any_of(schema_of(_APPROVAL), schema_of(_APPROVALS)))
def _require_approval(value: Any, at: Location) -> str | dict[str, Any]:
    """Check a mode for all tools, or an object with a filter for each mode."""
    if not isinstance(value, str | dict):
        raise invalid_type(value, at, "one of a string or an object")
    required: str | dict[str, Any] = (_APPROVAL if isinstance(value, str) else _APPROVALS)(value, at)
    return required


_LABEL: Final = string(1, 256, "[a-zA-Z][a-zA-Z0-9_-]*")

_MEMBERS: Final = object_of(
    {
        "server_label": _LABEL,
        "server_url": _server_url,
        "connector_id": string(1, 256),
        "tunnel_id": string(1, 256),
        "server_description": string(0, _DESCRIPTION_CHARACTERS),
        "authorization": string(1, 16_384, "[!-~]+( [!-~]+)?"),
        "headers": _headers,
        "allowed_tools": _allowed_tools,
        "require_approval": _require_approval,
        "allowed_callers": array(one_of("direct", "programmatic")),
        "defer_loading": boolean,
    },
    "server_label",
)


@takes(schema_of(_MEMBERS))
def _tool(value: Any, at: Location) -> dict[str, Any]:
    """Check an MCP server, given by its URL or as a connector that the operator configured."""
    checked: dict[str, Any] = _MEMBERS(value, at)
    if "tunnel_id" in checked:
        why = "this server does not support tunnels. Send a 'server_url' that it can reach."
        raise invalid(at.key("tunnel_id"), why, "unsupported_value")
    if ("server_url" in checked) == ("connector_id" in checked):
        raise invalid(at, "exactly one of 'server_url' and 'connector_id' must be given.")
    if "authorization" in checked and "authorization" in {name.lower() for name in checked.get("headers", ())}:
        why = "'headers' has the same header. Send only one of the two."
        raise invalid(at.key("authorization"), why, "mutually_exclusive_parameters")
    return checked


MCP_TOOL: Final[Check] = _tool
"""Check of an entry of `tools`."""


def check_labels(declared: list[dict[str, Any]], at: Location) -> None:
    """Raise a 400 unless the labels of MCP servers are distinct."""
    seen: set[str] = set()
    for position, tool in enumerate(declared):
        if tool["type"] == "mcp":
            label = tool["server_label"]
            if label in seen:
                raise invalid(at.index(position).key("server_label"), f"another tool has the label '{label}' already.")
            seen.add(label)


MCP_CHOICE: Final = object_of({"server_label": _LABEL, "name": NAME}, "server_label")
"""Check of a `tool_choice`."""
