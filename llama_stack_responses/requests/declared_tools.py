"""The tools that a request declares, its `tool_choice`, and what the response repeats of the tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ..core.errors import bad_request
from ..core.shapes import (
    Check,
    Location,
    an_object,
    any_of,
    array,
    check_count,
    excerpt,
    invalid,
    invalid_type,
    object_of,
    one_of,
    schema_of,
    tagged,
    takes,
)
from ..core.types import Json
from ..items.mcp_approvals import Approval
from ..items.registry import HOSTED_TOOL_NAMES, TOOL_TYPES
from .client_tools import (
    CLIENT_CHOICES,
    CLIENT_TOOL_NAMES,
    CLIENT_TOOLS,
    COMPUTER_TYPES,
    check_names,
)
from .mcp_tool import MCP_CHOICE, MCP_TOOL, check_labels
from .tool_secrets import holds_secrets, without_secrets

_KNOWN_TOOLS: Final[Mapping[str, Check]] = {
    **CLIENT_TOOLS,
    "mcp": MCP_TOOL,
    **{name: TOOL_TYPES[of].declaration for name, of in HOSTED_TOOL_NAMES.items() if of in TOOL_TYPES},
}
_TOOLS: Final[Mapping[str, Check]] = {
    **_KNOWN_TOOLS,
    # A stack without the feature refuses the tool, or leaves it out: `requests/unavailable_tools.py`.
    **{name: an_object for name in HOSTED_TOOL_NAMES if name not in _KNOWN_TOOLS},
}
"""Checks of tools, by type."""

_TOOL_LIST: Final = array(tagged(_TOOLS))


@takes(schema_of(_TOOL_LIST))
def tools(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check the `tools` of a request; names and labels must be distinct."""
    declared: list[dict[str, Any]] = _TOOL_LIST(value, at)
    if at.limits.bounded:
        _check_number(declared, at)
    check_names(declared, at)
    check_labels(declared, at)
    return declared


NAMED_TOOLS: Final = frozenset({"function", "custom", "namespace", "mcp"})
"""The types of tools that a request distinguishes by a name or a label."""

_SINGLE: Final = ("tool_search", *(tool.type for tool in TOOL_TYPES.values() if tool.single))
"""The types of which a request can have one tool."""


def _check_number(declared: list[dict[str, Any]], at: Location) -> None:
    """Raise a 400 for too many tools, in all or of a kind."""
    max_tools, max_servers, max_unnamed = at.limits.max_tools, at.limits.max_mcp_servers, at.limits.max_unnamed_tools
    check_count(declared, at, max_tools)
    functions = sum(map(_functions, declared))
    if functions > max_tools:
        why = f"too many tools. Expected at most {max_tools} in all namespaces, but got {functions} instead."
        raise invalid(at, why, "array_above_max_length")
    servers = sum(tool["type"] == "mcp" for tool in declared)
    if servers > max_servers:
        why = f"too many MCP servers. Expected at most {max_servers}, but got {servers} instead."
        raise invalid(at, why, "array_above_max_length")
    unnamed = [number for number, tool in enumerate(declared) if tool["type"] not in NAMED_TOOLS]
    for single in _SINGLE:
        same = [number for number in unnamed if declared[number]["type"] == single]
        if len(same) > 1:
            path = at.index(same[1]).key("type").path
            raise bad_request(f"A response can have one tool of the type '{single}'.", path)
    if len(unnamed) > max_unnamed:
        path = at.index(unnamed[max_unnamed]).key("type").path
        message = f"Too many tools without a name of their own: a response can have {max_unnamed}."
        raise bad_request(message, path, "array_above_max_length")


def _functions(tool: Mapping[str, Any]) -> int:
    """Return how many tools an entry of `tools` counts as: a namespace counts as those in it."""
    return len(tool["tools"]) if tool["type"] == "namespace" else 1


