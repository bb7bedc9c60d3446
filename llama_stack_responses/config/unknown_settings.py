"""The message for an unknown setting: where it belongs, or which setting was meant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from .wrong_values import near, place_of, value_advice

UNKNOWN_SETTING: Final = "unknown_setting"
"""The type of the error of an unknown setting, with its advice."""
FOREIGN_SETTING: Final = "foreign_setting"
"""The same for a setting that resembles no setting of this provider."""
WRONG_VALUE: Final = "wrong_value"
"""The type of any other error, with its advice."""
_EXPLAINED: Final = (UNKNOWN_SETTING, FOREIGN_SETTING, WRONG_VALUE)
_SHOWN_PLACES: Final = 3
"""Places at most that are named; a setting of this name has more of them if it says little, such as `seconds`."""

type _Place = tuple[int | str, ...]


def explained(
    model: type[BaseModel], error: ValidationError, otherwise: Mapping[str, str] | None = None, last: str = ""
) -> ValidationError:
    """Return the error with one advice for each place of the file, and without the values, which may be secret.

    An error that has its advice stays as it is.

    Args:
        model: the settings.
        otherwise: messages for some names of the top level.
        last: the message for other unknown names of the top level; by default, it lists the known ones.
    """
    found: dict[_Place, list[Any]] = {}
    for each in error.errors(include_url=False):
        found.setdefault(place_of(each["loc"]), []).append(each)
    # Of the alternatives of a type, the one counts that fits the outer form of the value.
    places = [each for each in found if not any(other[: len(each)] == each != other for other in found)]
    details = [_detail(model, each, found[each], otherwise or {}, last) for each in places]
    return ValidationError.from_exception_data(error.title, details, hide_input=True)


def _detail(
    model: type[BaseModel], place: _Place, errors: Sequence[Any], otherwise: Mapping[str, str], last: str
) -> InitErrorDetails:
    """Return the error that stands for all errors of one place."""
    kind, text = errors[0]["type"], errors[0]["msg"]
    if kind == "extra_forbidden":
        kind, text = _unknown(model, place, otherwise, last)
    elif kind == "missing":
        kind, text = WRONG_VALUE, "this setting is missing"
    elif kind == "union_tag_not_found":
        kinds = [each for block in _blocks(model, place) for each in _kinds(block)]
        kind, text, place = WRONG_VALUE, f"this setting is missing: it is one of {', '.join(kinds)}", (*place, "type")
    elif kind not in _EXPLAINED:
        place = (*place, "type") if kind == "union_tag_invalid" else place
        kind, text = WRONG_VALUE, value_advice(errors)
    return {"type": PydanticCustomError(kind, text), "loc": _place_in_file(model, place), "input": None}


def _unknown(model: type[BaseModel], place: _Place, otherwise: Mapping[str, str], last: str) -> tuple[str, str]:
    """Return the type and the message of the error of an unknown setting."""
    name, top = str(place[-1]), len(place) == 1
    if top and name in otherwise:
        return UNKNOWN_SETTING, otherwise[name]
    known = list(dict.fromkeys(each for block in _blocks(model, place[:-1]) for each in block.model_fields))
    if meant := near(name, known):
        return UNKNOWN_SETTING, f"there is no such setting here; did you mean '{meant}'?"
    if places := _places_elsewhere(model, place):
        return UNKNOWN_SETTING, f"there is no such setting here; move it to {' or '.join(map(repr, places))}"
    rest = last if top and last else f"this block has {', '.join(known)}"
    return FOREIGN_SETTING, f"there is no such setting here, take it out; {rest}"


def places_of(model: type[BaseModel], name: str, prefix: str = "") -> Iterator[str]:
    """Yield where settings of this name belong, such as `fetch.seconds`."""
    for each, field in model.model_fields.items():
        if each == name:
            yield prefix + each
        for inner in models_in(field.annotation):
            yield from places_of(inner, name, f"{prefix}{each}.")


def belonging_place(model: type[BaseModel], name: str) -> str:
    """Return where a setting of this name belongs; empty if there is none, or if the name says too little."""
    places = list(dict.fromkeys(places_of(model, name)))
    if name in places:
        return name
    return places[0] if "_" in name and len(places) == 1 else ""


def _places_elsewhere(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """Return where a setting of this name belongs; nowhere if other kinds of the same block have it, or many blocks."""
    places = list(dict.fromkeys(places_of(model, str(loc[-1]))))
    return [] if len(places) > _SHOWN_PLACES or f"{loc[0]}.{loc[-1]}" in places else places


def _place_in_file(model: type[BaseModel], place: _Place) -> _Place:
    """Return a place without the kinds of its blocks (`sqlite`), which the file has as a `type` inside."""
    kept = []
    for index, part in enumerate(place):
        blocks = _blocks(model, place[:index])
        if any(part in each.model_fields for each in blocks) or not any(_is_kind(each, part) for each in blocks):
            kept.append(part)
    return tuple(kept)


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
    return kind in _kinds(block)


def _kinds(block: type[BaseModel]) -> Sequence[str]:
    """Return the kinds of the values of this class; none if it is of no kind."""
    return get_args(block.model_fields["type"].annotation) if "type" in block.model_fields else ()


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """Return the classes of settings in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models_in(each)]
