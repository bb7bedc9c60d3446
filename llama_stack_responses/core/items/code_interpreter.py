"""Calls of the code interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ..exchanges import exchange
from ..item_fields import CALL_STATUS, ID, OWN_ID, TEXT
from ..shapes import Check, array, data, object_of, tagged
from ..types import Json
from .form import ItemForm, stage_events, streamed_events
from .kind import ItemKind

_PRINTED: Final[Mapping[str, Check]] = {
    "logs": object_of({"logs": TEXT}, "logs"),
    "image": object_of({"url": data}, "url"),
}

_CALL: Final = object_of(
    {"id": OWN_ID, "code": TEXT, "container_id": ID, "status": CALL_STATUS, "outputs": array(tagged(_PRINTED))},
    "container_id",
)

CODE_INTERPRETER_CALL: Final = ItemForm(
    "code_interpreter_call",
    "ci",
    streamed_events("code", "code_interpreter_call_code"),
    stages=stage_events("code_interpreter_call", "in_progress", "interpreting", "completed"),
    results={"outputs": None},
    has_caller=False,
)


def _exchange(item: Json) -> Json:
    printed = [output["logs"].rstrip() for output in item.get("outputs") or () if output["type"] == "logs"]
    output = "\n".join(printed) or "(Its output is no longer available.)"
    return exchange("python", {"code": item.get("code", "")}, output)


KINDS: Final = (ItemKind(CODE_INTERPRETER_CALL, _CALL, _exchange, includable=("code_interpreter_call.outputs",)),)
