"""The reports about the models of a stack, which all servers of a store share.

The row `dr/<model>` has the last report about a model, or why it could not be examined, and until when a server is at
work on it. It expires a month after it was written last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from ...core.types import Json
from ...store import codec
from ...store.content_names import row_key
from ...store.records import Put, Record, Records, VersionIs, committed, pages_of
from .report import Report

PREFIX: Final = "dr/"
_KEPT_SECONDS: Final = 30 * 86_400.0
_CLAIM_SECONDS: Final = 1_800.0
"""Seconds for which no other server examines a model."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is stored about a model.

    Attributes:
        model: its name in the stack.
        at: when it was examined last, in seconds since the epoch; 0 for never.
        claimed: until when a server examines it.
        report: the last report; None for none.
        trouble: why the last examination has failed; empty if it has not.
    """

    model: str
    at: float = 0.0
    claimed: float = 0.0
    report: Report | None = None
    trouble: str = ""


class StoredReports:
    """Reads and writes the reports.

    Args:
        records: the store.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def now(self) -> float:
        """Return the time of the store, in seconds since the epoch."""
        return await self._records.now()

    async def all(self) -> AsyncIterator[Stored]:
        """Yield what is stored about each model."""
        async for page in pages_of(self._records, PREFIX):
            for _, record in page:
                yield _decoded(record)

    async def claim(self, model: str, oldest: float, oldest_trouble: float) -> bool:
        """Return whether a model is to be examined now, by this server alone.

        Args:
            model: its name.
            oldest: it is, if it was not examined since.
            oldest_trouble: it is, if it could not be examined and was not tried since.
        """
        key, now = row_key(PREFIX, model), await self._records.now()
        record = (await self._records.get_many([key])).get(key)
        stored = _decoded(record) if record else Stored(model)
        is_due = stored.at < (max(oldest, oldest_trouble) if stored.trouble else oldest)
        if not is_due or stored.claimed > now:
            return False
        condition = VersionIs(key, record.version if record else None)
        put = Put(key, _encoded(replace(stored, claimed=now + _CLAIM_SECONDS)), now + _KEPT_SECONDS)
        return await committed(self._records, [put], [condition])

    async def write(self, stored: Stored) -> None:
        """Write what was found out about a model; a failure keeps the last report."""
        key, now = row_key(PREFIX, stored.model), await self._records.now()
        if stored.report is None and (record := (await self._records.get_many([key])).get(key)):
            stored = replace(stored, report=_decoded(record).report)
        await self._records.commit([Put(key, _encoded(stored), now + _KEPT_SECONDS)])


def _encoded(stored: Stored) -> bytes:
    value: Json = {
        "model": stored.model,
        "at": stored.at,
        "claimed": stored.claimed,
        "report": stored.report.as_json() if stored.report else None,
        "trouble": stored.trouble,
    }
    return codec.encode(value)


def _decoded(record: Record) -> Stored:
    value: Json = codec.decode(record.value)
    report = Report.of_json(value["report"]) if value["report"] else None
    return Stored(value["model"], value["at"], value["claimed"], report, value["trouble"])
