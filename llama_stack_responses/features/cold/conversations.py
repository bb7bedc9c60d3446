"""Finds idle conversations, and which of their items are packed together.

A conversation is idle once it was not changed for long. Its items are packed as runs of those that follow each other.
So reading a part of it brings back the runs that the part is in, and what is added later is a run of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from ...core.ids import tag_of
from ...logs import get_logger
from ...store.codec import UnreadableError
from ...store.conversation_store import Conversation, pointed_by
from ...store.decoder import Decoder
from ...store.layout import second
from ...store.records import Delete, Put, Record, Records, VersionIs, after_prefix, committed, range_in
from .candidates import pause_after
from .rows import held, items_of, place_of
from .shares import CONVERSATIONS, Span
from .units import Unit

logger = get_logger(__name__)

RUN_ITEMS: Final = 256
RUN_BYTES: Final = 16 * 2**20
"""Most items of a run, and bytes, as `codec.size` counts, with which it ends: less than a chain may have."""
_LISTED: Final = 200
"""Conversations that are looked at at a time."""

type _Rows = Sequence[tuple[str, Record]]


class _Idle(NamedTuple):
    """A conversation, the version of its row, and that of the row that says whether it is held or packed."""

    conversation: Conversation
    version: int
    noted: int | None


class Conversations:
    """Finds them.

    Args:
        records: the store, without what is packed.
        decoder: decodes what is read.
    """

    def __init__(self, records: Records, decoder: Decoder) -> None:
        self._records, self._decoder = records, decoder

    async def within(self, span: Span, oldest: str) -> AsyncIterator[Unit]:
        """Yield what is packed of the conversations in a range that were last changed before `oldest`.

        A tenth of the time goes to conversations of which nothing is packed.
        """
        start = span.start
        while rows := await range_in(self._records, span.partition, start, span.end, limit=_LISTED):
            began = asyncio.get_running_loop().time()
            idle = await self._idle(rows, oldest)
            taken = asyncio.get_running_loop().time() - began
            for each in idle:
                async for run in self._runs(each):
                    yield run
            start = f"{rows[-1][0]}\0"
            await pause_after(taken, found=bool(idle))

    async def _idle(self, rows: _Rows, oldest: str) -> list[_Idle]:
        """Return the conversations that are idle, and of which items may be in the store."""
        notes = await self._records.get_many([held(_id_of(key)) for key, _ in rows])
        left = [row for row in rows if not _is_settled(row[1], notes.get(held(_id_of(row[0]))))]
        decoded = await self._decoder.decode_readable([record.value for _, record in left])
        found = list[_Idle]()
        for (key, record), stored in zip(left, decoded, strict=True):
            if stored is None:
                continue
            note = notes.get(held(_id_of(key)))
            each = Conversation.from_stored(_id_of(key), stored)
            if 0 < each.used_at < int(oldest, 16):
                found.append(_Idle(each, record.version, note.version if note else None))
        return found

    async def _runs(self, idle: _Idle) -> AsyncIterator[Unit]:
        """Yield the runs of a conversation that are in the store. If there are none, this is noted."""
        start, end, found = items_of(idle.conversation.id), after_prefix(items_of(idle.conversation.id)), False
        while rows := await self._records.range(start, end, limit=RUN_ITEMS, max_bytes=RUN_BYTES):
            for is_packed, run in groupby(rows, key=lambda row: place_of(*row) is not None):
                left = [] if is_packed else list(run)
                while left:
                    found = True
                    ids = await self._fitting(idle, left)
                    if ids is None:
                        return
                    yield _unit(idle, left[: len(ids)], ids)
                    left = left[len(ids) :]
            start = f"{rows[-1][0]}\0"
        if not found:
            await self._note(idle)

    async def _fitting(self, idle: _Idle, rows: _Rows) -> list[str] | None:
        """Return the ids of the first items in these rows, as many as are a run; None if one cannot be read."""
        try:
            items = await self._decoder.decode_until([record.value for _, record in rows], RUN_BYTES)
            return [item["id"] for item, _ in items]
        except UnreadableError as error:
            logger.error(
                "an item of an idle conversation cannot be read, leaving it: %s: %s", idle.conversation.id, error
            )
            return None

    async def _note(self, idle: _Idle) -> None:
        """Note that all of a conversation is packed, until it is changed, or items come back."""
        key = held(idle.conversation.id)
        unchanged = [VersionIs(idle.conversation.key, idle.version), VersionIs(key, idle.noted)]
        await committed(self._records, [Put(key, str(idle.version).encode(), uses_reserve=True)], unchanged)


def _id_of(key: str) -> str:
    return key.removeprefix(CONVERSATIONS)


def _is_settled(record: Record, note: Record | None) -> bool:
    """Return whether items of a conversation were brought back, or all of them are packed."""
    return note is not None and note.value in (b"", str(record.version).encode())


def _unit(idle: _Idle, rows: _Rows, ids: Sequence[str]) -> Unit:
    """Return the items in these rows, which follow each other, as what is packed together."""
    conversation, keys = idle.conversation, [key for key, _ in rows]
    unchanged = [VersionIs(key, record.version) for key, record in rows]
    return Unit(
        conversation.owner,
        [(key, record.value) for key, record in rows],
        (),
        {},
        list(dict.fromkeys([keys[0], keys[-1]])),
        (),
        [*map(Delete, keys[1:-1])],
        [VersionIs(conversation.key, idle.version), *unchanged],
        {},
        tag_of(conversation.id),
        found=conversation.key,
        oldest=second(conversation.used_at),
        items=len(rows),
        pointers=pointed_by(conversation.owner, conversation.id, dict(zip(keys, ids, strict=True))),
    )
