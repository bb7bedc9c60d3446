"""The part of a text around what was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from typing import Final

from ....core.types import Json
from ....store.search_index import Term, folded

_CHARACTERS: Final = 160
"""Characters of a snippet."""
_BEFORE: Final = 20
"""Characters of it in front of what was found."""
_MATCHES: Final = 200
"""Matches that are looked at for the best part of a text."""


def snippet(text: str, terms: Sequence[Term]) -> list[Json]:
    """Return the part of a text that has most of the terms.

    Returns:
        its pieces in order, each a `text` and whether it is a `match`; nothing if no term is found.
    """
    found = _found(text, terms) or _found_folded(text, terms)
    if not found:
        return []
    best = max(found, key=lambda each: (len(_terms_within(found, each[0])), -each[0]))
    start = _start(text, best[0])
    pieces: list[Json] = []
    at, end = start, start + _CHARACTERS
    for first, last, _ in sorted(found):
        if first >= at and last <= end:
            pieces += [_piece(text[at:first], match=False), _piece(text[first:last], match=True)]
            at = last
    pieces.append(_piece(text[at:end], match=False))
    if start:
        pieces.insert(0, _piece("…", match=False))
    if end < len(text):
        pieces.append(_piece("…", match=False))
    return [each for each in pieces if each["text"]]


def _piece(text: str, *, match: bool) -> Json:
    return {"text": re.sub(r"\s+", " ", text), "match": match}


def _start(text: str, match: int) -> int:
    """Return where the snippet begins: at a word in front of the match."""
    start = max(0, match - _BEFORE)
    space = text.find(" ", start, match) if start else -1
    return space + 1 if space >= 0 else start


def _terms_within(found: Sequence[tuple[int, int, int]], start: int) -> set[int]:
    return {term for first, last, term in found if first >= start and last <= start + _CHARACTERS - _BEFORE}


def _found(text: str, terms: Sequence[Term]) -> list[tuple[int, int, int]]:
    """Return where terms are found: the beginning, the end, and the number of the term."""
    return [
        (match.start(), match.end(), number)
        for number, term in enumerate(terms)
        for match in islice(_pattern(term).finditer(text), _MATCHES // len(terms))
    ]


def _found_folded(text: str, terms: Sequence[Term]) -> list[tuple[int, int, int]]:
    """Return the same for a text with accents, of which each character is folded by itself."""
    if text.isascii():
        return []
    same = "".join(short if len(short := folded(each)) == 1 else each for each in text)
    return _found(same, terms)


def _pattern(term: Term) -> re.Pattern[str]:
    words = r"[\W_]{0,8}".join(map(re.escape, term.words))
    rest = r"[^\W_]{0,40}" if term.prefix else r"(?![^\W_])"
    before = r"(?<![^\W_])" if term.words[0].isascii() else ""
    return re.compile(before + words + (rest if term.words[-1].isascii() or term.prefix else ""), re.IGNORECASE)
