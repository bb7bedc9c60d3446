"""What a user types to search: words, phrases in quotes, and filters such as `model:gpt-oss` or `after:2026-01-31`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Final

from ....core.errors import ApiError, bad_request
from ....core.statuses import STATUSES
from ....core.types import Json
from ....store.list_rows import Row
from ....store.search_index import Term, has_term, words_of
from ..refused.rows import STATUS

MAX_CHARACTERS: Final = 1_000
_MAX_PARTS: Final = 32
"""Words, phrases and filters of one search."""

_PREFIX_CHARACTERS: Final = 3
"""Characters from which a word also stands for longer words that begin with it."""

# key:"value" or key:value, "phrase", or a word
_PART: Final = re.compile(r'([^\W\d][\w.-]*):(?!//)(?:"([^"]*)"?|(\S+))|"([^"]*)"?|(\S+)')


_COMPARED: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SCORE: Final = re.compile(r"([<>]?=?)([01](?:\.\d{1,6})?|\.\d{1,6})")
_WORDS_OF_SCORES: Final = {"up": (">=", 0.5), "good": (">=", 0.5), "down": ("<", 0.5), "bad": ("<", 0.5)}


@dataclass(frozen=True, slots=True)
class ScoreTest:
    """What is asked of the score of a response.

    Attributes:
        sign: how it compares with `bound`; or `any` for a score or a note, and `none` for neither.
        bound: from 0 to 1.
    """

    sign: str
    bound: float = 0.0

    def holds(self, score: Json | None) -> bool:
        """Return whether it is true of a score, or of none."""
        if self.sign in ("any", "none"):
            return (score is not None) == (self.sign == "any")
        return score is not None and score["score"] is not None and _COMPARED[self.sign](score["score"], self.bound)


@dataclass(frozen=True, slots=True)
class Searched:
    """What a search asks for; all of it has to be true of a row.

    Attributes:
        terms: words and phrases.
        models, tools, conversations: as in the row; a model also without its provider.
        statuses: one of them is the row's.
        metadata: pairs of a key and its value.
        scores: what is asked of the score.
        since, until: bounds of the creation in seconds since the epoch.
    """

    terms: Sequence[Term] = ()
    models: Sequence[str] = ()
    tools: Sequence[str] = ()
    conversations: Sequence[str] = ()
    statuses: frozenset[str] = frozenset()
    metadata: Sequence[tuple[str, str]] = ()
    scores: Sequence[ScoreTest] = ()
    since: float | None = None
    until: float | None = None

    @property
    def wants_score(self) -> bool:
        """Whether only responses with a score or a note can match."""
        return any(each.sign != "none" for each in self.scores)

    def filters(self, row: Row) -> bool:
        """Return whether a row has what is asked for, beside the words, the status and the dates."""
        return (
            all(is_of_model(row, each) for each in self.models)
            and all(any(each == name.lower() for name in row["tools"]) for each in self.tools)
            and all(each == row["conversation"] for each in self.conversations)
            and all(row["metadata"].get(name) == value for name, value in self.metadata)
            and all(each.holds(row.get("score")) for each in self.scores)
        )

    def says(self, row: Row) -> bool:
        """Return whether the first words of a row, or its ids, have all words."""
        if not self.terms:
            return True
        names = ("id", "conversation", "previous_response_id", "request_id", "words", "answer", "error", "message")
        said = [words_of(str(row[name])) for name in names if row.get(name)]
        return all(any(has_term(words, term) for words in said) for term in self.terms)


NOTHING_SEARCHED: Final = Searched()
NO_STATUS: Final = frozenset({"none"})
"""The statuses of a search that finds nothing."""


def searched(text: str | None) -> Searched:
    """Return what a user has typed. Signs without a letter or a digit find nothing, unless there is more.

    Raises:
        ApiError: 400, a filter has a wrong value, or there is too much.
    """
    parts = list(islice(_PART.finditer((text or "")[: MAX_CHARACTERS + 1]), _MAX_PARTS + 1))
    if len(parts) > _MAX_PARTS or len(text or "") > MAX_CHARACTERS:
        raise _wrong(f"expected at most {_MAX_PARTS} words and filters, and {MAX_CHARACTERS} characters")
    found = Searched()
    for name, quoted, plain, phrase, word in (part.groups() for part in parts):
        if name:
            found = _filtered(found, name.lower(), name, plain if quoted is None else quoted)
        elif terms := _terms(word or phrase or "", is_phrase=word is None):
            found = replace(found, terms=[*found.terms, *terms])
    return found if found != NOTHING_SEARCHED or not parts else Searched(statuses=NO_STATUS)


def _terms(text: str, *, is_phrase: bool) -> list[Term]:
    words = tuple(words_of(text))
    return [Term(words, not is_phrase and len(words[-1]) >= _PREFIX_CHARACTERS)] if words else []


def _filtered(found: Searched, name: str, key: str, value: str) -> Searched:
    known = _FILTERS.get(name)
    return known(found, value) if known else replace(found, metadata=[*found.metadata, (key, value)])


def _of_status(found: Searched, value: str) -> Searched:
    if value not in (*STATUSES, STATUS):
        raise _wrong(f"'status:' takes one of {', '.join((*STATUSES, STATUS))}")
    return replace(found, statuses=found.statuses | {value})


def _score_test(value: str) -> ScoreTest:
    if value in ("any", "none"):
        return ScoreTest(value)
    if value in _WORDS_OF_SCORES:
        return ScoreTest(*_WORDS_OF_SCORES[value])
    compared = _SCORE.fullmatch(value)
    if compared is None:
        raise _wrong("'score:' takes good, bad, any, none, or a number such as 1, >=0.7 or <0.5")
    return ScoreTest(compared[1], float(compared[2]))


def tightest(choose: Callable[..., float | None], *bounds: float | None) -> float | None:
    """Return the one that `choose`, `max` or `min`, chooses of the bounds that are there; None if none is."""
    return choose((each for each in bounds if each is not None), default=None)


def _moment(name: str, value: str) -> float:
    """Return a date or a moment, of UTC unless it says its zone; `2d` and `12h` are so long ago."""
    ago = re.fullmatch(r"(\d{1,4})([dh])", value)
    try:
        if ago:
            unit = {"d": "days", "h": "hours"}[ago[2]]
            return (datetime.now(UTC) - timedelta(**{unit: int(ago[1])})).timestamp()
        if len(value) == len("2026-01-31"):
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        raise _wrong(f"'{name}:' takes a date such as 2026-01-31, or 7d or 12h for so long ago") from None


def is_of_model(row: Row, model: str) -> bool:
    """Return whether a row has this model, with or without its provider."""
    return model in (row["model"], row["model"].partition("/")[2])


def _wrong(what: str) -> ApiError:
    return bad_request(f"Invalid 'text': {what}.", "text", "invalid_value")


_FILTERS: Final[Mapping[str, Callable[[Searched, str], Searched]]] = {
    "model": lambda found, value: replace(found, models=[*found.models, value]),
    "tool": lambda found, value: replace(found, tools=[*found.tools, value.lower()]),
    "conversation": lambda found, value: replace(found, conversations=[*found.conversations, value]),
    "status": _of_status,
    "score": lambda found, value: replace(found, scores=[*found.scores, _score_test(value.lower())]),
    "after": lambda found, value: replace(found, since=tightest(max, found.since, _moment("after", value))),
    "before": lambda found, value: replace(found, until=tightest(min, found.until, _moment("before", value))),
}
"""The filters that are not of metadata, by their keys."""
