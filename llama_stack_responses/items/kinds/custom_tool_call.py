"""Calls of the client's tools that take free text, and their outputs."""

from __future__ import annotations

from typing import Final

from ...core.item_fields import CALLER, ID, NAME, OWN_ID, STATUS, TEXT
from ...core.shapes import boolean, object_of
from ...core.types import Json
from ..call_result import CallResult, text_result
from ..content_parts import call_output
from ..form import ItemForm, ItemType, streamed_events
from ..kind import ItemKind, Names, Reply, called, made_call, text_or_parts
from ..view import CallView, OutputView

CUSTOM_INPUT: Final = "input"
"""The only argument of a custom tool, which the model sees as a function."""

_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "input": TEXT,
        "async": boolean,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "name",
    "input",
)

_OUTPUT: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "output": call_output, "caller": CALLER, "status": STATUS}, "call_id", "output"
)

CUSTOM_TOOL_CALL: Final = ItemForm("custom_tool_call", "ctc", streamed_events("input", "custom_tool_call_input"))


def _made(item: Json, names: Names) -> Json:
    """Return the function call; it has the text as `input`, too."""
    return {**made_call(called(item, names), {CUSTOM_INPUT: item["input"]}), "input": item["input"]}


def _result(item: Json) -> CallResult:
    return text_result(item["output"])


KINDS: Final = (
    ItemKind(CUSTOM_TOOL_CALL, _CALL, call=_made, written={"input": ()}, view=CallView(text="input", run_by="client")),
    ItemKind(
        ItemType("custom_tool_call_output", "ctco"),
        _OUTPUT,
        output=text_or_parts,
        result=_result,
        reply=Reply("custom_tool_call"),
        joinable=True,
        view=OutputView(),
    ),
)
