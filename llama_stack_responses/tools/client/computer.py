"""The client's computer: the model moves its mouse, types, and sees screenshots."""

from __future__ import annotations

from typing import Final

from ...core.shapes import array, object_of
from ...core.types import Json
from ...items.kinds.computer import COMPUTER_ACTION, COMPUTER_CALL
from ...requests.client_tools import COMPUTER_TYPES
from ...requests.request import CreateRequest
from ..tool import Tool
from .client_tool import ClientTool, an_object

_NUMBER: Final[Json] = {"type": "integer"}
_KEYS: Final[Json] = {"type": "array", "items": {"type": "string"}}

_ACTION: Final = an_object(
    {
        "type": {
            "type": "string",
            "enum": [
                "click",
                "double_click",
                "drag",
                "keypress",
                "move",
                "screenshot",
                "scroll",
                "type",
                "wait",
            ],
        },
        "x": {**_NUMBER, "description": "For click, double_click, move and scroll: pixels from the left edge."},
        "y": {**_NUMBER, "description": "For click, double_click, move and scroll: pixels from the top edge."},
        "button": {
            "type": "string",
            "enum": ["left", "right", "wheel", "back", "forward"],
            "description": "For click.",
        },
        "keys": {**_KEYS, "description": "For keypress: the keys; for what the mouse does: keys held meanwhile."},
        "text": {"type": "string", "description": "For type."},
        "scroll_x": {**_NUMBER, "description": "For scroll."},
        "scroll_y": {**_NUMBER, "description": "For scroll."},
        "path": {
            "type": "array",
            "items": an_object({"x": _NUMBER, "y": _NUMBER}, "x", "y"),
            "description": "For drag: the places that the mouse passes.",
        },
    },
    "type",
)

_PARAMETERS: Final = an_object({"actions": {"type": "array", "items": _ACTION}}, "actions")

_ACTIONS: Final = object_of({"actions": array(COMPUTER_ACTION, low=1)}, "actions")


def computer_tool(declared: Json, _: CreateRequest) -> Tool:
    """Create a `{type: computer}` or `{type: computer_use_preview}` tool; the latter takes one action per call."""
    one = declared["type"] == "computer_use_preview"
    what = "Uses a computer and returns a screenshot of what it shows afterwards."
    if one:
        size = f"{declared['display_width']} by {declared['display_height']} pixels"
        what = f"{what} It runs {declared['environment']}; its screen has {size}. Do one action in each call."

    def fields(arguments: Json) -> Json:
        actions: list[Json] = [_whole(action) for action in arguments["actions"]]
        done: Json = {"action": actions[0]} if one else {"actions": actions}
        return {**done, "pending_safety_checks": []}

    return ClientTool(COMPUTER_TYPES, "computer", what, _PARAMETERS, COMPUTER_CALL, _ACTIONS, fields)


def _whole(action: Json) -> Json:
    """Add `keys: null` to a double click without keys: OpenAI's type requires the field."""
    return {"keys": None, **action} if action["type"] == "double_click" else action
