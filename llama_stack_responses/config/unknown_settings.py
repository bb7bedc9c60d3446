"""What is said of a setting that there is not where it stands: where it belongs, or which one was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

_UNKNOWN: Final = "extra_forbidden"
_MISSING: Final = "missing"
UNKNOWN_SETTING: Final = "unknown_setting"
"""The type of an error that has its advice."""
_SHOWN_PLACES: Final = 3
"""Places at most that are named; a setting of this name has more of them if it says little, such as `seconds`."""


def explained(
    model: type[BaseModel], error: ValidationError, otherwise: Mapping[str, str] | None = None, last: str = ""
) -> ValidationError:
    """Return the error with advice for each unknown setting, and without the values, which may be secret.

    An error that has its advice stays as it is.

    Args:
        model: the settings.
        otherwise: what is said of some names of the top level.
        last: what is said of names of the top level of which nothing better is known; the default lists the known ones.
    """

    def advice(loc: Sequence[int | str]) -> str:
        name, top = str(loc[-1]), len(loc) == 1
        if top and otherwise and name in otherwise:
            return otherwise[name]
        blocks = _blocks(model, loc[:-1])
        known = list(dict.fromkeys(each for block in blocks for each in block.model_fields))
        if meant := near(name, known):
            return f"there is no such setting here; did you mean '{meant}'?"
        if places := _places_elsewhere(model, loc):
            return f"there is no such setting here; move it to {' or '.join(map(repr, places))}"
        rest = last if top and last else f"this block has {', '.join(known)}"
        return f"there is no such setting here, take it out; {rest}"

    def detail(each: Any) -> InitErrorDetails:
        kind, text = each["type"], each["msg"].removeprefix("Value error, ")
        if kind == _UNKNOWN:
            kind, text = UNKNOWN_SETTING, advice(each["loc"])
        elif kind == _MISSING:
            text = "this setting is missing"
        return {"type": PydanticCustomError(kind, text), "loc": each["loc"], "input": None}

    found = error.errors(include_url=False, include_context=False, include_input=False)
    return ValidationError.from_exception_data(error.title, [detail(each) for each in found], hide_input=True)


def near(name: str, known: Sequence[str]) -> str:
    """Return the name that may be meant: it is similar, or has the same letters; empty if there is none."""
    same = [each for each in known if sorted(each) == sorted(name)]
    return next(iter(same or get_close_matches(name, known, n=1, cutoff=0.75)), "")


def places_of(model: type[BaseModel], name: str, prefix: str = "") -> Iterator[str]:
    """Yield where settings of this name belong, such as `fetch.seconds`."""
    for each, field in model.model_fields.items():
        if each == name:
            yield prefix + each
        for inner in models_in(field.annotation):
            yield from places_of(inner, name, f"{prefix}{each}.")


def _places_elsewhere(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Return where a setting of this name belongs; nowhere if other kinds of the same block have it, or many blocks."""
    places = list(dict.fromkeys(places_of(model, str(loc[-1]))))
    return [] if len(places) > _SHOWN_PLACES or f"{loc[0]}.{loc[-1]}" in places else places


def _blocks(model: type[BaseModel], loc: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the classes that the block at a location may have.

    A location also has the positions in lists, and the kinds of a store (`sqlite`).
    """
    blocks = [model]
    for part in loc:
        inside = [each.model_fields[str(part)].annotation for each in blocks if part in each.model_fields]
        found = [each for annotation in inside for each in models_in(annotation)]
        blocks = found or [each for each in blocks if _is_kind(each, part)] or blocks
    return blocks


def _is_kind(block: type[BaseModel], kind: int | str) -> bool:
    """Return whether this is the class of the values of a kind."""
    return "type" in block.model_fields and kind in get_args(block.model_fields["type"].annotation)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the classes of settings in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_in(each)]
