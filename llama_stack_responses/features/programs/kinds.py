"""The declaration of the tool, and the items of programs and of their outputs."""

from __future__ import annotations

from typing import Any, Final

from ...core.item_fields import ID, OWN_ID, TEXT
from ...core.program_names import PROGRAM, PROGRAM_OUTPUT, PROGRAMS, RUN_PROGRAM
from ...core.shapes import object_of, one_of, string
from ...core.types import Json
from ...items.form import ItemForm
from ...items.kind import ItemKind, Kinds, Names, OfferedTool, Reply, ToolType, made_call
from ...items.view import CallView, OutputView, Shown

CODE_CHARACTERS: Final = 131_072
"""Maximum length of a program. Models write some hundred lines; each step compiles the whole program again."""

_PROGRAM: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "code": string(0, CODE_CHARACTERS), "fingerprint": string(1, 512)},
    "call_id",
    "code",
    "fingerprint",
)

_OUTPUT: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "result": TEXT, "status": one_of("completed", "incomplete")},
    "call_id",
    "result",
    "status",
)

FORM: Final = ItemForm(PROGRAM, "prog", has_status=False, closed=True)
OUTPUT_FORM: Final = ItemForm(PROGRAM_OUTPUT, "progo", has_status=False)


def _call(item: Json, _: Names) -> Json:
    return made_call(RUN_PROGRAM, {"code": item["code"]})


def _result(item: Json, _: Names) -> str:
    return str(item["result"])


def _shown_result(item: Shown) -> Any:
    return str(item.get("result") or "")


KINDS: Final = Kinds(
    items=(
        ItemKind(
            FORM,
            _PROGRAM,
            call=_call,
            written={"code": ()},
            view=CallView("program", text="code", language="javascript", run_by="both"),
        ),
        ItemKind(
            OUTPUT_FORM,
            _OUTPUT,
            output=_result,
            reply=Reply(PROGRAM, waits_for=None),
            view=OutputView(_shown_result, failed_status="incomplete"),
        ),
    ),
    tools=(ToolType(PROGRAMS, object_of({}), single=True, offered=OfferedTool("Programs")),),
)
