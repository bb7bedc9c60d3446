"""A store in the memory of one process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import (
    UNAVAILABLE,
    Condition,
    Conflict,
    Delete,
    Ensure,
    Op,
    Record,
    Records,
    VersionIs,
    until,
    writes_of,
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A stored record."""

    record: Record
    expires_at: float | None


def open_store(settings: Mapping[str, Any]) -> Records:
    """Return the store of a configuration."""
    unknown = ", ".join(sorted(settings.keys() - {"max_records"}))
    if unknown:
        raise ValueError(f"store.settings: acme has no setting {unknown}")
    return AcmeRecords(int(settings.get("max_records", 100_000)))


class AcmeRecords:
    """Records in a dictionary. A commit is one step of the event loop, so nothing comes between.

    Args:
        max_records: commits fail while there are more.
    """

    transactional = True
    has_own_clock = False

    def __init__(self, max_records: int) -> None:
        self._max_records = max_records
        self._entries: dict[str, Entry] = {}

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        found = ((key, record) for key in dict.fromkeys(keys) if (record := self._live(key)))
        return dict(until(found, max_bytes))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if failed := [each for each in conditions if not self._holds(each)]:
            raise Conflict(failed)
        if len(self._entries) > self._max_records:
            raise ApiError(UNAVAILABLE, "The store of acme is full: raise its 'max_records'.", retry_after=1)
        for op in writes_of(ops):
            old = self._live(op.key)
            if isinstance(op, Delete):
                self._entries.pop(op.key, None)
            elif not (isinstance(op, Ensure) and old):
                self._entries[op.key] = Entry(Record(op.value, old.version + 1 if old else 1), op.expires_at)

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        keys = sorted((key for key in self._entries if start <= key < end), reverse=reverse)
        found = [(key, record) for key in keys if (record := self._live(key))]
        return list(until(found[: max(limit, 0)], max_bytes))

    def pubsub(self) -> None:
        return None

    async def now(self) -> float:
        return time.time()

    async def sweep(self, now: float) -> int:
        expired = [key for key, each in self._entries.items() if each.expires_at and each.expires_at <= now]
        for key in expired[:1000]:
            del self._entries[key]
        return len(expired[:1000])

    async def size(self) -> int | None:
        return sum(len(each.record.value) for each in self._entries.values())

    async def close(self) -> None:
        """Do nothing: the records live as long as the object."""

    def _live(self, key: str) -> Record | None:
        entry = self._entries.get(key)
        if entry is None or (entry.expires_at is not None and entry.expires_at <= time.time()):
            return None
        return entry.record

    def _holds(self, condition: Condition) -> bool:
        if isinstance(condition, VersionIs):
            record = self._live(condition.key)
            return (record.version if record else None) == condition.version
        keys = (key for key in self._entries if key.startswith(condition.prefix) and key != condition.but)
        return not any(self._live(key) for key in keys)
