"""Reads packed chains, and brings them back into the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import batched
from typing import TYPE_CHECKING, Final

from ...concurrency.fair_budget import FairBudget
from ...concurrency.offloading import in_thread
from ...core.errors import ApiError
from ...core.lru_cache import LruCache
from ...logs import get_logger
from ...store import codec
from ...store.codec import UnreadableError
from ...store.conversation_store import pointed_by
from ...store.layout import Entry, unsettled
from ...store.records import Delete, Ensure, Op, Put, Record, Records, VersionIs, committed
from ...telemetry.instrumentation import Telemetry
from ...telemetry.metrics import SECONDS, Metric
from .pack import Rows, opened
from .pages import PagedRecords
from .prefixes import ITEMS
from .rows import Chain, Place, held

if TYPE_CHECKING:
    # Its package is missing where nothing is packed.
    from .objects import Objects

logger = get_logger(__name__)

BACK: Final = Metric(
    "llama_stack_responses.cold.back", "s", "Time until a chain was back from the object store", SECONDS
)

_AT_ONCE: Final = 4
"""Chains that one call brings back at a time."""
_BYTES: Final = 96 * 2**20
"""Bytes of chains that are brought back at a time, unpacked."""
_REPORTED: Final = 10_000
"""Chains that cannot be read of which it is remembered that this is logged."""
_RATIO: Final = 6
"""Assumed ratio of the memory that a chain takes to its packed bytes."""


class Bringing:
    """Brings chains back.

    Args:
        records: the store, without what is packed.
        objects: where the chains are; None if there is no setting.
        rest_seconds: how long a chain stays that was brought back, at least.
        telemetry: records metrics.
    """

    def __init__(
        self, records: Records, objects: Objects | None, rest_seconds: float, telemetry: Telemetry | None
    ) -> None:
        self._records, self._objects = PagedRecords(records), objects
        self._rest_seconds, self._telemetry = rest_seconds, telemetry
        self._budget = FairBudget(_BYTES)
        self._reported = LruCache[Place, str](_REPORTED)
        self._running = dict[Place, asyncio.Task[None]]()

    async def bring(self, places: Iterable[Place]) -> None:
        """Bring these chains back, unless they are back already or deleted.

        Raises:
            ApiError: 503, the object store does not answer.
        """
        for some in batched(dict.fromkeys(places), _AT_ONCE):
            await asyncio.gather(*map(self._once, some))

    async def rows(self, place: Place, chain: Chain) -> Rows:
        """Return the rows of a chain, without its large ones.

        Raises:
            ApiError: 503, the object store does not answer; 500, the chain is damaged.
        """
        return await self._opened(place, chain, 0, chain.at, chain.size)

    async def part(self, place: Place, chain: Chain, number: int) -> tuple[str, bytes]:
        """Return a large row of a chain, whose numbers begin with 1.

        Raises:
            ApiError: as `rows`.
        """
        [row] = await self._opened(place, chain, number, *chain.places[number - 1])
        return row

    async def _opened(self, place: Place, chain: Chain, number: int, at: int, size: int) -> Rows:
        if self._objects is None:
            raise ApiError(503, "This content is in the object store of the setting 'archive', which is not set here.")
        try:
            data = await self._objects.read(place.object, at, size)
            return await in_thread(opened, data, chain.key, number)
        except UnreadableError as error:
            # Each page of a list may read it again.
            if self._reported.get(place) != error.message:
                self._reported.set(place, error.message)
                logger.error("a chain in the object store cannot be read: %s: %s", place.key, error)
            raise

    async def _once(self, place: Place) -> None:
        """Bring a chain back; if another call does, wait for that."""
        running = self._running.get(place)
        if running is None or running.get_loop() is not asyncio.get_running_loop():
            running = self._running[place] = asyncio.create_task(self._bring(place))
            running.add_done_callback(partial(self._brought, place))
        await asyncio.shield(running)

    def _brought(self, place: Place, task: asyncio.Task[None]) -> None:
        if self._running.get(place) is task:
            del self._running[place]
        if not task.cancelled():
            task.exception()  # All who waited may have been cancelled.

    async def _bring(self, place: Place) -> None:
        record = (await self._records.get_many([place.key])).get(place.key)
        if record is None:
            return
        began = asyncio.get_running_loop().time()
        chain = Chain.decode(record)
        units = (chain.size + max((size for _, size in chain.parts), default=0)) * _RATIO
        share = await self._budget.enter(units, may_refuse=False)
        try:
            rows = await self.rows(place, chain)
            ids, ops = await in_thread(restored, chain, rows)
            await self._bring_parts(place, chain)
            until = await self._records.now() + self._rest_seconds
            holds = [Put(held(each), b"", until) for each in ids]
            lifts = await self._records.lifts(await in_thread(_stayed, chain, ops))
            # A full store takes what begins with a deletion: reading needs the room.
            there = [VersionIs(key, 1) for key, _ in chain.parts]
            done = [Delete(unsettled(key, chain.owner).key) for key, _ in chain.parts]
            if not await committed(
                self._records,
                [Delete(place.key), *done, *ops, *lifts, *holds],
                [VersionIs(place.key, record.version), *there],
            ):
                return
        finally:
            self._budget.leave(share, units)
        if self._telemetry:
            self._telemetry.record(BACK, asyncio.get_running_loop().time() - began)

    async def _bring_parts(self, place: Place, chain: Chain) -> None:
        """Write the large rows of a chain, each in a commit, after which it is deleted unless the chain follows."""
        for number, (key, _) in enumerate(chain.parts, 1):
            row = await self.part(place, chain, number)
            await self._records.commit([unsettled(key, chain.owner), Ensure(*row)])


def restored(chain: Chain, rows: Rows) -> tuple[Sequence[str], Sequence[Op]]:
    """Return the ids of the responses of a chain, and the ops that write its rows, without those of deleted responses.

    Of items of a conversation, the id is that of the conversation. Large rows are no part of this. Content that only
    these need is written too, and is checked for references.
    """
    ids, gone = [rows[0][0].split("/")[1]] if rows[0][0].startswith(ITEMS) else [], set(chain.gone)
    dropped, released = set[str](), list[str]()
    for key, value in rows:
        if not key.startswith("r/"):
            continue
        response_id = key.removeprefix("r/")
        if response_id not in gone:
            ids.append(response_id)
            continue
        entry = Entry.decode(Record(value, 1))
        dropped |= {key, *entry.keys()}
        released += entry.references().values()
    written: list[Op] = [Put(key, value) for key, value in rows if key not in dropped]
    deleted = [Delete(key) for key in chain.rows if key in dropped]
    return ids, [*written, *deleted, *(unsettled(key, chain.owner) for key in dict.fromkeys(released))]


def _stayed(chain: Chain, ops: Sequence[Op]) -> list[str]:
    """Return the keys of the rows of a chain that stayed in the store, given the ops of `restored`."""
    written = {op.key: op.value for op in ops if isinstance(op, Put)}
    deleted = {op.key for op in ops if isinstance(op, Delete)}
    listed = [Entry.decode(Record(value, 1)).listed for key, value in written.items() if key.startswith("r/")]
    items = {key: codec.decode(value)["id"] for key, value in written.items() if key.startswith(ITEMS)}
    pointed = pointed_by(chain.owner, next(iter(items)).split("/")[1], items) if items else []
    return [key for key in (*listed, *chain.rows, *pointed) if key not in written and key not in deleted]
