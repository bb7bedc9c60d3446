"""Calls of the shell, on the client's machine or in a container, and their outputs."""

from __future__ import annotations

from typing import Any, Final

from ...core.item_fields import CALLER, ID, OWN_ID, STATUS, TEXT
from ...core.shapes import MAX_INTEGER, array, integer, object_of, tagged
from ...core.types import Json
from ..call_result import CallResult, json_result
from ..form import Details, ItemForm
from ..kind import ItemKind, Names, Reply, given, made_call
from ..view import CallView, OutputView, Shown
from . import shell_events

_SHOWN: Final = 200
"""Maximum commands of a call that the page shows."""

SHELL_ACTION: Final = object_of(
    {"commands": array(TEXT, low=1), "max_output_length": integer(0), "timeout_ms": integer(0)}, "commands"
)

_SHELL_ENVIRONMENT: Final = tagged(
    {"local": object_of({}), "container_reference": object_of({"container_id": ID}, "container_id")},
)

_CALL: Final = object_of(
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

_OUTPUT: Final = object_of(
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

SHELL_CALL: Final = ItemForm(
    "shell_call",
    "sh",
    details=Details("action", shell_events.without_commands, shell_events.command_events),
    failed="incomplete",
)
SHELL_CALL_OUTPUT: Final = ItemForm(
    "shell_call_output", "sho", details=Details("output", shell_events.nothing_printed, shell_events.printed_events)
)


def with_limits(action: Json) -> Json:
    """Return the action with its limits, which OpenAI's API reference requires, and which may be null."""
    return {"timeout_ms": None, "max_output_length": None, **action}


def _whole(item: Json) -> Json:
    return {**item, "action": with_limits(item["action"]), "environment": item.get("environment")}


def _made(item: Json, _: Names) -> Json:
    return made_call("shell", given(item["action"]))


def _printed(item: Json, _: Names) -> str:
    return "\n".join(_ran(entry) for entry in item["output"])


def _ran(entry: Json) -> str:
    outcome = entry["outcome"]
    ended = "The time limit was reached." if outcome["type"] == "timeout" else f"Exit code: {outcome['exit_code']}"
    texts = [entry["stdout"], entry["stderr"] and f"stderr:\n{entry['stderr']}"]
    return "\n".join([ended, *filter(None, texts)])


def _commands(item: Shown) -> list[str]:
    """Return the commands of a call, of the shell or of its first form."""
    action = item.get("action")
    commands: Any = (action.get("commands") or action.get("command")) if isinstance(action, dict) else None
    return [str(each) for each in commands[:_SHOWN]] if isinstance(commands, list) else [str(commands or "")]


def _written(item: Shown) -> str:
    return "\n".join(_commands(item))


def _summary(item: Shown) -> str:
    return "; ".join(_commands(item))


def _container_id(item: Json) -> str | None:
    container: str | None = (item.get("environment") or {}).get("container_id")
    return container


SHELL_VIEW: Final = CallView("shell", written=_written, language="shell", summary=_summary, run_by="client")


def _result(item: Json) -> CallResult:
    return json_result(item["output"])


KINDS: Final = (
    ItemKind(
        SHELL_CALL,
        _CALL,
        call=_made,
        written={"action": ("commands",)},
        whole=_whole,
        view=SHELL_VIEW,
        container=_container_id,
    ),
    ItemKind(
        SHELL_CALL_OUTPUT,
        _OUTPUT,
        output=_printed,
        result=_result,
        reply=Reply("shell_call"),
        joinable=True,
        view=OutputView(),
    ),
)
