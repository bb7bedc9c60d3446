"""The part of a refusal that says what is refused: without what the model server would take, and without the request.

Servers list what they take behind a refused name ("unknown field `user`, expected one of `model`, `messages`"), and
some repeat the request. Neither says anything of a parameter that it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MARKS: Final = "'\"`\u2018\u2019\u201c\u201d\u300c\u300d"
"""Quotation marks."""

_REQUIRED: Final = frozenset({"model", "messages"})
"""Members of each chat request, which no server refuses: a list or an object with them is not of what is refused."""

_MIN_BARE: Final = 3
"""Minimum number of words without marks that are a list on their own."""

_ITEM: Final = r"[\w.$\[\]-]{1,64}+"
_QUOTED: Final = rf"[{MARKS}]{{1,2}}{_ITEM}[{MARKS}]{{1,2}}"
_QUOTED_PART: Final = rf"[{MARKS}]{{0,2}}{_ITEM}[{MARKS}]{{1,2}}"
_SEPARATOR: Final = (
    r"(?:\s?[,|/\u3001\uff0c]\s{0,8}(?:(?:and|or)\s)?|\s(?:and|or|&)\s|\s?\n\s{0,8}[-*\u2022]\s?|\s\([a-z ]{1,16}\),\s)"
)
_QUOTED_LIST: Final = rf"[\[({{]?\s?{_QUOTED}(?:{_SEPARATOR}{_QUOTED_PART}){{0,200}}"
_BARE: Final = r"(?<![\w.$-])[\w.$-]{1,64}+"
_BARE_LIST: Final = rf"[\[({{]?\s?(?:[-*\u2022]\s)?{_BARE}(?:{_SEPARATOR}{_BARE}){{0,200}}"
_LIST: Final = rf"(?:{_QUOTED_LIST}|{_BARE_LIST})"
_ONE: Final = rf"(?:{_QUOTED}|{_BARE})"

_TAKEN: Final = r"(?:supported|allowed|valid|accepted|permitted|available|known|possible|recogni[sz]ed)"
_ACCEPTED: Final = re.compile(
    rf"(?:expect\w*|must be|should be|needs? to be|is not|not|choose|use) (?:any )?one of(?: the following)?:?\s{_LIST}"
    rf"|\bexpect\w*:\s?{_LIST}"
    rf"|\b(?:expect\w*|must be|should be|needs? to be)\s{_QUOTED_LIST}"
    rf"|\b(?:did you mean|perhaps you meant)(?: to \w+)?:?\s{_LIST}"
    rf"|\b{_TAKEN}\b(?: [\w-]{{1,32}}){{0,5}}?(?:\s?[:=]|\s(?:are|is):?)\s{{0,8}}{_LIST}"
    rf"|\bsupports?(?: only)?:?\s{_QUOTED_LIST}|\bsupports? only:?\s{_LIST}"
    rf"|\bonly:?\s{_LIST}\s(?:is|are)\s{_TAKEN}"
    rf"|\b(?:use|try|set|specify|send|pass)\s{_ONE}\sinstead|\b(?:in favou?r of|replaced by|renamed to)\s{_ONE}",
    re.IGNORECASE,
)
"""What a server would take, behind the words that say so, or before them."""

_NEGATED: Final = re.compile(r"(?:\b(?:not|no|never|cannot)\b|n't\b)[^.:,;]{0,24}$", re.IGNORECASE)
_BEFORE: Final = 40
_ANY_LIST: Final = re.compile(
    rf"{_QUOTED}(?:{_SEPARATOR}{_QUOTED_PART}){{1,200}}|{_BARE}(?:{_SEPARATOR}{_BARE}){{{_MIN_BARE - 1},200}}"
)
_NAME: Final = re.compile(r"[a-z][a-z0-9_]*")
_MEMBER: Final = re.compile(rf"([a-z][a-z0-9_]*)[{MARKS}]?\s?[:=]")
_BRACKETS: Final = re.compile(r"[{}()]")


def subject(text: str, parameters: frozenset[str]) -> str:
    """Return a text in which lists of what is accepted, and the request itself, are left out.

    Args:
        text: what a model server said, of at most a few thousand characters.
        parameters: the names of a chat request's members.
    """
    text = _without(text, _requests(text, parameters))
    accepted = (match.span() for match in _ACCEPTED.finditer(text) if not _is_negated(text, match))
    text = _without(text, accepted)
    return _without(text, (match.span() for match in _ANY_LIST.finditer(text) if _has_required(match)))


def _without(text: str, spans: Iterator[tuple[int, int]]) -> str:
    """Return a text without some of its parts; those within others are left out with them."""
    kept, at = list[str](), 0
    for start, end in sorted(spans):
        if start >= at:
            kept.append(text[at:start])
        at = max(at, end)
    return "... ".join((*kept, text[at:]))


def _is_negated(text: str, match: re.Match[str]) -> bool:
    """Return whether a list is one of what is not accepted: "parameters that are not supported: `user`"."""
    return bool(re.match(_TAKEN, match[0], re.IGNORECASE)) and bool(
        _NEGATED.search(text[max(0, match.start() - _BEFORE) : match.start()])
    )


def _has_required(match: re.Match[str]) -> bool:
    names = set(_NAME.findall(match[0]))
    return names >= _REQUIRED or (match[0][0] in MARKS and not names.isdisjoint(_REQUIRED))


def _requests(text: str, parameters: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield where a text has a chat request, as JSON or as Python shows it; one that is cut off reaches to the end."""
    opened: list[tuple[int, list[str]]] = []
    at = 0
    for match in _BRACKETS.finditer(text):
        if opened:
            opened[-1][1].append(text[at : match.start()])
        at = match.end()
        if match[0] in "{(":
            opened.append((match.start(), []))
        elif opened:
            start, own = opened.pop()
            if _is_request("".join(own), parameters):
                yield start, match.end()
    if opened:
        opened[-1][1].append(text[at:])
    yield from ((start, len(text)) for start, own in opened if _is_request("".join(own), parameters))


def _is_request(members: str, parameters: frozenset[str]) -> bool:
    """Return whether the text of an object, without the objects in it, is that of a chat request."""
    names = parameters.intersection(_MEMBER.findall(members))
    return len(names) > 1 and not names.isdisjoint(_REQUIRED)
