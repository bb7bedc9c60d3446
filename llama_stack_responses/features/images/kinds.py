"""The declaration of the tool `image_generation`, and the item of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...core.errors import bad_request
from ...core.exchanges import exchange
from ...core.item_fields import ID, IMAGE_URL, OWN_ID, TEXT
from ...core.shapes import (
    Check,
    Location,
    an_object,
    data,
    integer,
    invalid,
    missing,
    object_of,
    one_of,
    schema_of,
    string,
    takes,
    unsupported,
)
from ...core.types import Json
from ...items.form import ItemForm, Partial, stage_events
from ...items.kind import ItemKind, Kinds, OfferedTool, ToolType
from ...items.view import CallView
from .names import GENERATE, generated

IMAGE_CALL: Final = "image_generation_call"
"""The type of the item of a call."""
DEFAULT_FORMAT: Final = "png"
"""What image servers return unless they are asked for another format."""
IMAGE_SETTINGS: Final = ("background", "output_format", "quality", "size")
"""The fields of a generated image that its partial images have too."""

_BACKGROUND: Final = one_of("transparent", "opaque", "auto")
_QUALITY: Final = one_of("low", "medium", "high", "xhigh", "max", "auto")
_FORMAT: Final = one_of("png", "webp", "jpeg", "gif")
_TRANSPARENT_FORMATS: Final = ("png", "webp")
_WHOLE_PERCENT: Final = 100
_NOT_OF_GIF: Final = {"partial_images": 0, "input_image_mask": None, "output_compression": _WHOLE_PERCENT}
"""Fields that exclude the format `gif`, with the values that mean the same as an absent field."""
_OF_GIF: Final = {"frame_count": None, "frame_duration_ms": None}
"""Fields that require it."""


@takes(schema_of(_FORMAT))
def _output_format(value: Any, at: Location) -> str:
    if value == "svg":
        message = "Unsupported value: 'svg'. The image servers that this server supports generate no SVG."
        raise bad_request(message, at.path, "unsupported_value")
    checked: str = _FORMAT(value, at)
    return checked


_MASK_FIELDS: Final = object_of({"file_id": ID, "image_url": IMAGE_URL})


@takes(schema_of(_MASK_FIELDS))
def _mask(value: Any, at: Location) -> dict[str, Any]:
    checked: dict[str, Any] = _MASK_FIELDS(value, at)
    if not any(checked.values()):
        raise missing(at.key("image_url"))
    return checked


_FIELDS: Final[Mapping[str, Check]] = {
    "action": one_of("generate", "edit", "auto"),
    "background": _BACKGROUND,
    "complexity": one_of("low", "medium", "high"),
    "frame_count": integer(2, 16),
    "frame_duration_ms": integer(1, 655_350),
    "input_fidelity": one_of("high", "low"),
    "input_image_mask": _mask,
    "model": string(1, 256),
    "moderation": one_of("auto", "low"),
    "output_compression": integer(0, _WHOLE_PERCENT),
    "output_format": _output_format,
    "partial_images": integer(0, 3),
    "quality": _QUALITY,
    "size": string(1, 16, pattern="(?:auto|[1-9][0-9]{0,4}x[1-9][0-9]{0,4})"),
    "svg": unsupported("The image servers that it supports generate no SVG."),
}

_TOOL_FIELDS: Final = object_of(_FIELDS)


@takes(schema_of(_TOOL_FIELDS))
def _tool(value: Any, at: Location) -> dict[str, Any]:
    """Check the declaration of the tool."""
    tool: dict[str, Any] = _TOOL_FIELDS(value, at)
    if "input_image_mask" in tool and tool.get("action") == "generate":
        raise invalid(at.key("input_image_mask"), "a mask requires the action 'edit' or 'auto'.")
    _check_format(tool, at)
    return tool


def _check_format(tool: Mapping[str, Any], at: Location) -> None:
    """Raise a 400 for fields that the format of the images excludes."""
    image_format = tool.get("output_format", DEFAULT_FORMAT)
    if tool.get("background") == "transparent" and image_format not in _TRANSPARENT_FORMATS:
        raise invalid(at.key("background"), "a transparent background requires the output format 'png' or 'webp'.")
    if image_format == "png" and tool.get("output_compression", _WHOLE_PERCENT) < _WHOLE_PERCENT:
        raise invalid(at.key("output_compression"), "a PNG image is not compressed with loss. Expected 100.")
    for name, absent in (_NOT_OF_GIF if image_format == "gif" else _OF_GIF).items():
        if tool.get(name, absent) != absent:
            verb = "excludes" if image_format == "gif" else "requires"
            raise invalid(at.key(name), f"it {verb} the output format 'gif'.")


_ERROR: Final = object_of(
    {"code": TEXT, "message": TEXT, "param": TEXT, "type": TEXT, "moderation_details": an_object}, "message", "type"
)

_TOKENS: Final = integer(0)

_SVG_USAGE: Final = object_of(
    {
        "input_tokens": _TOKENS,
        "model": TEXT,
        "output_tokens": _TOKENS,
        "reasoning_tokens": _TOKENS,
        "total_tokens": _TOKENS,
    }
)

_CALL_FIELDS: Final = object_of(
    {
        "id": OWN_ID,
        "action": one_of("generate", "edit", "auto"),
        "background": _BACKGROUND,
        "error": _ERROR,
        "output_format": one_of("png", "webp", "jpeg", "gif", "svg"),
        "quality": _QUALITY,
        "result": data,
        "revised_prompt": TEXT,
        "size": TEXT,
        "status": one_of("in_progress", "generating", "completed", "failed"),
        "svg_usage": _SVG_USAGE,
    }
)


@takes(schema_of(_CALL_FIELDS))
def _item(value: Any, at: Location) -> dict[str, Any]:
    """Check the item of a call. Without a result, it has to name a stored call, which takes its place."""
    item: dict[str, Any] = _CALL_FIELDS(value, at)
    if item.get("result") is not None or item.get("status", "completed") != "completed":
        return item  # Codex empties the result for a model without images.
    if not item.get("id"):
        raise missing(at.key("id"))
    return {"type": "item_reference", "id": item["id"]}


def _exchange(item: Json) -> Json:
    if item.get("result"):
        output = generated(item.get("id", ""))
    elif item.get("status", "completed") == "completed":
        output = "(The image was generated, and is left out here.)"
    else:
        output = (item.get("error") or {}).get("message") or "(The image was not generated.)"
    return exchange(GENERATE, {"prompt": item.get("revised_prompt") or ""}, output)


def _partial_image(
    sequence_number: int, item_id: str, output_index: int, partial_image_index: int, image: Json
) -> Json:
    return {
        "type": f"response.{IMAGE_CALL}.partial_image",
        "sequence_number": sequence_number,
        "item_id": item_id,
        "output_index": output_index,
        "partial_image_index": partial_image_index,
        "partial_image_b64": image["result"] or "",
        **{name: image.get(name) for name in IMAGE_SETTINGS},
    }


FORM: Final = ItemForm(
    IMAGE_CALL,
    "ig",
    stages=stage_events(IMAGE_CALL, "in_progress", "generating", "completed"),
    results={"result": None},
    late=("action", "error", "revised_prompt", *IMAGE_SETTINGS),
    partial=Partial("partial_image", _partial_image),
    cut={"status": "failed"},  # its types know no incomplete call
)

KINDS: Final = Kinds(
    items=(
        ItemKind(
            FORM,
            _item,
            _exchange,
            CallView("image_generation", text="revised_prompt", image="result"),
            written={"revised_prompt": ()},
            makes="images",
        ),
    ),
    tools=(ToolType("image_generation", _tool, offered=OfferedTool("Images")),),
)
