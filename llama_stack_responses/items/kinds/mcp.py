"""Calls of MCP servers, lists of their tools, and approvals of calls."""

from __future__ import annotations

import re
from hashlib import sha256
from typing import Any, Final

from ...core.item_fields import ID, NAME, OWN_ID, TEXT
from ...core.shapes import (
    MAX_INTEGER,
    Location,
    an_object,
    any_of,
    anything,
    array,
    boolean,
    integer,
    object_of,
    one_of,
    schema_of,
    tagged,
    takes,
)
from ...core.types import Json
from ..call_result import CUT_OFF, CallResult, failed
from ..form import ItemForm, ItemType, stage_events, streamed_events
from ..kind import ItemKind, Reply
from ..view import ApprovalReplyView, ApprovalView, CallView, Shown, ToolListView, given_arguments, listed_tools

_NAME_CHARACTERS: Final = 64
"""Maximum characters of a function name that every model server accepts."""

_INTERNAL_ERROR: Final = -32603
"""JSON-RPC's code for an internal error."""


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


_LISTED_TOOL: Final = object_of(
    {"name": NAME, "description": TEXT, "input_schema": an_object, "annotations": an_object},
    "name",
    "input_schema",
)

_LIST: Final = object_of(
    {"id": OWN_ID, "server_label": NAME, "tools": array(_LISTED_TOOL), "error": TEXT}, "server_label", "tools"
)

_NUMBERED: Final = object_of({"code": integer(-MAX_INTEGER), "message": TEXT}, "code", "message")

_ERROR: Final = tagged(
    {
        "mcp_protocol_error": _NUMBERED,
        "mcp_tool_execution_error": object_of({"content": anything}, "content"),
        "http_error": _NUMBERED,
    },
)


@takes(any_of(schema_of(TEXT), schema_of(_ERROR)))
def _error(value: Any, at: Location) -> dict[str, Any]:
    """Check a failed call's error. The hosts' own providers send a string, which clients may still have."""
    if isinstance(value, str):
        return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": TEXT(value, at)}]}
    error: dict[str, Any] = _ERROR(value, at)
    return error


_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "server_label": NAME,
        "name": NAME,
        "arguments": TEXT,
        "approval_request_id": ID,
        "output": TEXT,
        "error": _error,
        "status": one_of("in_progress", "completed", "incomplete", "calling", "failed"),
    },
    "server_label",
    "name",
    "arguments",
)

_REQUEST: Final = object_of(
    {"id": ID, "server_label": NAME, "name": NAME, "arguments": TEXT}, "id", "server_label", "name", "arguments"
)

_RESPONSE: Final = object_of(
    {"id": OWN_ID, "approval_request_id": ID, "approve": boolean, "reason": TEXT}, "approval_request_id", "approve"
)


def _protocol_error(message: str) -> Json:
    return {"error": {"type": "mcp_protocol_error", "code": _INTERNAL_ERROR, "message": message}}


MCP_CALL: Final = ItemForm(
    "mcp_call",
    "mcp",
    streamed_events("arguments", "mcp_call_arguments", "{}"),
    stages=stage_events("mcp_call", "in_progress", "completed", "failed"),
    results={"output": None, "error": None},
    failure=_protocol_error,
    has_caller=False,
)
MCP_LIST_TOOLS: Final = ItemForm(
    "mcp_list_tools",
    "mcpl",
    stages=stage_events("mcp_list_tools", "in_progress", "completed", "failed"),
    results={"tools": [], "error": None},
    has_status=False,
    cut={"error": "The connection ended before the server's answer was complete."},
)
MCP_APPROVAL_REQUEST: Final = ItemForm("mcp_approval_request", "mcpr", has_status=False)


def exchange_of(item: Json, output: str) -> Json:
    """Return the exchange of a call of a server, or of a request for its approval, with this output."""
    name = qualified_name(item["server_label"], item["name"])
    return {"name": name, "arguments": item["arguments"], "output": output}


def _exchange(item: Json) -> Json:
    error = item.get("error")
    if item.get("output") is not None:
        return exchange_of(item, item["output"])
    return exchange_of(item, _error_text(error) if error else "(The call was cut off; its result is not known.)")


def _approved(item: Shown) -> bool:
    return bool(item.get("approve"))


def _result(item: Json) -> CallResult:
    if item.get("output") is not None:
        return CallResult("text", item["output"])
    error = item.get("error")
    return failed(_error_text(error) if error else CUT_OFF)


def _error_text(error: Json) -> str:
    """Return the text of the `error` of an `mcp_call`, for the model."""
    if error["type"] != "mcp_tool_execution_error":
        return str(error["message"])
    content = error["content"]
    parts = content if isinstance(content, list) else [content]
    return "\n".join(str(part.get("text", part)) if isinstance(part, dict) else str(part) for part in parts)


KINDS: Final = (
    ItemKind(MCP_LIST_TOOLS, _LIST, view=ToolListView(listed_tools, "server_label")),
    ItemKind(
        MCP_CALL,
        _CALL,
        _exchange,
        CallView(arguments=given_arguments, answer="output"),
        result=_result,
        written={"arguments": ()},
    ),
    ItemKind(MCP_APPROVAL_REQUEST, _REQUEST, written={"arguments": ()}, view=ApprovalView()),
    ItemKind(
        ItemType("mcp_approval_response", "mcpa", has_status=False),
        _RESPONSE,
        reply=Reply(MCP_APPROVAL_REQUEST.type, "id", "approval_request_id", "approval"),
        view=ApprovalReplyView(_approved),
    ),
)
