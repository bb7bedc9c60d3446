"""The tools of a request as its response repeats them."""

from __future__ import annotations

from ..core.types import Json
from ..items.mcp_approvals import Approval
from ..items.registry import HOSTED_TOOL_NAMES, TOOL_TYPES
from .mcp_secrets import without_secrets


def echoed(tool: Json, require_approval: Approval = "always") -> Json:
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
    return of_feature.echoed(tool) if of_feature else tool
