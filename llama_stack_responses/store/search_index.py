"""An index of the words of responses, which some stores have beside their records.

The index belongs to the rows of the owners' lists (`l/...` in `layout.py`): while there is one, the store itself notes
each row that is written, in the same commit, and finds a row that is deleted no longer, from the same commit on. What
it has noted is indexed later, outside of requests.

The index is small: it knows which words a text has, not where they are, and it keeps no text. So what it finds for a
phrase is a candidate, whose text has to be looked at (`is_exact`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from ..core.errors import ApiError
from .records import Record, Records

LISTED: Final = ("l/", "l0")
"""The range of the keys of the rows of which the index has the words."""

CLAIM_SECONDS: Final = 60.0
"""Seconds after which a claimed row that was not indexed can be claimed again: its server may be dead."""

FIND_SECONDS: Final = 2.0
"""Seconds after which a search is given up."""

WORD_CHARACTERS: Final = 100
"""Characters of a word that count."""

_WORD: Final = re.compile(r"[^\W_]+")
_ASCII_WORDS: Final = bytes(
    ord(each.lower()) if each.isalnum() and each.isascii() else 32 for each in map(chr, range(256))
)
"""Folds the words of a text of ASCII, and replaces all else by spaces, in a fraction of the time."""
# Chinese and Japanese have no spaces between words: each character is a word, and a sequence of them is a phrase.
_IDEOGRAPH: Final = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
_SEPARATOR: Final = "\u200b"
"""A character without width, which separates words that are written without spaces."""

_ID_CHARACTERS: Final = 8
"""Characters that are indexed of a longer word with a digit among them: ids are many, long, and alike in none."""


@dataclass(frozen=True, slots=True)
class Term:
    """Words that have to follow each other in a text.

    Attributes:
        words: the words, folded; at least one.
        prefix: whether the last one may be the beginning of a longer word.
    """

    words: tuple[str, ...]
    prefix: bool


@dataclass(frozen=True, slots=True)
class Noted:
    """A row that was written and is not indexed yet.

    Attributes:
        key: the key of the row.
        claim: what the store knows of the claim; a later write of the row ends it.
    """

    key: str
    claim: tuple[int, float]


@dataclass(frozen=True, slots=True)
class Document:
    """What is indexed of a row.

    Attributes:
        noted: the row.
        words: the `indexed_words` of its text.
    """

    noted: Noted
    words: Sequence[str]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the index has come.

    Attributes:
        complete: whether all rows that were written before it are noted or indexed.
        indexed, waiting: how many rows are indexed, and noted, up to 100,000 each; if none is noted, it is only known
            of few how many are indexed.
    """

    complete: bool
    indexed: int
    waiting: int


COUNTED: Final = 100_000
COUNTED_OF_ALL: Final = 1_000
"""Rows that are counted for `Progress` at most while some are noted, and of an index that has all."""

NO_PROGRESS: Final = Progress(complete=False, indexed=0, waiting=0)
"""Of a store without an index."""


