"""Calls with which the model uses a computer, and their outputs: screenshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.item_fields import ID, IMAGE_URL, OWN_ID, STATUS, TEXT
from ...core.shapes import MAX_INTEGER, Check, Location, array, integer, missing, object_of, one_of, tagged
from ...core.types import Json
from ..form import ItemForm, ItemType
from ..kind import ItemKind, Names, Reply, given, made_call
from ..view import CallView, OutputView, Shown

_COORDINATE: Final = integer(-MAX_INTEGER)
_KEYS: Final = array(TEXT)

_POINT: Final[Mapping[str, Check]] = {"x": _COORDINATE, "y": _COORDINATE}

COMPUTER_ACTION: Final = tagged(
    {
        "click": object_of(
            {"button": one_of("left", "right", "wheel", "back", "forward"), **_POINT, "keys": _KEYS},
            "button",
            *_POINT,
            defaults={"button": "left"},
        ),
        "double_click": object_of({**_POINT, "keys": _KEYS}, *_POINT),
        "drag": object_of({"path": array(object_of(_POINT, *_POINT)), "keys": _KEYS}, "path"),
        "keypress": object_of({"keys": _KEYS}, "keys"),
        "move": object_of({**_POINT, "keys": _KEYS}, *_POINT),
        "screenshot": object_of({}),
        "scroll": object_of(
            {"scroll_x": _COORDINATE, "scroll_y": _COORDINATE, **_POINT, "keys": _KEYS},
            "scroll_x",
            "scroll_y",
            *_POINT,
            defaults={"scroll_x": 0, "scroll_y": 0},
        ),
        "type": object_of({"text": TEXT}, "text"),
        "wait": object_of({}),
    },
)

_SAFETY_CHECKS: Final = array(object_of({"id": ID, "code": TEXT, "message": TEXT}, "id"))

_CALL: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "action": COMPUTER_ACTION,
        "actions": array(COMPUTER_ACTION),
        "pending_safety_checks": _SAFETY_CHECKS,
        "status": STATUS,
    },
    "call_id",
    defaults={"pending_safety_checks": []},
)

_SCREENSHOT: Final = tagged({"computer_screenshot": object_of({"image_url": IMAGE_URL, "file_id": ID})})


def _screenshot(value: Any, at: Location) -> dict[str, Any]:
    """Check a screenshot. The tool's preview called screenshots images."""
    if isinstance(value, dict) and value.get("type") == "input_image":
        value = {**value, "type": "computer_screenshot"}
    checked: dict[str, Any] = _SCREENSHOT(value, at)
    if not checked.keys() & {"image_url", "file_id"}:
        raise missing(at.key("image_url"))
    return checked


_OUTPUT: Final = object_of(
    {
        "id": OWN_ID,
        "call_id": ID,
        "output": _screenshot,
        "acknowledged_safety_checks": _SAFETY_CHECKS,
        "status": one_of("in_progress", "completed", "incomplete", "failed"),
    },
    "call_id",
    "output",
)

COMPUTER_CALL: Final = ItemForm("computer_call", "cu")


def _made(item: Json, _: Names) -> Json:
    actions = item.get("actions") or [item["action"]] * ("action" in item)
    return made_call("computer", {"actions": [given(action) for action in actions]})


def _seen(item: Json, _: Names) -> list[Json]:
    return [{**item["output"], "type": "input_image"}]


def _actions(item: Shown) -> Any:
    return item.get("action") or item.get("actions") or {}


KINDS: Final = (
    ItemKind(
        COMPUTER_CALL,
        _CALL,
        call=_made,
        written={"action": ("text",), "actions": ("text",)},
        view=CallView(arguments=_actions, run_by="client"),
    ),
    ItemKind(
        ItemType("computer_call_output", "cuo"),
        _OUTPUT,
        output=_seen,
        reply=Reply("computer_call"),
        joinable=True,
        view=OutputView(),
        includable=("computer_call_output.output.image_url",),
    ),
)
