"""A kind of change of chat requests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .refusal import Refusal


class Step(NamedTuple):
    """One change: the name of its kind, and its argument, which is a string or a tuple of JSON values."""

    kind: str
    argument: Any = None

    def __str__(self) -> str:
        """Return the change in words, for logs and people."""
        match self.argument:
            case None:
                return self.kind
            case tuple():
                return f"{self.kind} {' '.join(map(str, self.argument))}"
        return f"{self.kind} {self.argument}"


def _tells_nothing(_: Json, __: Any) -> None:
    """Leave the response as it is."""


@dataclass(frozen=True, slots=True)
class Adaptation:
    """A kind of change of chat requests.

    Attributes:
        name: its name, in settings, logs, metrics and the store; it is never changed.
        asks: returns the arguments with which it answers a refusal of a chat request; none if it does not help. The
            request is what was refused, with all earlier changes.
        apply: returns the changed chat request, or the same object if there is nothing to change. It changes no value
            of the request in place.
        tell: corrects the fields of a response whose chat request was changed, so that they say what was asked.
        lasts: whether it is remembered, or is for the refused request alone.
        withholds: whether it takes something from an answer, so that other requests are changed only if two refusals
            have shown that they need it. A change of the form alone is made to all after one refusal.
        instead_of: the kind of which it takes the place, if the model server refuses what that has changed too.
        walks_messages: whether `apply` works on all messages or schemas, which takes long for a long request. One
            whose argument is a path within messages always does.
    """

    name: str
    asks: Callable[[Refusal, Json], Iterable[Any]]
    apply: Callable[[Json, Any], Json]
    tell: Callable[[Json, Any], None] = _tells_nothing
    lasts: bool = True
    withholds: bool = True
    instead_of: str = ""
    walks_messages: bool = False


Form: Final = partial(Adaptation, withholds=False)
"""A kind that changes the form of a request alone."""


def answers(pattern: LatePattern, apply: Callable[[Json, Any], Json]) -> Callable[[Refusal, Json], Iterator[None]]:
    """Return `asks` of a kind without an argument that answers these words, if `apply` changes the request."""

    def asks(refusal: Refusal, chat: Json) -> Iterator[None]:
        if pattern.search(refusal.words) and apply(chat, None) is not chat:
            yield None

    return asks