class SearchIndex(Protocol):
    """The index of a store, which need not exist. Every method raises `ApiError` 503 when the store is unavailable."""

    async def prepare(self) -> bool:
        """Make the index if it does not exist, and note some of the rows that were written before.

        Returns:
            Whether all rows are noted; otherwise call it again.
        """
        ...

    async def drop(self) -> None:
        """Remove the index with all words, if there is one, in steps."""
        ...

    async def is_of_earlier_version(self) -> bool:
        """Return whether the store has an index in the form of an earlier version, which `prepare` replaces."""
        ...

    async def claim(self, limit: int) -> list[Noted]:
        """Return at most `limit` rows that are noted, newest writes first; no other server gets them for a minute."""
        ...

    async def put(self, documents: Sequence[Document]) -> None:
        """Index these words in place of earlier ones of the same rows, except of rows that have changed since."""
        ...

    async def find(
        self, terms: Sequence[Term], start: str, end: str, *, limit: int, reverse: bool
    ) -> list[tuple[str, Record]]:
        """Return the rows of one owner, as `Records.range` does, of which the text may have all of these terms.

        It has those that are exact (`is_exact`). Of others, it has all words.

        Args:
            terms: at least one.
            start, end: the range of keys; both begin as the keys of the owner's rows.

        Raises:
            ApiError: 503, it took too long.
        """
        ...

    async def noted(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        """Return the rows of a range that are noted, as `Records.range` does."""
        ...

    async def progress(self) -> Progress:
        """Return how far the index has come."""
        ...

    async def purge(self, older_than: float = 0.0) -> None:
        """Remove from the files of the store what deletions have left of words there.

        Args:
            older_than: do nothing if the first of these deletions is not older than this number of seconds.
        """
        ...


@runtime_checkable
class Searchable(Protocol):
    """Records of a store that can have an index."""

    def search_index(self) -> SearchIndex | None:
        """Return the index, whether it exists or not; None if the store cannot have one."""
        ...


def index_of(records: Records) -> SearchIndex | None:
    """Return the index of a store; None if it cannot have one."""
    return records.search_index() if isinstance(records, Searchable) else None


def owner_of(key: str) -> str:
    """Return the part of the key of a row that names its owner."""
    return key.split("/", 2)[1]


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded and cut."""
    return [word[:WORD_CHARACTERS] for word in _whole_words(text)]


def indexed_words(text: str) -> list[str]:
    """Return the words by which a text is found, each once: those of `words_of`, ids shortened, ideographs in pairs."""
    if text.isascii():
        return list({_shortened(word) for word in set(_whole_words(text))})
    return list(set(_in_pairs(words_of(text))))


def sought_words(term: Term) -> list[tuple[str, bool]]:
    """Return which of the `indexed_words` a text with this term has, each with whether it is the beginning of one."""
    words, last = term.words, len(term.words) - 1
    sought = [
        (word, term.prefix and number == last and len(words[number]) <= len(word))
        for number, word in enumerate(_in_pairs(words))
    ]
    if _IDEOGRAPH.fullmatch(words[-1]):
        # In the text, another ideograph may follow; a pair has the last one already.
        sought[-1:] = [] if last and _IDEOGRAPH.fullmatch(words[-2]) else [(words[-1], True)]
    return sought


def is_exact(term: Term) -> bool:
    """Return whether each text with the `sought_words` has the term."""
    [*before, last] = term.words
    if before:
        return len(before) == 1 and all(map(_IDEOGRAPH.fullmatch, term.words))
    is_short = len(last) < _ID_CHARACTERS or (term.prefix and len(last) == _ID_CHARACTERS)
    return is_short or not _has_digit(last[:_ID_CHARACTERS])


def has_term(words: Sequence[str], term: Term) -> bool:
    """Return whether words have those of a term, one after the other."""
    *first, last = term.words
    for start in range(len(words) - len(first)):
        end = start + len(first)
        if (words[end].startswith(last) if term.prefix else words[end] == last) and [*words[start:end]] == first:
            return True
    return False


def _whole_words(text: str) -> list[str]:
    if text.isascii():
        return text.encode().translate(_ASCII_WORDS).decode().split()
    return _WORD.findall(folded(_IDEOGRAPH.sub(rf"\1{_SEPARATOR}", text)))


def _in_pairs(words: Sequence[str]) -> Iterator[str]:
    """Yield the indexed form of each word; an ideograph comes with the one that follows it."""
    are = [_IDEOGRAPH.fullmatch(word) is not None for word in words] + [False]
    for number, word in enumerate(words):
        if are[number]:
            yield word + words[number + 1] if are[number + 1] else word
        else:
            yield _shortened(word)


def _shortened(word: str) -> str:
    if len(word) <= _ID_CHARACTERS:
        return word
    return word[: _ID_CHARACTERS if _has_digit(word[:_ID_CHARACTERS]) else WORD_CHARACTERS]


def _has_digit(text: str) -> bool:
    return not text.isalpha()


def folded(text: str) -> str:
    """Return a text without the differences between upper and lower case, and without the accents of Latin letters."""
    if text.isascii():
        return text.lower()
    composed = unicodedata.normalize("NFC", text.lower())
    return composed.translate({ord(each): _without_accents(each) for each in set(composed) if not each.isascii()})


def _without_accents(character: str) -> str:
    if "\u0300" <= character <= "\u036f":
        return ""
    base = unicodedata.normalize("NFD", character)[0]
    return base if base.isascii() and base.isalpha() else character


def took_too_long() -> ApiError:
    """Return the error of a search that was given up."""
    sentence = f"The search took longer than {FIND_SECONDS:.0f} seconds: add words, or dates as 'after:2026-01-31'."
    return ApiError(503, sentence, retry_after=5)
