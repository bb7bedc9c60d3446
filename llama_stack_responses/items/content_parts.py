"""Content parts: those of messages to the model, of the outputs of calls, and of a prompt's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ..core.inline_data import check_file, check_sound
from ..core.item_fields import FILE_URL, ID, IMAGE_URL, TEXT
from ..core.shapes import (
    Check,
    Location,
    any_of,
    array,
    data,
    invalid_type,
    missing,
    object_of,
    one_of,
    schema_of,
    string,
    tagged,
    takes,
)


def _needing(check: Check, *names: str) -> Check:
    """Return a check for an object that needs at least one of these members; error messages name the first."""

    @takes({**schema_of(check), "anyOf": [{"required": [name]} for name in names]})
    def check_it(value: Any, at: Location) -> dict[str, Any]:
        checked: dict[str, Any] = check(value, at)
        if not any(checked.get(name) for name in names):
            raise missing(at.key(names[0]))
        return checked

    return check_it


_BREAKPOINT: Final = object_of({"mode": one_of("explicit"), "ttl": one_of("30m", "12h")}, "mode")

_INPUT_TEXT: Final = object_of({"text": TEXT, "prompt_cache_breakpoint": _BREAKPOINT}, "text")

_INPUT_IMAGE: Final = _needing(
    object_of(
        {
            "detail": one_of("low", "high", "auto", "original"),
            "image_url": IMAGE_URL,
            "file_id": ID,
            "prompt_cache_breakpoint": _BREAKPOINT,
        },
        defaults={"detail": "auto"},
    ),
    "image_url",
    "file_id",
)

_FILE: Final = _needing(
    object_of(
        {
            "detail": one_of("auto", "low", "high"),
            "file_data": data,
            "file_id": ID,
            "file_url": FILE_URL,
            "filename": string(0, 1024),
            "prompt_cache_breakpoint": _BREAKPOINT,
        }
    ),
    "file_data",
    "file_id",
    "file_url",
)


@takes(schema_of(_FILE))
def _input_file(value: Any, at: Location) -> dict[str, Any]:
    part: dict[str, Any] = _FILE(value, at)
    if given := part.get("file_data"):
        check_file(given, part.get("filename") or "", at.key("file_data"))
    return part


_SOUND: Final = object_of({"data": data, "format": one_of("mp3", "wav")}, "data", "format")


@takes(schema_of(_SOUND))
def _sound(value: Any, at: Location) -> dict[str, Any]:
    sound: dict[str, Any] = _SOUND(value, at)
    check_sound(sound["data"], sound["format"], at.key("data"))
    return sound


_INPUT_AUDIO: Final = object_of({"input_audio": _sound}, "input_audio")

OUTPUT_PARTS: Final[Mapping[str, Check]] = {
    "input_text": _INPUT_TEXT,
    "input_image": _INPUT_IMAGE,
    "input_file": _input_file,
}
"""Checks of the parts of a call's output and of a prompt's variables, by type."""

INPUT_PARTS: Final[Mapping[str, Check]] = {**OUTPUT_PARTS, "input_audio": _INPUT_AUDIO}
"""Checks of the parts of a message to the model, by type."""


_OPAQUE: Final = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
"""Sealed content, which has the alphabet of base64. Text without a space is rarely this long."""

ENCRYPTED: Final = "encrypted_content"
"""The type of a part that OpenAI seals. Clients also send what a model of this server wrote as such parts, unsealed."""


def readable(encrypted: str) -> str | None:
    """Return the text of a part of the type `ENCRYPTED`; None if it is sealed."""
    return None if _OPAQUE.fullmatch(encrypted) else encrypted


_UNREADABLE: Final = "(encrypted content that this server cannot read)"

ENCRYPTED_PART: Final = object_of({ENCRYPTED: data}, ENCRYPTED)
"""Checks a part of the type `ENCRYPTED`."""

_CALL_OUTPUT_PART: Final = tagged(OUTPUT_PARTS)
_TEXT_PARTS: Final = ("output_text", "text")
"""Types of parts with which clients send the text of an output, beside `input_text`."""


_SENT_PARTS: Final = {
    **OUTPUT_PARTS,
    ENCRYPTED: ENCRYPTED_PART,
    **dict.fromkeys(_TEXT_PARTS, object_of({"text": TEXT}, "text")),
}


@takes(schema_of(tagged(_SENT_PARTS)))
def _call_output_part(value: Any, at: Location) -> dict[str, Any]:
    """Check a part of a call's output. Text of any type becomes `input_text`."""
    if isinstance(value, dict) and value.get("type") == ENCRYPTED:
        sealed = ENCRYPTED_PART(value, at)[ENCRYPTED]
        return {"type": "input_text", "text": readable(sealed) or _UNREADABLE}
    if isinstance(value, dict) and value.get("type") in _TEXT_PARTS:
        value = {"type": "input_text", **{name: value[name] for name in ("text",) if name in value}}
    part: dict[str, Any] = _CALL_OUTPUT_PART(value, at)
    return part


_OUTPUT: Final = array(_call_output_part)


@takes(any_of(schema_of(TEXT), schema_of(_OUTPUT)))
def call_output(value: Any, at: Location) -> str | list[dict[str, Any]]:
    """Check a call's output. A string stays one, since it differs from a list that holds one text."""
    if not isinstance(value, str | list):
        raise invalid_type(value, at, "one of a string or an array of objects")
    output: str | list[dict[str, Any]] = (TEXT if isinstance(value, str) else _OUTPUT)(value, at)
    return output
