"""Calls of the tool that changes files of the client, and their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.item_fields import CALLER, ID, OWN_ID, TEXT
from ...core.shapes import object_of, one_of, tagged
from ...core.types import Json
from ..call_result import CallResult, json_result
from ..form import ItemForm, ItemType
from ..kind import ItemKind, Names, Reply, made_call
from ..view import CallView, OutputView, Shown

_WITH_DIFF: Final = object_of({"path": TEXT, "diff": TEXT}, "path", "diff")

PATCH_OPERATION: Final = tagged(
    {"create_file": _WITH_DIFF, "update_file": _WITH_DIFF, "delete_file": object_of({"path": TEXT}, "path")},
)

_CALL: Final = object_of(
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

_OUTPUT: Final = object_of(
    {"id": OWN_ID, "call_id": ID, "output": TEXT, "caller": CALLER, "status": one_of("completed", "failed")},
    "call_id",
    "status",
)

APPLY_PATCH_CALL: Final = ItemForm("apply_patch_call", "apc")


def _made(item: Json, _: Names) -> Json:
    return made_call("apply_patch", item["operation"])


def _patched(item: Json, _: Names) -> str:
    return "\n".join(filter(None, [f"Status: {item['status']}", item.get("output")]))


def _operation(item: Shown) -> Mapping[str, Any]:
    operation = item.get("operation")
    return operation if isinstance(operation, dict) else {}


def _diff(item: Shown) -> str:
    return str(_operation(item).get("diff") or "")


def _summary(item: Shown) -> str:
    operation = _operation(item)
    return f"{operation.get('type', '')} {operation.get('path', '')}"


_VIEW: Final = CallView("apply_patch", written=_diff, language="diff", summary=_summary, run_by="client")


def _result(item: Json) -> CallResult:
    return json_result({"status": item["status"], "output": item.get("output") or ""})


KINDS: Final = (
    ItemKind(APPLY_PATCH_CALL, _CALL, call=_made, written={"operation": ("path", "diff")}, view=_VIEW),
    ItemKind(
        ItemType("apply_patch_call_output", "apco"),
        _OUTPUT,
        output=_patched,
        result=_result,
        reply=Reply("apply_patch_call"),
        joinable=True,
        view=OutputView(),
    ),
)
