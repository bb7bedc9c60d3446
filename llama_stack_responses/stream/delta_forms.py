"""Deltas that differ only in their number and their text: the JSON around these is encoded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import orjson

from ..core.json_blocks import dumps
from .events import Event

_FILLED_IN: Final = {"sequence_number": b"%d", "delta": b"%b"}


def delta_form(event: Event) -> bytes:
    """Return the JSON of an event as a format of its number and of its text as JSON, in this order."""
    return b"{%b}" % b",".join([b"%b:%b" % (literal(dumps(name)), _value(name, event[name])) for name in event])


def literal(data: bytes) -> bytes:
    """Return a format that results in these bytes."""
    return data.replace(b"%", b"%%")


def _value(name: str, value: Any) -> bytes:
    return _FILLED_IN[name] if name in _FILLED_IN else literal(dumps(value))


class LastForm:
    """The format of the last delta: a burst of the same text uses it again.

    Args:
        make: returns the format of a delta.
    """

    __slots__ = ("_form", "_like", "_make")

    def __init__(self, make: Callable[[Event], bytes]) -> None:
        self._make = make
        self._like: Event | None = None
        self._form = b""

    def of(self, like: Event) -> bytes:
        """Return the format of a delta."""
        if like is not self._like:
            if self._like is None or like | _FILLED_IN != self._like | _FILLED_IN:
                self._form = self._make(like)
            self._like = like
        return self._form


class DeltaForm:
    """What some deltas have in common.

    Args:
        like: one of them.

    Attributes:
        like: the argument.
    """

    __slots__ = ("_json", "like")

    def __init__(self, like: Event) -> None:
        self.like = like
        self._json: bytes | None = None

    @property
    def json(self) -> bytes:
        """The result of `delta_form`."""
        if self._json is None:
            self._json = delta_form(self.like)
        return self._json


@dataclass(slots=True)
class DeltaRun:
    """Consecutive deltas of one form, at least one, without an object for each.

    Attributes:
        form: the form.
        first: the number of the first delta.
        texts: their texts.
    """

    form: DeltaForm
    first: int
    texts: list[str]

    @property
    def last(self) -> int:
        """The number of the last delta."""
        return self.first + len(self.texts) - 1

    def events(self) -> list[Event]:
        """Return the deltas as events."""
        like = self.form.like
        return [{**like, "sequence_number": each, "delta": text} for each, text in enumerate(self.texts, self.first)]

    def json(self) -> list[bytes]:
        """Return each delta as JSON; raise as `filled`."""
        return self.filled(self.form.json)

    def filled(self, form: bytes) -> list[bytes]:
        """Return a format of a number and of a text as JSON, filled in for each delta.

        Raises:
            TypeError: a text has half of a surrogate pair.
        """
        return [form % (number, orjson.dumps(text)) for number, text in enumerate(self.texts, self.first)]
