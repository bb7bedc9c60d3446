"""Turn citation markers in the model's text into annotations while the text streams."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..core.types import Json
from .deltas import Annotation, Delta, Text

OPENS: Final = "\N{LEFT BLACK LENTICULAR BRACKET}"
CLOSES: Final = "\N{RIGHT BLACK LENTICULAR BRACKET}"
DAGGER: Final = "\N{DAGGER}"

_MARKER: Final = re.compile(f"{OPENS}([A-Za-z]?[0-9]{{1,6}})(?:{DAGGER}([^{OPENS}{CLOSES}\n]{{0,100}}))?{CLOSES}")
_MAX_CHARACTERS: Final = 2**20
"""Maximum characters of the citations of one round: a marker of three characters becomes a link and an annotation."""
_ANNOTATION_CHARACTERS: Final = 256
"""Characters counted for an annotation in addition to its texts."""
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
"""`(key, lines) -> citation` for a marker with this key and the text after its dagger; None: it cites nothing."""


class CitationExtractor:
    """Replaces markers in the text of one round.

    A marker is `【1】` or `【1†L3-L5】`. One that cites nothing is kept as ordinary text. With a dagger it is dropped:
    only a model that invents a source writes it.

    Args:
        cite: returns the citation of a marker.
    """

    def __init__(self, cite: Cite) -> None:
        self._cite = cite
        self._left = _MAX_CHARACTERS
        self._buffered: Text | None = None
        self._before = ""

    def feed(self, delta: Delta) -> Iterable[Delta]:
        """Return the deltas to emit for this one. They are built while they are taken, all before the next call."""
        if not isinstance(delta, Text):
            return (*self._release(), delta)
        buffered = self._buffered
        if buffered is None:
            if OPENS not in delta.text:
                self._before = delta.text or self._before
                return (delta,)
        else:
            delta = Text(buffered.text + delta.text, [*(buffered.logprobs or ()), *(delta.logprobs or ())] or None)
        return self._read(delta)

    def _release(self) -> Sequence[Delta]:
        """Return held-back text that turned out not to be a marker."""
        buffered, self._buffered = self._buffered, None
        if buffered is None:
            return ()
        self._before = buffered.text
        return (buffered,)

    def _read(self, whole: Text) -> Iterator[Delta]:
        text, shown, end = whole.text, 0, len(whole.text)
        self._buffered = None
        slices = _Slices(whole)
        start = text.find(OPENS)
        while start >= 0:
            marker = _MARKER.match(text, start)
            if marker is None and _BEGUN.fullmatch(text, start):
                end = start
                break
            behind = start + 1
            if marker:
                citation = self._cited_by(marker)
                if citation or marker[2] is not None:
                    yield from self._show(slices, shown, start)
                    shown = behind = marker.end()
                if citation:
                    yield from self._cited(citation)
            start = text.find(OPENS, behind)
        yield from self._show(slices, shown, end)
        self._buffered = slices.cut(end, len(text)) if end < len(text) else None

    def _cited_by(self, marker: re.Match[str]) -> Citation | None:
        citation = self._cite(marker[1], marker[2] or "") if self._left > 0 else None
        if citation:
            texts = [value for value in citation.annotation.values() if isinstance(value, str)]
            self._left -= _ANNOTATION_CHARACTERS + len(citation.text) + sum(map(len, texts))
        return citation

    def _show(self, slices: _Slices, start: int, end: int) -> Iterator[Delta]:
        if start < end:
            piece = slices.cut(start, end)
            self._before = piece.text
            yield piece

    def _cited(self, citation: Citation) -> Iterator[Delta]:
        if citation.text:
            glued = self._before and not self._before[-1].isspace() and self._before[-1] not in "([{"
            self._before = f" {citation.text}" if glued else citation.text
            yield Text(self._before)
        yield Annotation(citation.annotation, len(citation.text))


class _Slices:
    """Takes slices of a text with the tokens of each slice; a token at an edge is cut.

    The slices ascend, so each token is read once.
    """

    def __init__(self, whole: Text) -> None:
        self._whole = whole
        self._tokens = whole.logprobs or []
        self._next = 0  # the first token that may reach into the next slice
        self._begins = 0  # the byte at which it begins
        self._at = 0  # the end of the last slice, in characters and in bytes
        self._byte = 0

    def cut(self, start: int, end: int) -> Text:
        """Return a slice, which begins at or after the end of the last one."""
        text = self._whole.text[start:end]
        if self._whole.logprobs is None or len(text) == len(self._whole.text):
            return Text(text, self._whole.logprobs)
        first = self._byte + len(self._whole.text[self._at : start].encode())
        self._at, self._byte = end, first + len(text.encode())
        return Text(text, list(self._between(first, self._byte)) or None)

    def _between(self, first: int, last: int) -> Iterator[Json]:
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            encoded = token["bytes"]
            low, high = max(first - self._begins, 0), min(last - self._begins, len(encoded))
            if low < high:
                yield token if high - low == len(encoded) else _cut(token, encoded[low:high])
            if self._begins + len(encoded) > last:
                return
            self._begins += len(encoded)
            self._next += 1


def _cut(entry: Json, encoded: list[int]) -> Json:
    return {**entry, "token": bytes(encoded).decode(errors="replace"), "bytes": encoded}
