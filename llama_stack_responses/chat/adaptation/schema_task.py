"""Checks a JSON text against a JSON schema of a client, in a worker process: a pattern may take any time."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from .json_answers import NO_JSON

_PLACE_PARTS: Final = 16
_SHOWN_CHARACTERS: Final = 500


def read(content: bytes, _: dict[str, Any]) -> dict[str, str]:
    """Return the `text` that says why the `text` in the JSON of `content` is not valid against its `schema`; or ""."""
    given = json.loads(content)
    return {"text": invalid(given["text"], given["schema"])}


def invalid(text: str, schema: Any) -> str:
    """Return one sentence that says why a text is not valid against a schema; empty if it is.

    A schema that is invalid itself, or that refers to something elsewhere, accepts any JSON.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        return f"{NO_JSON} ({_short(str(error))})."
    try:
        # Without an argument, references to other schemas would be fetched.
        validator: Any = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
        problems: list[ValidationError] = sorted(validator.iter_errors(value), key=_depth)
    except (SchemaError, Unresolvable, RecursionError, ValueError, TypeError, re.error):
        return ""
    if not problems:
        return ""
    place = "".join(f"[{each!r}]" for each in list(problems[0].absolute_path)[:_PLACE_PARTS])
    return f"{_short(problems[0].message)}{f' at {place}' if place else ''}."


def _depth(error: ValidationError) -> int:
    return len(error.absolute_path)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
