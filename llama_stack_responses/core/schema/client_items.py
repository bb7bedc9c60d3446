"""Items of the built-in tools that the client runs: calls, their outputs, and tools that come with the input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..item_fields import CALLER, ID, IMAGE_URL, OWN_ID, STATUS, TEXT
from ..shapes import (
    MAX_INTEGER,
    Check,
    Location,
    an_object,
    anything,
    array,
    integer,
    missing,
    object_of,
    one_of,
    schema_of,
    tagged,
    takes,
)
from .declared_tools import carried_tools

_COORDINATE: Final = integer(-MAX_INTEGER)
_MILLISECONDS: Final = integer(0)
_KEYS: Final = array(TEXT)


def _texts(value: Any, at: Location) -> dict[str, str]:
    """Check an object of strings."""
    return {name: TEXT(text, at.key(name)) for name, text in an_object(value, at).items()}


# Shells

LOCAL_SHELL_ACTION: Final = object_of(
    {
        "type": one_of("exec"),
        "command": array(TEXT, low=1),
        "env": _texts,
        "timeout_ms": _MILLISECONDS,
        "user": TEXT,
        "working_directory": TEXT,
    },
    "command",
    defaults={"type": "exec", "env": {}},
)

_LOCAL_SHELL_CALL: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "action": LOCAL_SHELL_ACTION, "status": STATUS}, "call_id", "action"
)

_LOCAL_SHELL_CALL_OUTPUT: Final = object_of({"id": OWN_ID, "call_id": ID, "output": TEXT, "status": STATUS}, "output")


def _local_shell_call_output(value: Any, at: Location) -> dict[str, Any]:
    """Check an output; OpenAI's type names the call in `id`, while clients send a `call_id`."""
    checked: dict[str, Any] = _LOCAL_SHELL_CALL_OUTPUT(value, at)
    if "call_id" in checked:
        return checked
    if not (call_id := checked.pop("id", "")):
        raise missing(at.key("call_id"))
    return {"call_id": call_id, **checked}


SHELL_ACTION: Final = object_of(
    {"commands": array(TEXT, low=1), "max_output_length": integer(0), "timeout_ms": _MILLISECONDS}, "commands"
)

_SHELL_ENVIRONMENT: Final = tagged(
    {"local": object_of({}), "container_reference": object_of({"container_id": ID}, "container_id")},
)

_SHELL_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "action": SHELL_ACTION,
        "caller": CALLER,
        "environment": _SHELL_ENVIRONMENT,
        "status": STATUS,
    },
    "call_id",
    "action",
)

_OUTCOME: Final = tagged(
    {"timeout": object_of({}), "exit": object_of({"exit_code": integer(-MAX_INTEGER)}, "exit_code")}
)

_SHELL_CALL_OUTPUT: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "output": array(
            object_of({"stdout": TEXT, "stderr": TEXT, "outcome": _OUTCOME}, "stdout", "stderr", "outcome"),
        ),
        "max_output_length": integer(0),
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "output",
)

# Patches

_WITH_DIFF: Final = object_of({"path": TEXT, "diff": TEXT}, "path", "diff")

PATCH_OPERATION: Final = tagged(
    {"create_file": _WITH_DIFF, "update_file": _WITH_DIFF, "delete_file": object_of({"path": TEXT}, "path")},
)

_APPLY_PATCH_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "operation": PATCH_OPERATION,
        "caller": CALLER,
        "status": one_of("in_progress", "completed"),
    },
    "call_id",
    "operation",
    defaults={"status": "completed"},
)

_APPLY_PATCH_CALL_OUTPUT: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "output": TEXT, "caller": CALLER, "status": one_of("completed", "failed")},
    "call_id",
    "status",
)

# Computer use

_POINT: Final[Mapping[str, Check]] = {"x": _COORDINATE, "y": _COORDINATE}

