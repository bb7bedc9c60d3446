"""Checks of values from clients: small checks, and combinators that build larger ones.

A check takes the decoded value and its location. It returns the value to keep, or raises the 400 that OpenAI would
send. The forms of requests, items and tools are tables of checks, so each can be read as data. Most checks also have a
JSON Schema of what they accept (`schema_of`), from which the API's description is generated.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import json_blocks
from .errors import ApiError, bad_request

_SHOWN_CHARACTERS: Final = 80
"""Maximum characters of a client's text that an error message quotes."""

MAX_INTEGER: Final = 2**31 - 1
"""The largest integer that every engine accepts."""


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """How much one request may hold. The defaults are OpenAI's where it documents one.

    Attributes:
        max_items: maximum input items, and entries of any other array.
        max_tools: maximum tools.
        max_mcp_servers: maximum MCP servers among them.
        max_unnamed_tools: maximum tools without a name of their own, such as `web_search`.
        max_listed_tools: maximum tools of all MCP servers of one response. The model gets each of them.
        max_text_length: maximum characters of one text: an input, an output, instructions, arguments.
        max_data_length: maximum characters of one image, file or sound, in base64 or as a URL.
        bounded: whether counts and lengths are checked at all. A stored request was accepted with the limits of its
            time, so those of today do not apply to it.
        call_ids_required: whether an output has to name its call. If not, one without a `call_id` is passed on as such.
    """

    max_items: int = 20_000
    max_tools: int = 1_024
    max_mcp_servers: int = 32
    max_unnamed_tools: int = 16
    max_listed_tools: int = 2_048
    max_text_length: int = 10_485_760
    max_data_length: int = 73_400_320
    bounded: bool = True
    call_ids_required: bool = True


DEFAULT_LIMITS: Final = RequestLimits()


class Location:
    """The location of a value in the body (`input[3].content[0].type`), and the rules that apply.

    Attributes:
        path: the location.
        limits: how much the request may hold.
        refuse_unknown: whether unknown members of an object are refused; otherwise they are dropped.
    """

    __slots__ = ("limits", "path", "refuse_unknown")

    def __init__(self, path: str, limits: RequestLimits = DEFAULT_LIMITS, *, refuse_unknown: bool = False) -> None:
        self.path = path
        self.limits = limits
        self.refuse_unknown = refuse_unknown

    def key(self, name: str) -> Location:
        """Return the location of the member `name`."""
        path = f"{self.path}.{name}" if self.path else name
        return Location(path, self.limits, refuse_unknown=self.refuse_unknown)

    def index(self, position: int) -> Location:
        """Return the location of the array entry at `position`."""
        return Location(f"{self.path}[{position}]", self.limits, refuse_unknown=self.refuse_unknown)

    def leniently(self) -> Location:
        """Return this location for a value whose unknown members are dropped."""
        return Location(self.path, self.limits)


type Check = Callable[[Any, Location], Any]
type Schema = Mapping[str, Any]

_SCHEMA: Final = "schema"
"""The attribute of a check that holds its schema."""


def takes[Checking: Callable[..., Any]](schema: Schema) -> Callable[[Checking], Checking]:
    """Attach a JSON Schema to a check. The check accepts no more than the schema, and possibly less."""

    def mark(check: Checking) -> Checking:
        vars(check)[_SCHEMA] = schema
        return check

    return mark


def schema_of(check: Check) -> Schema:
    """Return the JSON Schema of the values that a check accepts. A check without one accepts anything."""
    schema: Schema = getattr(check, _SCHEMA, {})
    return schema


def any_of(*schemas: Schema) -> Schema:
    """Return a schema that accepts the values of any of these."""
    return {"anyOf": list(schemas)}


def or_null(schema: Schema) -> Schema:
    """Return a schema that also accepts null; the empty one already does."""
    return any_of(schema, {"type": "null"}) if schema else {}


# Errors


def invalid_type(value: Any, at: Location, expected: str) -> ApiError:
    """Return the 400 of a value whose JSON type is not `expected`."""
    message = f"Invalid type for '{at.path}': expected {expected}, but got {kind(value)} instead."
    return bad_request(message, at.path, "invalid_type")


def missing(at: Location) -> ApiError:
    """Return the 400 of a missing value."""
    return bad_request(f"Missing required parameter: '{at.path}'.", at.path, "missing_required_parameter")


def invalid_value(value: str, at: Location, supported: Collection[str]) -> ApiError:
    """Return the 400 of a string that is not one of `supported`."""
    be = "value is" if len(supported) == 1 else "values are"
    message = f"Invalid value: '{excerpt(value)}'. Supported {be}: {_listed(supported)}."
    return bad_request(message, at.path, "invalid_value")


def invalid(at: Location, why: str, code: str = "invalid_value") -> ApiError:
    """Return the 400 of an invalid value of the right type; `why` continues the sentence after the parameter's name."""
    return bad_request(f"Invalid '{at.path}': {why}", at.path, code)


