"""Shells on the client's machine: `local_shell` runs one program, `shell` several commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...core.types import Json
from ...items.kinds.local_shell import LOCAL_SHELL_ACTION, LOCAL_SHELL_CALL
from ...items.kinds.shell import SHELL_ACTION, SHELL_CALL, with_limits
from ...requests.request import CreateRequest
from ..tool import Tool
from ..tool_function import callers_of
from .client_tool import ClientTool, an_object

_TEXT: Final[Json] = {"type": "string"}
_NUMBER: Final[Json] = {"type": "integer"}
_TEXTS: Final[Json] = {"type": "array", "items": _TEXT}
_TIMEOUT: Final[Json] = {"type": "integer", "description": "The longest that it may take, in milliseconds."}

_LOCAL_SHELL: Final = an_object(
    {
        "command": {**_TEXTS, "description": "The program and its arguments."},
        "env": {"type": "object", "additionalProperties": _TEXT, "description": "Environment variables to set."},
        "working_directory": {**_TEXT, "description": "The folder to run it in."},
        "timeout_ms": _TIMEOUT,
        "user": {**_TEXT, "description": "The user to run it as."},
    },
    "command",
)

SHELL_PARAMETERS: Final = an_object(
    {
        "commands": {**_TEXTS, "description": "The commands, in the order in which they run."},
        "timeout_ms": _TIMEOUT,
        "max_output_length": {"type": "integer", "description": "Maximum number of output characters to return."},
    },
    "commands",
)


SHELL_RESULT: Final[Json] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "stdout": _TEXT,
            "stderr": _TEXT,
            "outcome": {"type": "object", "properties": {"type": {"enum": ["exit", "timeout"]}, "exit_code": _NUMBER}},
        },
    },
}
"""What a program gets of a call."""


def local_shell_tool(_: Json, __: CreateRequest) -> Tool:
    """Create the tool of a `{type: local_shell}` entry."""
    return ClientTool(
        ["local_shell"],
        "local_shell",
        "Runs a program on the user's machine and returns what it prints.",
        _LOCAL_SHELL,
        LOCAL_SHELL_CALL,
        LOCAL_SHELL_ACTION,
        lambda action: {"action": action},
    )


def shell_tool(declared: Json, _: CreateRequest) -> Tool:
    """Create the tool of a `{type: shell, environment}` entry."""
    skills = (declared.get("environment") or {}).get("skills", ())
    return ClientTool(
        ["shell"],
        "shell",
        with_skills("Runs commands in a shell and returns what they print.", skills),
        SHELL_PARAMETERS,
        SHELL_CALL,
        SHELL_ACTION,
        lambda action: {"action": with_limits(action), "environment": {"type": "local"}},
        callers_of(declared),
        SHELL_RESULT,
    )


def with_skills(description: str, skills: Sequence[Json]) -> str:
    """Return a function's description, followed by the skills that the model can use, `{name, description, path}`."""
    return "\n".join([description, *map(_skill, skills)])


def _skill(skill: Json) -> str:
    return f"Skill '{skill['name']}', described in {skill['path']}: {skill['description']}"