COMPUTER_ACTION: Final = tagged(
    {
        "click": object_of(
            {"button": one_of("left", "right", "wheel", "back", "forward"), **_POINT, "keys": _KEYS},
            "button",
            *_POINT,
            defaults={"button": "left"},
        ),
        "double_click": object_of({**_POINT, "keys": _KEYS}, *_POINT),
        "drag": object_of({"path": array(object_of(_POINT, *_POINT)), "keys": _KEYS}, "path"),
        "keypress": object_of({"keys": _KEYS}, "keys"),
        "move": object_of({**_POINT, "keys": _KEYS}, *_POINT),
        "screenshot": object_of({}),
        "scroll": object_of(
            {"scroll_x": _COORDINATE, "scroll_y": _COORDINATE, **_POINT, "keys": _KEYS},
            "scroll_x",
            "scroll_y",
            *_POINT,
            defaults={"scroll_x": 0, "scroll_y": 0},
        ),
        "type": object_of({"text": TEXT}, "text"),
        "wait": object_of({}),
    },
)

_SAFETY_CHECKS: Final = array(object_of({"id": ID, "code": TEXT, "message": TEXT}, "id"))

_COMPUTER_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "action": COMPUTER_ACTION,
        "actions": array(COMPUTER_ACTION),
        "pending_safety_checks": _SAFETY_CHECKS,
        "status": STATUS,
    },
    "call_id",
    defaults={"pending_safety_checks": []},
)

_SCREENSHOT: Final = tagged({"computer_screenshot": object_of({"image_url": IMAGE_URL, "file_id": ID})})


def _screenshot(value: Any, at: Location) -> dict[str, Any]:
    """Check a screenshot. The tool's preview called screenshots images."""
    if isinstance(value, dict) and value.get("type") == "input_image":
        value = {**value, "type": "computer_screenshot"}
    checked: dict[str, Any] = _SCREENSHOT(value, at)
    if not checked.keys() & {"image_url", "file_id"}:
        raise missing(at.key("image_url"))
    return checked


_COMPUTER_CALL_OUTPUT: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "output": _screenshot,
        "acknowledged_safety_checks": _SAFETY_CHECKS,
        "status": one_of("in_progress", "completed", "incomplete", "failed"),
    },
    "call_id",
    "output",
)

# Tools that the request's `tools` do not list

_EXECUTION: Final = one_of("server", "client")


def _tool_search(check: Check) -> Check:
    """Return the check for an item of tool search: a client's call and its output are joined by a `call_id`."""

    @takes(schema_of(check))
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        checked: dict[str, Any] = check(value, at)
        if checked["execution"] == "client" and "call_id" not in checked:
            raise missing(at.key("call_id"))
        return checked

    return check_it


_TOOL_SEARCH_CALL: Final = _tool_search(
    object_of(
        {"id": OWN_ID, "call_id": ID, "execution": _EXECUTION, "arguments": anything, "status": STATUS},
        "arguments",
        defaults={"execution": "server"},
    )
)

_TOOL_SEARCH_OUTPUT: Final = _tool_search(
    object_of(
        {"id": OWN_ID, "call_id": ID, "execution": _EXECUTION, "tools": carried_tools, "status": STATUS},
        "tools",
        defaults={"execution": "server"},
    )
)

_ADDITIONAL_TOOLS: Final = object_of(
    {"id": OWN_ID, "role": one_of("developer"), "tools": carried_tools}, "role", "tools"
)

CLIENT_ITEMS: Final[Mapping[str, Check]] = {
    "local_shell_call": _LOCAL_SHELL_CALL,
    "local_shell_call_output": _local_shell_call_output,
    "shell_call": _SHELL_CALL,
    "shell_call_output": _SHELL_CALL_OUTPUT,
    "apply_patch_call": _APPLY_PATCH_CALL,
    "apply_patch_call_output": _APPLY_PATCH_CALL_OUTPUT,
    "computer_call": _COMPUTER_CALL,
    "computer_call_output": _COMPUTER_CALL_OUTPUT,
    "tool_search_call": _TOOL_SEARCH_CALL,
    "tool_search_output": _TOOL_SEARCH_OUTPUT,
    "additional_tools": _ADDITIONAL_TOOLS,
}
"""Checks of items, by type."""
