"""An index of the words of responses, which some stores have beside their records.

The index belongs to the rows of the owners' lists (`l/...` in `layout.py`): the store itself notes each row that is
written, in the same commit, and removes the words of each row that is deleted, in the same commit. What it has noted is
indexed later, outside of requests.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
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
# Chinese and Japanese have no spaces between words: each character is a word, and a sequence of them is a phrase.
_IDEOGRAPH: Final = re.compile("([\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff])")
SEPARATOR: Final = "\u200b"
"""A character without width, which separates words that are written without spaces."""


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
        number: of the write; a later write has another one.
        key: the key of the row.
    """

    number: int
    key: str


@dataclass(frozen=True, slots=True)
class Document:
    """The text of a row.

    Attributes:
        noted: the row.
        text: its text, with `separated` words.
    """

    noted: Noted
    text: str


class SearchIndex(Protocol):
    """The index of a store. Every method raises `ApiError` 503 when the store is unavailable."""

    async def prepare(self) -> bool:
        """Make the index if it does not exist, and note some of the rows that were written before.

        Returns:
            Whether all rows are noted; otherwise call it again.
        """
        ...

    async def drop(self) -> None:
        """Remove the index with all words, if there is one."""
        ...

    async def claim(self, limit: int) -> list[Noted]:
        """Return at most `limit` rows that are noted, newest writes first; no other server gets them for a minute."""
        ...

    async def put(self, documents: Sequence[Document]) -> None:
        """Index these texts in place of earlier ones of the same rows, except of rows that have changed since."""
        ...

    async def find(
        self, terms: Sequence[Term], start: str, end: str, *, limit: int, reverse: bool
    ) -> list[tuple[str, Record]]:
        """Return the rows of one owner, as `Records.range` does, of which the text has all of these terms.

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

    async def texts(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the indexed texts of these rows, by key."""
        ...

    async def waiting(self) -> int:
        """Return how many rows are noted, up to 10,000."""
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


def separated(text: str) -> str:
    """Return a text in which words without spaces between them have separators."""
    return text if text.isascii() else _IDEOGRAPH.sub(rf"\1{SEPARATOR}", text)


def words_of(text: str) -> list[str]:
    """Return the words of a text, folded and cut."""
    return [word[:WORD_CHARACTERS] for word in _WORD.findall(folded(separated(text)))]


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
