"""The message for a wrong value: what the setting accepts, in words of the file instead of pydantic's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_EXPECTED: Final = {
    "list": "a list is expected here",
    "frozen_set": "a list is expected here",
    "dict": "a mapping is expected here",
    "model": "a mapping is expected here",
    "model_attributes": "a mapping is expected here",
    "string": "a text is expected here",
    "int": "a whole number is expected here",
    "float": "a number is expected here",
    "bool": "true or false is expected here",
    "path": "a path is expected here",
}
"""Messages by the first part of the type of pydantic's error, such as `list_type` and `int_parsing`."""
_KIND: Final = re.compile(r"(.+?)_(?:type|parsing|parsing_size|from_float)")
_WORD: Final = re.compile(r"'([^']*)'")
_SUBJECT: Final = re.compile(r"^\w+ should")
_ALTERNATIVES: Final = frozenset({"bool", "int", "float", "str"})
"""Names of simple types, which pydantic adds to a place for the alternatives of a type; others have brackets."""


def near(name: str, known: Sequence[str]) -> str:
    """Return the name that may be meant: it is similar, or has the same letters; empty if there is none."""
    from difflib import get_close_matches  # few starts have a wrong name

    same = [each for each in known if sorted(each) == sorted(name)]
    return next(iter(same or get_close_matches(name, known, n=1, cutoff=0.75)), "")


def place_of(loc: Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the place of an error in the file, without the alternatives of types, such as `literal['any','all']`."""
    return tuple(each for each in loc if isinstance(each, int) or not ("[" in each or each in _ALTERNATIVES))


def value_advice(errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the message for a value: what each alternative of its type expects, and the word that may be meant.

    Args:
        errors: pydantic's errors of this place, with their inputs, which are not repeated: they may be secret.
    """
    # For a wrong key of a mapping, only the key is reported, not its value too.
    said = [_said(each) for each in errors if each["loc"][-1:] == ("[key]",)] or [_said(each) for each in errors]
    return _with_meant(
        ", or ".join(dict.fromkeys(text for text, _ in said)), next((word for _, word in said if word), "")
    )


def other_word(given: str, words: Sequence[str]) -> str:
    """Return the message for a word that is none of the expected ones."""
    return _with_meant(*_one_of(words, given))


def _with_meant(text: str, meant: str) -> str:
    return f"{text}; did you mean '{meant}'?" if meant else text


def _said(error: Mapping[str, Any]) -> tuple[str, str]:
    """Return the message for one error, and the word that may be meant."""
    kind, context = str(error["type"]), error.get("ctx") or {}
    if kind in ("literal_error", "enum"):
        return _one_of(_WORD.findall(str(context["expected"])), error.get("input"))
    if kind == "union_tag_invalid":
        return _one_of(_WORD.findall(str(context["expected_tags"])), context["tag"])
    if (form := _KIND.fullmatch(kind)) and form[1] in _EXPECTED:
        return _EXPECTED[form[1]], ""
    return _SUBJECT.sub("it must", str(error["msg"]).removeprefix("Value error, ")), ""


def _one_of(words: Sequence[str], given: Any) -> tuple[str, str]:
    return f"it is one of {', '.join(words)}", near(given, words) if isinstance(given, str) else ""
