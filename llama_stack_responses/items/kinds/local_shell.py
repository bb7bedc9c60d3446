"""Calls of the shell on the client's machine in its first form, and their outputs."""

from __future__ import annotations

from typing import Any, Final

from ...core.item_fields import ID, OWN_ID, STATUS, TEXT
from ...core.shapes import Location, an_object, array, integer, missing, object_of, one_of
from ...core.types import Json
from ..form import ItemForm, ItemType
from ..kind import ItemKind, Names, Reply, made_call, text_or_parts
from ..view import OutputView
from .shell import SHELL_VIEW


def _texts(value: Any, at: Location) -> dict[str, str]:
    """Check an object of strings."""
    return {name: TEXT(text, at.key(name)) for name, text in an_object(value, at).items()}


LOCAL_SHELL_ACTION: Final = object_of(
    {
        "type": one_of("exec"),
        "command": array(TEXT, low=1),
        "env": _texts,
        "timeout_ms": integer(0),
        "user": TEXT,
        "working_directory": TEXT,
    },
    "command",
    defaults={"type": "exec", "env": {}},
)

_CALL: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "action": LOCAL_SHELL_ACTION, "status": STATUS}, "call_id", "action"
)

_OUTPUT: Final = object_of({"id": OWN_ID, "call_id": ID, "output": TEXT, "status": STATUS}, "output")


def _output(value: Any, at: Location) -> dict[str, Any]:
    """Check an output; OpenAI's type names the call in `id`, while clients send a `call_id`."""
    checked: dict[str, Any] = _OUTPUT(value, at)
    if "call_id" in checked:
        return checked
    if not (call_id := checked.pop("id", "")):
        raise missing(at.key("call_id"))
    return {"call_id": call_id, **checked}


LOCAL_SHELL_CALL: Final = ItemForm("local_shell_call", "lsh")


def _made(item: Json, _: Names) -> Json:
    action = item["action"]
    return made_call("local_shell", {key: action[key] for key in action if key != "type" and action[key]})


KINDS: Final = (
    ItemKind(LOCAL_SHELL_CALL, _CALL, call=_made, written={"action": ("command",)}, view=SHELL_VIEW),
    ItemKind(
        ItemType("local_shell_call_output", "lsho"),
        _output,
        output=text_or_parts,
        reply=Reply("local_shell_call"),
        view=OutputView(),
    ),
)