def excerpt(text: str) -> str:
    """Return a client's text, truncated for an error message."""
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def kind(value: Any) -> str:
    """Return the JSON type of a decoded value, with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal number", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def _listed(values: Collection[str]) -> str:
    quoted = [f"'{value}'" for value in values]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"


# Checks of scalars and strings


@takes({"type": "boolean"})
def boolean(value: Any, at: Location) -> bool:
    """Check for true or false."""
    if not isinstance(value, bool):
        raise invalid_type(value, at, "a boolean")
    return value


def integer(low: int, high: int = MAX_INTEGER) -> Check:
    """Return a check for a JSON integer from `low` to `high`."""

    @takes({"type": "integer", "minimum": low, "maximum": high})
    def check(value: Any, at: Location) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise invalid_type(value, at, "an integer")
        _check_range(value, at, low, high, "integer")
        return value

    return check


def number(low: float = -math.inf, high: float = math.inf) -> Check:
    """Return a check for a JSON number from `low` to `high`, as a float.

    NaN and Infinity, which some decoders read, are refused.
    """

    bounds = {"minimum": low, "maximum": high}

    @takes({"type": "number", **{name: bound for name, bound in bounds.items() if math.isfinite(bound)}})
    def check(value: Any, at: Location) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise invalid_type(value, at, "a number")
        if not math.isfinite(value):
            raise invalid(at, "the number is not finite.")
        _check_range(value, at, low, high, "decimal")
        return float(value)

    return check


def _check_range(value: float, at: Location, low: float, high: float, word: str) -> None:
    if value < low:
        why = f"{word} below minimum value. Expected a value >= {low}, but got {value} instead."
        raise invalid(at, why, f"{word}_below_min_value")
    if value > high:
        why = f"{word} above maximum value. Expected a value <= {high}, but got {value} instead."
        raise invalid(at, why, f"{word}_above_max_value")


def string(low: int = 0, high: int | None = None, pattern: str | None = None) -> Check:
    """Return a check for a string of `low` (0 or 1) to `high` characters that fully matches `pattern`.

    Without `high`, `max_text_length` applies.
    """
    form = re.compile(pattern) if pattern else None
    keywords = {"minLength": low or None, "maxLength": high, "pattern": pattern and f"^{pattern}$"}

    @takes({"type": "string", **{name: value for name, value in keywords.items() if value is not None}})
    def check(value: Any, at: Location) -> str:
        if not isinstance(value, str):
            raise invalid_type(value, at, "a string")
        if len(value) < low:
            why = f"empty string. Expected a string with minimum length {low}, but got an empty string instead."
            raise invalid(at, why, "empty_string")
        _check_length(value, at, at.limits.max_text_length if high is None else high)
        if form and not form.fullmatch(value):
            why = f"string does not match pattern. Expected a string that matches the pattern '^{pattern}$'."
            raise invalid(at, why)
        return value

    return check


@takes({"type": "string"})
def data(value: Any, at: Location) -> str:
    """Check a string that holds an image, a file or a sound, or the URL of one."""
    if not isinstance(value, str):
        raise invalid_type(value, at, "a string")
    _check_length(value, at, at.limits.max_data_length)
    return value


def _check_length(value: str, at: Location, high: int) -> None:
    if at.limits.bounded and len(value) > high:
        why = (
            f"string too long. Expected a string with maximum length {high}, "
            f"but got a string with length {len(value)} instead."
        )
        raise invalid(at, why, "string_above_max_length")


def one_of(*values: str) -> Check:
    """Return a check for one of these strings."""

    @takes({"type": "string", "enum": list(values)})
    def check(value: Any, at: Location) -> str:
        if not isinstance(value, str):
            raise invalid_type(value, at, "a string")
        if value not in values:
            raise invalid_value(value, at, values)
        return value

    return check


def scalar_or(check_other: Check | None = None) -> Check:
    """Return a check for a string, a finite number, a boolean, or what `check_other` accepts."""
    finite = number()
    other = [schema_of(check_other)] if check_other else []

    @takes(any_of({"type": ["string", "number", "boolean"]}, *other))
    def check(value: Any, at: Location) -> Any:
        if isinstance(value, bool | str):
            return value
        if isinstance(value, int | float):
            finite(value, at)
            return value
        if check_other is None or value is None:
            raise invalid_type(value, at, "one of a string, a number, or a boolean")
        return check_other(value, at)

    return check


def unsupported(why: str) -> Check:
    """Return a check that refuses any value; `why` is the end of the error message."""

    def check(_: Any, at: Location) -> Any:
        raise bad_request(
            f"Unsupported parameter: '{at.path}' is not supported by this server. {why}",
            at.path,
            "unsupported_parameter",
        )

    return check


@takes({"type": "object"})
def an_object(value: Any, at: Location) -> dict[str, Any]:
    """Check for a JSON object with any members."""
    if not isinstance(value, dict):
        raise invalid_type(value, at, "an object")
    return value


def anything(value: Any, _: Location) -> Any:
    """Accept any value, such as a tool's result."""
    return value


# Checks of composite values


