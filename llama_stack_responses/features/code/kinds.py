"""The declarations of the tools `code_interpreter` and `shell`, and the item of the interpreter's calls.

A shell's calls and outputs are items of the core, since shells on the client's machine have them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ...core.exchanges import exchange
from ...core.item_fields import CALL_STATUS, ID, OWN_ID, TEXT
from ...core.shapes import (
    Check,
    Location,
    any_of,
    array,
    data,
    invalid_type,
    object_of,
    schema_of,
    string,
    tagged,
    takes,
)
from ...core.tool_fields import CALLERS, LOCAL_ENVIRONMENT
from ...core.types import Json
from ...items.call_result import CUT_OFF, CallResult, failed
from ...items.form import ItemForm, stage_events, streamed_events
from ...items.kind import ItemKind, Kinds, OfferedTool, ToolType
from ...items.view import CallView, Printed, Shown, objects
from .containers.container_bodies import AUTO_CONTAINER

PYTHON: Final = "python"
"""The function that runs code, as the model sees it."""
OUTPUTS: Final = "code_interpreter_call.outputs"
"""The value of `include` that asks for what the code printed and drew."""

_CONTAINER_ID: Final = string(1, 128)
_NEW_CONTAINER: Final = tagged({"auto": AUTO_CONTAINER})


@takes(any_of({"type": "string"}, schema_of(_NEW_CONTAINER)))
def _container(value: Any, at: Location) -> str | dict[str, Any]:
    """Check a container's id, or the settings of a new one."""
    if not isinstance(value, str | dict):
        raise invalid_type(value, at, "one of a string or an object")
    container: str | dict[str, Any] = (_CONTAINER_ID if isinstance(value, str) else _NEW_CONTAINER)(value, at)
    return container


_CODE_INTERPRETER: Final = object_of({"container": _container, "allowed_callers": CALLERS}, "container")

_ENVIRONMENTS: Final[Mapping[str, Check]] = {
    "local": LOCAL_ENVIRONMENT,
    "container_auto": AUTO_CONTAINER,
    "container_reference": object_of({"container_id": _CONTAINER_ID}, "container_id"),
}

_SHELL: Final = object_of({"environment": tagged(_ENVIRONMENTS), "allowed_callers": CALLERS})

_DOMAIN_SECRETS: Final = ("network_policy", "domain_secrets", "value")


def _echoed_interpreter(tool: Json) -> Json:
    """Return the declaration without skills, which OpenAI's type does not have there."""
    if isinstance(tool["container"], str):
        return tool
    return {**tool, "container": {name: value for name, value in tool["container"].items() if name != "skills"}}


def _echoed_shell(tool: Json) -> Json:
    """Return the declaration without the archives of skills: each response of a chain would store them again."""
    environment = tool.get("environment") or {}
    if environment.get("type") != "container_auto" or "skills" not in environment:
        return tool
    return {**tool, "environment": {**environment, "skills": list(map(_without_data, environment["skills"]))}}


def _without_data(skill: Json) -> Json:
    return skill if skill["type"] != "inline" else {**skill, "source": {**skill["source"], "data": ""}}


_PRINTED: Final[Mapping[str, Check]] = {
    "logs": object_of({"logs": TEXT}, "logs"),
    "image": object_of({"url": data}, "url"),
}

_ITEM: Final = object_of(
    {
        "id": OWN_ID,
        "code": TEXT,
        "container_id": ID,
        "status": CALL_STATUS,
        "outputs": array(tagged(_PRINTED)),
    },
    "container_id",
)

FORM: Final = ItemForm(
    "code_interpreter_call",
    "ci",
    streamed_events("code", "code_interpreter_call_code"),
    stages=stage_events("code_interpreter_call", "in_progress", "interpreting", "completed"),
    results={"outputs": None},
    has_caller=False,
)


def _exchange(item: Json) -> Json:
    printed = [output["logs"].rstrip() for output in item.get("outputs") or () if output["type"] == "logs"]
    shown = "\n".join(printed) or "(Its output is no longer available.)"
    return exchange(PYTHON, {"code": item.get("code", "")}, shown)


def _result(item: Json) -> CallResult:
    if item.get("outputs") is None:
        return failed(CUT_OFF)
    printed = "".join(output["logs"] for output in item["outputs"] if output["type"] == "logs")
    return failed(printed or "The code failed.") if item["status"] != "completed" else CallResult("text", printed)


def _shown_outputs(item: Shown) -> Iterable[Printed]:
    return [
        Printed(image_url=each.get("url") or "") if each.get("type") == "image" else Printed(each.get("logs"))
        for each in objects(item.get("outputs"))
    ]


def _container_id(item: Json) -> str | None:
    container: str | None = item.get("container_id")
    return container


_CALL: Final = ItemKind(
    FORM,
    _ITEM,
    _exchange,
    CallView("code_interpreter", text="code", language="python", printed=_shown_outputs),
    result=_result,
    written={"code": ()},
    includable=(OUTPUTS,),
    container=_container_id,
)

KINDS: Final = Kinds(
    items=(_CALL,),
    tools=(
        ToolType(
            "code_interpreter",
            _CODE_INTERPRETER,
            echoed=_echoed_interpreter,
            offered=OfferedTool("Code interpreter", {"container": {"type": "auto"}}),
            secrets=[("container", *_DOMAIN_SECRETS)],
        ),
        ToolType("shell", _SHELL, echoed=_echoed_shell, secrets=[("environment", *_DOMAIN_SECRETS)]),
    ),
)
