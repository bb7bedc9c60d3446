"""Scores of responses: what people and scripts think of an answer.

The row `sc/<of>/<order>/<response>` is the score of a response, in the order of its owner's list. It is deleted in the
commit that deletes the response.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..core.owner import Owner
from ..core.types import Json
from . import codec
from .content_names import Hasher
from .layout import LISTS, SCORES, Entry, scored
from .list_row_pages import ReadRange
from .records import Delete, Put, Record, Records, VersionIs, committed, pages_of

_TRIES: Final = 4
"""Reads of rows of which some were deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Score:
    """A user's judgement of a response: a score, or a note, or both.

    Attributes:
        score: from 0 (bad) to 1 (good); None for a note alone.
        note: a text; empty for none.
        by: the name of the user who wrote it; empty without authentication.
        at: when, in seconds since the epoch.
    """

    score: float | None
    note: str
    by: str
    at: int

    def fields(self) -> Json:
        """Return the fields, as JSON."""
        return {"score": self.score, "note": self.note, "by": self.by, "at": self.at}


class Scores:
    """Reads and writes the scores in a store.

    Args:
        records: the store.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def find(self, entry: Entry) -> Score | None:
        """Return the score of a response; None if it has none."""
        return (await self._of([entry.listed])).get(entry.id)

    async def put(self, entry: Entry, version: int, score: Score) -> bool:
        """Write the score of a response in place of the last one.

        Args:
            entry, version: the response, and the version of its record.

        Returns:
            False if the response has changed meanwhile, or was deleted: nothing was written.
        """
        put = Put(scored(entry.listed), codec.encode(score.fields()))
        return await committed(self._records, [put], [VersionIs(f"r/{entry.id}", version)])

    async def delete(self, entry: Entry) -> None:
        """Delete the score of a response, if it has one."""
        await self._records.commit([Delete(scored(entry.listed))])

    async def now(self) -> float:
        """Return the time of the store's clock, in seconds since the epoch."""
        return await self._records.now()

    async def of_cursors(self, owner: Owner, cursors: Sequence[tuple[str, str]]) -> dict[str, Score]:
        """Return the scores of the responses of an owner's list that have one, by id.

        Args:
            cursors: the cursors of the responses, as `Rows` has them.
        """
        prefix = f"{LISTS}{Hasher(owner).owner}/"
        return await self._of([f"{prefix}{order}/{response_id}" for order, response_id in cursors])

    async def every(self, owner: Owner) -> AsyncIterator[tuple[str, Score]]:
        """Yield the ids and the scores of an owner's responses that have one, oldest first."""
        async for page in pages_of(self._records, f"{SCORES}{Hasher(owner).owner}/"):
            for key, record in page:
                yield key.rpartition("/")[2], _decoded(record)

    def with_rows(self, read: ReadRange | None = None, *, only: bool) -> ScoredRows:
        """Return what reads rows of lists together with their scores.

        Args:
            read: reads the rows, such as those that a search finds; None reads all.
            only: whether only rows with a score are wanted.
        """
        return ScoredRows(self, read or (self._listed if only else self._records.range))

    async def _listed(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        """Return the rows of a list that have a score, as `Records.range` does."""
        rows = list[tuple[str, Record]]()
        for _ in range(_TRIES):
            scores = await self._records.range(scored(start), scored(end), limit=limit, reverse=reverse)
            keys = [f"{LISTS}{key.removeprefix(SCORES)}" for key, _ in scores]
            found = await self._records.get_many(keys) if keys else {}
            rows = [(key, found[key]) for key in keys if key in found]
            if len(rows) == len(keys):
                break
            # One was deleted in between, with its score: fewer rows would mean that the list ends here.
        return rows

    async def _of(self, listed: Sequence[str]) -> dict[str, Score]:
        found = await self._records.get_many([scored(key) for key in listed]) if listed else {}
        return {key.rpartition("/")[2]: _decoded(record) for key, record in found.items()}

    async def of_rows(self, rows: Sequence[tuple[str, Record]]) -> dict[str, Score]:
        """Return the scores of rows of a list that have one, by id."""
        return await self._of([key for key, _ in rows])


class ScoredRows:
    """Reads rows of a list, and what their scores are.

    Args:
        scores: the scores.
        read: reads the rows.
    """

    def __init__(self, scores: Scores, read: ReadRange) -> None:
        self._scores, self._read = scores, read
        self._known: dict[str, Score] = {}

    @property
    def known(self) -> Mapping[str, Score]:
        """The scores of the rows that were read, by id."""
        return self._known

    async def read(self, start: str, end: str, *, limit: int, reverse: bool) -> list[tuple[str, Record]]:
        """Return rows of a range, as `Records.range` does."""
        rows = await self._read(start, end, limit=limit, reverse=reverse)
        self._known |= await self._scores.of_rows(rows)
        return rows


def _decoded(record: Record) -> Score:
    return Score(**codec.known(Score, codec.decode(record.value)))
