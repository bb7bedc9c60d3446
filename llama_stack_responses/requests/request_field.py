"""What the server knows of a field of a request, declared with the field itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

from ..core.shapes import Check, Schema, or_null, schema_of

_KEY: Final = "request"


@dataclass(frozen=True, slots=True)
class RequestField:
    """A field of a request.

    Attributes:
        check: checks a value that is not null, and returns what is kept of it.
        echo: returns what the response repeats, given the request's value, or the field's default if the client sent
            none. None if responses do not have the field.
        schema: JSON Schema of what the response repeats.
        forwarded: whether a chat request has the field too, with the same name and value.
        lenient: whether the members of its objects may be unknown ones, whatever the settings say.
        unsupported: returns what of a value this server does not support, or None: such a request is refused, since
            the field would be ignored otherwise. None if it supports all.
    """

    check: Check
    echo: Callable[[Any], Any] | None
    schema: Schema
    forwarded: bool
    lenient: bool
    unsupported: Callable[[Any], str | None] | None


def request_field(
    check: Check,
    default: Any = None,
    *,
    echo: Callable[[Any], Any] | None = None,
    schema: Schema | None = None,
    forwarded: bool = False,
    lenient: bool = False,
    unsupported: Callable[[Any], str | None] | None = None,
    factory: Callable[[], Any] | None = None,
) -> Any:
    """Declare a field of the dataclass `CreateRequest`; the arguments are those of `RequestField`.

    Args:
        default: the value if the client sent none; `MISSING` if it has to.
        schema: None takes that of `check`, with null if the response may have null.
        factory: makes a default that is not shared.
    """
    if schema is None:
        unset = echo(None if factory or default is MISSING else default) if echo else None
        schema = or_null(schema_of(check)) if unset is None else schema_of(check)
    known = {_KEY: RequestField(check, echo, schema, forwarded, lenient, unsupported)}
    if factory is not None:
        return field(default_factory=factory, metadata=known)
    return field(metadata=known) if default is MISSING else field(default=default, metadata=known)


def declared(kind: Any) -> dict[str, RequestField]:
    """Return the declared fields of a dataclass by their names, in the order of these."""
    found = {name: each.metadata for name, each in kind.__dataclass_fields__.items()}
    return {name: found[name][_KEY] for name in sorted(found) if _KEY in found[name]}


def same(value: Any) -> Any:
    """Return the value: the response repeats it as it is."""
    return value


def or_else(default: Any) -> Callable[[Any], Any]:
    """Return the echo of a field that has this value in a response if the client sent none."""
    return lambda value: default if value is None else value