def carried_tools(value: Any, at: Location) -> list[dict[str, Any]]:
    """Check the `tools` of an item, which is stored unchanged and must not contain secrets."""
    carried = tools(value, at)
    for position, tool in enumerate(carried):
        if holds_secrets(tool):
            why = "it contains credentials, and items are stored. Send it in the 'tools' of the request."
            raise invalid(at.index(position), why)
    return carried


_HOSTED_NAMES: Final[Mapping[str, Check]] = {
    **dict.fromkeys(HOSTED_TOOL_NAMES, object_of({})),
    "mcp": MCP_CHOICE,
    **{name: TOOL_TYPES[of].choice for name, of in HOSTED_TOOL_NAMES.items() if of in TOOL_TYPES},
}
"""Checks of a `tool_choice` of a tool that the server runs, by the tool's type."""

_TOOL_NAMES: Final[Mapping[str, Check]] = {**CLIENT_TOOL_NAMES, **_HOSTED_NAMES}
"""Checks of an entry in a list of allowed tools, by the tool's type."""

_KINDS: Final = {**HOSTED_TOOL_NAMES, **dict.fromkeys(COMPUTER_TYPES, "computer")}
"""The common name of tools that have several type names, by type."""

_CHOICE_MODE: Final = one_of("none", "auto", "required")

_CHOICES: Final[Mapping[str, Check]] = {
    **CLIENT_CHOICES,
    **_HOSTED_NAMES,
    "allowed_tools": object_of(
        {
            "mode": one_of("auto", "required"),
            "tools": array(tagged(_TOOL_NAMES), low=1),
        },
        "mode",
        "tools",
    ),
}
"""Checks of the objects of `tool_choice`, by type; modes are strings."""

_CHOICE: Final = tagged(_CHOICES)


@takes(any_of(schema_of(_CHOICE_MODE), schema_of(_CHOICE)))
def tool_choice(value: Any, at: Location) -> str | dict[str, Any]:
    """Check the `tool_choice` of a request: a string, or an object."""
    if not isinstance(value, str | dict):
        raise invalid_type(value, at, "one of a string or an object")
    choice: str | dict[str, Any] = (_CHOICE_MODE if isinstance(value, str) else _CHOICE)(value, at)
    return choice


def check_choice(choice: str | dict[str, Any], declared: list[dict[str, Any]]) -> None:
    """Raise a 400 unless the request declares the tools that a choice names."""
    if isinstance(choice, str):
        if choice == "required" and not declared:
            message = "Tool choice 'required' must be specified with 'tools' parameter."
            raise bad_request(message, "tool_choice")
        return
    known = {identity for tool in declared for identity in _identities(tool)}
    for choice_entry in choice["tools"] if choice["type"] == "allowed_tools" else [choice]:
        if known.isdisjoint(_identities(choice_entry)):
            name = excerpt(choice_entry.get("server_label") or choice_entry.get("name") or choice_entry["type"])
            message = f"Tool choice '{name}' not found in 'tools' parameter."
            raise bad_request(message, "tool_choice")


def _identities(entry: dict[str, Any]) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield what identifies a tool in its declaration and in a choice; a choice may omit the tool's namespace."""
    if entry["type"] == "mcp":
        yield "mcp", entry["server_label"], None
        return
    yield _KINDS.get(entry["type"], entry["type"]), entry.get("name"), entry.get("namespace")
    for tool in entry.get("tools", ()):
        yield tool["type"], tool["name"], entry["name"]
        yield tool["type"], tool["name"], None


def echoed_tool(tool: Json, require_approval: Approval = "always") -> Json:
    """Return a request's tool as the response repeats it.

    A function has a `description`, which may be null. An MCP server has its address without the path, and no secret.
    """
    match tool:
        case {"type": "function"}:
            return {"description": None, **tool}
        case {"type": "mcp"}:
            public = without_secrets(tool)
            return {"allowed_tools": None, "headers": None, "require_approval": require_approval, **public}
    of_feature = TOOL_TYPES.get(HOSTED_TOOL_NAMES.get(tool["type"], ""))
    return without_secrets(of_feature.echoed(tool)) if of_feature else tool