def array(entry: Check, low: int = 0, high: int | None = None) -> Check:
    """Return a check for an array of `low` (0 or 1) to `high` entries, at most `max_items`, each checked by `entry`."""
    bounds = {"minItems": low} if low else {}
    if high is not None:
        bounds["maxItems"] = high

    @takes({"type": "array", "items": schema_of(entry), **bounds})
    def check(value: Any, at: Location) -> list[Any]:
        if not isinstance(value, list):
            raise invalid_type(value, at, "an array")
        if len(value) < low:
            why = f"empty array. Expected an array with minimum length {low}, but got an empty array instead."
            raise invalid(at, why, "empty_array")
        max_items = at.limits.max_items
        check_count(value, at, max_items if high is None else min(max_items, high))
        return [entry(one, at.index(position)) for position, one in enumerate(value)]

    return check


def check_count(value: list[Any], at: Location, high: int) -> None:
    """Raise a 400 if the array has more than `high` entries."""
    if at.limits.bounded and len(value) > high:
        why = (
            f"array too long. Expected an array with maximum length {high}, "
            f"but got an array with length {len(value)} instead."
        )
        raise invalid(at, why, "array_above_max_length")


def object_of(fields: Mapping[str, Check], *required: str, defaults: Mapping[str, Any] | None = None) -> Check:
    """Return a check for an object with these fields, of which `required` must be present.

    Clients send null for absent fields, so an optional null counts as absent: the field gets its default, which is
    checked like a sent value, or is dropped. Unknown keys are refused where the location says so, and dropped
    elsewhere: only declared fields are stored and passed on.
    """
    fallback = defaults or {}

    @takes(_object_schema(fields, required))
    def check(value: Any, at: Location) -> dict[str, Any]:
        members = an_object(value, at)
        checked: dict[str, Any] = {}
        for name, check_member in fields.items():
            member = members.get(name)
            if member is None:
                member = fallback.get(name)
            if member is not None or (name in required and name in members):
                checked[name] = check_member(member, at.key(name))
            elif name in required:
                raise missing(at.key(name))
        if at.refuse_unknown:
            _refuse_unknown(members, fields, at)
        return checked

    return check


def _refuse_unknown(members: Mapping[str, Any], known: Mapping[str, Check], at: Location) -> None:
    for name in sorted(members.keys() - known.keys()):
        if members[name] is not None:
            path = at.key(excerpt(name)).path
            raise bad_request(f"Unknown parameter: '{path}'.", path, "unknown_parameter")


def _object_schema(fields: Mapping[str, Check], required: Collection[str]) -> Schema:
    schemas = {name: schema_of(check) for name, check in fields.items()}
    properties = {name: each if name in required else or_null(each) for name, each in schemas.items()}
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def tagged(table: Mapping[str, Check]) -> Check:
    """Return a check for an object whose `type` selects the entry of `table` that checks the rest."""

    @takes({"oneOf": [_of_type(name, schema_of(check)) for name, check in table.items()]})
    def check(value: Any, at: Location) -> dict[str, Any]:
        members = an_object(value, at)
        at_type = at.key("type")
        if "type" not in members:
            raise missing(at_type)
        name = members["type"]
        if not isinstance(name, str):
            raise invalid_type(name, at_type, "a string")
        if name not in table:
            raise invalid_value(name, at_type, table)
        rest = {member: value for member, value in members.items() if member != "type"}
        return {"type": name, **table[name](rest, at)}

    return check


_METADATA_PAIRS: Final = 16
_METADATA_VALUE: Final = string(0, 512)


@takes(
    {"type": "object", "maxProperties": _METADATA_PAIRS, "additionalProperties": {"type": "string", "maxLength": 512}}
)
def metadata(value: Any, at: Location) -> dict[str, str]:
    """Check for at most `_METADATA_PAIRS` pairs of a key of up to 64 characters and a string of up to 512."""
    pairs = an_object(value, at)
    if len(pairs) > _METADATA_PAIRS:
        why = (
            f"too many properties. Expected an object with at most {_METADATA_PAIRS} properties, "
            f"but got an object with {len(pairs)} properties instead."
        )
        raise invalid(at, why, "object_above_max_properties")
    for key, text in pairs.items():
        if len(key) > 64:
            why = f"the key '{excerpt(key)}' is too long. Expected keys with maximum length 64."
            raise invalid(at, why, "string_above_max_length")
        _METADATA_VALUE(text, at.key(key))
    return pairs


def _of_type(name: str, schema: Schema) -> Schema:
    properties = {**schema.get("properties", {}), "type": {"type": "string", "const": name}}
    known = {key: value for key, value in schema.items() if key not in ("properties", "required")}
    return {"type": "object", **known, "properties": properties, "required": ["type", *schema.get("required", ())]}


def check_json(body: Any) -> None:
    """Raise a 400 if `body` cannot be encoded as JSON again.

    A decoder may accept what stores and model servers refuse: unpaired surrogates, integers over 64 bits, hundreds
    of levels. Found here, it is the client's error; found when the response is written, it would be a server error. The
    checks above rely on it.
    """
    try:
        json_blocks.check(body)
    except TypeError:
        raise bad_request(
            "Invalid request body: it contains text that is not valid Unicode, an integer beyond 64 bits, or too many "
            "nested levels.",
            code="invalid_value",
        ) from None
