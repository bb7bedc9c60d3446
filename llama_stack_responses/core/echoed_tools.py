"""The tools of a request as its response repeats them."""

from __future__ import annotations

from .mcp_approvals import Approval
from .mcp_secrets import without_secrets
from .types import Json


def echoed(tool: Json, require_approval: Approval = "always") -> Json:
    """Return a request's tool as the response repeats it.

    A function has a `description`, which may be null. An MCP server has its address without the path, and no secret.
    The archives of skills are left out: each response of a chain would store them again.
    """
    match tool:
        case {"type": "function"}:
            return {"description": None, **tool}
        case {"type": "mcp"}:
            public = without_secrets(tool)
            return {"allowed_tools": None, "headers": None, "require_approval": require_approval, **public}
        case {"type": "shell", "environment": {"type": "container_auto", "skills": skills} as environment}:
            return {**tool, "environment": {**environment, "skills": [_without_data(skill) for skill in skills]}}
        case {"type": "code_interpreter", "container": {"skills": _, **others}}:
            return {**tool, "container": others}  # OpenAI's type has no skills there
    return tool


def _without_data(skill: Json) -> Json:
    return skill if skill["type"] != "inline" else {**skill, "source": {**skill["source"], "data": ""}}
