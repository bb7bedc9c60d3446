"""Calls of the shell on the client's machine in its first form, and their outputs."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from ...core.item_fields import ID, OWN_ID, STATUS, TEXT
from ...core.shapes import Location, an_object, array, integer, missing, object_of, one_of, schema_of, takes
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

_READ_CHARACTERS: Final = 4_096

_CALL: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "action": LOCAL_SHELL_ACTION, "status": STATUS}, "call_id", "action"
)


@takes({**schema_of(_CALL), "required": ["action"]})
def _call(value: Any, at: Location) -> dict[str, Any]:
    """Check a call; Codex keeps calls without a `call_id`, which their outputs name by the `id`, if by anything."""
    members = an_object(value, at)
    if not members.get("call_id"):
        members = {**members, "call_id": members.get("id") or _unnamed(members.get("action"))}
    checked: dict[str, Any] = _CALL(members, at)
    return checked


def _unnamed(action: Any) -> str:
    """Return an id for a call without one: the same one each time."""
    return (
        f"call_{hashlib.blake2b(repr(action)[:_READ_CHARACTERS].encode(errors='replace'), digest_size=12).hexdigest()}"
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
    ItemKind(LOCAL_SHELL_CALL, _call, call=_made, written={"action": ("command",)}, view=SHELL_VIEW),
    ItemKind(
        ItemType("local_shell_call_output", "lsho"),
        _output,
        output=text_or_parts,
        reply=Reply("local_shell_call"),
        view=OutputView(),
    ),
)
