"""Turn citation markers in the model's text into annotations while the text streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .deltas import Annotation, Delta, Text

Json = dict[str, Any]

OPENS: Final = "\N{LEFT BLACK LENTICULAR BRACKET}"
CLOSES: Final = "\N{RIGHT BLACK LENTICULAR BRACKET}"
DAGGER: Final = "\N{DAGGER}"

_MARKER: Final = re.compile(f"{OPENS}([A-Za-z]?[0-9]{{1,6}})(?:{DAGGER}([^{OPENS}{CLOSES}\n]{{0,100}}))?{CLOSES}")
_BEGUN: Final = re.compile(f"{OPENS}[A-Za-z]?(?:[0-9]{{0,6}}|[0-9]{{1,6}}{DAGGER}[^{OPENS}{CLOSES}\n]{{0,100}})")


@dataclass(frozen=True, slots=True)
class Citation:
    """The replacement for a marker.

    Attributes:
        text: the text that the reader sees instead of the marker.
        annotation: the annotation of that text; its positions are filled in later.
    """

    text: str
    annotation: Json


Cite = Callable[[str, str], Citation | None]
"""`(key, place) -> citation` for a marker with this key and the text after its dagger; None: it cites nothing."""


class Citing:
    """Replaces markers in the text of one round.

    A marker is `【1】` or `【1†L3-L5】`. One that cites nothing is kept as ordinary text. With a dagger it is dropped:
    only a model that invents a source writes it.

    Args:
        cite: returns the citation of a marker.
    """

    def __init__(self, cite: Cite) -> None:
        self._cite = cite
        self._held: Text | None = None
        self._before = ""

    def feed(self, delta: Delta) -> Sequence[Delta]:
        """Return the deltas to emit for this one."""
        if not isinstance(delta, Text):
            return (*self._release(), delta)
        held = self._held
        if held is None:
            if OPENS not in delta.text:
                self._before = delta.text or self._before
                return (delta,)
        else:
            delta = Text(held.text + delta.text, [*(held.logprobs or ()), *(delta.logprobs or ())] or None)
        return list(self._read(delta))

    def _release(self) -> Sequence[Delta]:
        """Return held-back text that turned out not to be a marker."""
        held, self._held = self._held, None
        if held is None:
            return ()
        self._before = held.text
        return (held,)

    def _read(self, whole: Text) -> Iterator[Delta]:
        text, shown, end = whole.text, 0, len(whole.text)
        start = text.find(OPENS)
        while start >= 0:
            found = _MARKER.match(text, start)
            if found is None and _BEGUN.fullmatch(text, start):
                end = start
                break
            behind = start + 1
            if found:
                citation = self._cite(found[1], found[2] or "")
                if citation or found[2] is not None:
                    yield from self._show(whole, shown, start)
                    shown = behind = found.end()
                if citation:
                    yield from self._cited(citation)
            start = text.find(OPENS, behind)
        yield from self._show(whole, shown, end)
        self._held = _piece(whole, end, len(text)) if end < len(text) else None

    def _show(self, whole: Text, start: int, end: int) -> Iterator[Delta]:
        if start < end:
            piece = _piece(whole, start, end)
            self._before = piece.text
            yield piece

    def _cited(self, citation: Citation) -> Iterator[Delta]:
        if citation.text:
            glued = self._before and not self._before[-1].isspace() and self._before[-1] not in "([{"
            self._before = f" {citation.text}" if glued else citation.text
            yield Text(self._before)
        yield Annotation(citation.annotation, len(citation.text))


def _piece(whole: Text, start: int, end: int) -> Text:
    """Return a slice of a text with the tokens of the slice; a token at its edge is cut."""
    text = whole.text[start:end]
    if whole.logprobs is None or len(text) == len(whole.text):
        return Text(text, whole.logprobs)
    first = len(whole.text[:start].encode())
    last = first + len(text.encode())
    kept: list[Json] = []
    position = 0
    for entry in whole.logprobs:
        encoded = entry["bytes"]
        low, high = max(first - position, 0), min(last - position, len(encoded))
        position += len(encoded)
        if low < high:
            kept.append(entry if high - low == len(encoded) else _cut(entry, encoded[low:high]))
    return Text(text, kept or None)


def _cut(entry: Json, encoded: list[int]) -> Json:
    return {**entry, "token": bytes(encoded).decode(errors="replace"), "bytes": encoded}
