"""Calls of the client's functions, and their outputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ...core.item_fields import CALLER, ID, NAME, OWN_ID, STATUS, TEXT
from ...core.shapes import boolean, object_of
from ...core.types import Json
from ..call_result import CallResult, text_result
from ..content_parts import call_output
from ..form import ItemForm, ItemType, streamed_events
from ..kind import ItemKind, Names, Reply, called, text_or_parts
from ..view import CallView, OutputView, given_arguments

_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "arguments": TEXT,
        "async": boolean,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "name",
    "arguments",
)

_OUTPUT: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "name": NAME,
        "namespace": NAME,
        "output": call_output,
        "caller": CALLER,
        "status": STATUS,
    },
    "call_id",
    "output",
)


def _done(sequence_number: int, item: Json, output_index: int, arguments: str) -> Json:
    return {
        "type": "response.function_call_arguments.done",
        "sequence_number": sequence_number,
        "item_id": item["id"],
        "output_index": output_index,
        "name": item["name"],
        "arguments": arguments,
    }


FUNCTION_CALL: Final = ItemForm(
    "function_call", "fc", replace(streamed_events("arguments", "function_call_arguments", "{}"), done=_done)
)


def _made(item: Json, names: Names) -> Json:
    return {"name": called(item, names), "arguments": item["arguments"]}


def _result(item: Json) -> CallResult:
    return text_result(item["output"])


KINDS: Final = (
    ItemKind(
        FUNCTION_CALL,
        _CALL,
        call=_made,
        written={"arguments": ()},
        view=CallView(arguments=given_arguments, run_by="client"),
    ),
    ItemKind(
        ItemType("function_call_output", "fco"),
        _OUTPUT,
        output=text_or_parts,
        result=_result,
        reply=Reply("function_call", repeats=("name",)),
        joinable=True,
        view=OutputView(),
    ),
)
