"""Declarations of the tools that the client runs, and how a `tool_choice` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..core.item_fields import TEXT
from ..core.shapes import (
    Check,
    Location,
    an_object,
    array,
    boolean,
    integer,
    invalid,
    object_of,
    one_of,
    schema_of,
    string,
    tagged,
    takes,
)
from ..core.tool_fields import CALLERS, LOCAL_ENVIRONMENT

_NAME: Final = string(1, 128, "[a-zA-Z0-9_.-]+")

_FUNCTION: Final = object_of(
    {
        "name": _NAME,
        "description": string(),
        "parameters": an_object,
        "strict": boolean,
        "allowed_callers": CALLERS,
        "async": boolean,
        "defer_loading": boolean,
        "output_schema": an_object,
    },
    "name",
)


@takes(schema_of(_FUNCTION))
def _function(value: Any, at: Location) -> dict[str, Any]:
    """Check a function that the client runs. OpenAI's type requires `parameters` and `strict`, which may be null."""
    checked = _FUNCTION(value, at)
    return {"name": checked["name"], "parameters": None, "strict": None, **checked}


_GRAMMAR: Final = object_of({"syntax": one_of("lark", "regex"), "definition": TEXT}, "syntax", "definition")

_CUSTOM: Final = object_of(
    {
        "name": _NAME,
        "description": TEXT,
        "format": tagged({"text": object_of({}), "grammar": _GRAMMAR}),
        "allowed_callers": CALLERS,
        "async": boolean,
        "defer_loading": boolean,
    },
    "name",
)

_MEMBERS: Final = array(tagged({"function": _function, "custom": _CUSTOM}))

_NAMESPACE: Final = object_of({"name": _NAME, "description": TEXT, "tools": _MEMBERS}, "name", "description", "tools")


@takes(schema_of(_NAMESPACE))
def _namespace(value: Any, at: Location) -> dict[str, Any]:
    checked: dict[str, Any] = _NAMESPACE(value, at)
    check_names(checked["tools"], at.key("tools"))
    return checked


_TOOL_SEARCH: Final = object_of({"description": TEXT, "execution": one_of("server", "client"), "parameters": an_object})

_ENVIRONMENTS: Final[Mapping[str, Check]] = {
    "local": LOCAL_ENVIRONMENT,
    # A feature that runs shells checks these. Without one, such a shell is refused: `tools/registry.py`.
    **dict.fromkeys(("container_auto", "container_reference"), an_object),
}

_SHELL: Final = object_of({"environment": tagged(_ENVIRONMENTS), "allowed_callers": CALLERS})

_PIXELS: Final = integer(1)

_COMPUTER_USE_PREVIEW: Final = object_of(
    {
        "display_height": _PIXELS,
        "display_width": _PIXELS,
        "environment": one_of("windows", "mac", "linux", "ubuntu", "browser"),
    },
    "display_height",
    "display_width",
    "environment",
)

CLIENT_TOOLS: Final[Mapping[str, Check]] = {
    "function": _function,
    "custom": _CUSTOM,
    "namespace": _namespace,
    "tool_search": _TOOL_SEARCH,
    "local_shell": object_of({}),
    "shell": _SHELL,
    "apply_patch": object_of({"allowed_callers": CALLERS}),
    "computer": object_of({}),
    "computer_use_preview": _COMPUTER_USE_PREVIEW,
}
"""Checks of tools, by type."""

COMPUTER_TYPES: Final = ("computer", "computer_use", "computer_use_preview")
"""The names of one tool, in tools and in choices."""

_BY_NAME: Final = object_of({"name": string(1, 128)}, "name")
_IN_NAMESPACE: Final = object_of({"name": string(1, 128), "namespace": string(1, 128)}, "name")

CLIENT_CHOICES: Final[Mapping[str, Check]] = {
    "function": _BY_NAME,
    "custom": _BY_NAME,
    **dict.fromkeys(("shell", "apply_patch", *COMPUTER_TYPES), object_of({})),
}
"""Checks of a `tool_choice` that names one tool to call, by the tool's type."""

CLIENT_TOOL_NAMES: Final[Mapping[str, Check]] = {
    **CLIENT_CHOICES,
    "function": _IN_NAMESPACE,
    "custom": _IN_NAMESPACE,
    "namespace": _BY_NAME,
    **dict.fromkeys(("tool_search", "local_shell"), object_of({})),
}
"""Checks of an entry in a list of allowed tools, by the tool's type."""


def check_names(declared: list[dict[str, Any]], at: Location) -> None:
    """Raise a 400 unless the tools that have names have distinct ones."""
    seen: set[tuple[bool, str]] = set()
    for position, tool in enumerate(declared):
        if "name" not in tool:
            continue
        name = (tool["type"] == "namespace", tool["name"])
        if name in seen:
            raise invalid(at.index(position).key("name"), f"another tool has the name '{name[1]}' already.")
        seen.add(name)
