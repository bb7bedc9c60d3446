"""Leases of foreground responses: a response that a client waits for is failed when its server dies.

    v/<response>             the response as it was when it began, its owner, worker and history (`RunningResponse`)
    o/<worker>/<response>    the worker that runs the response

The commit that stores the response deletes both rows. If the worker dies before that, the worker that finds the rows
stores the response as failed, so that a client that knows its id does not get a 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from ..concurrency.offloading import INLINE_BYTES, in_thread
from ..core.errors import ApiError
from ..core.json_values import bytes_left, is_large
from ..core.owner import Owner
from ..core.types import Json
from ..intervals import DEFAULT, Intervals
from ..logs import get_logger
from ..store import codec
from ..store.archive import Archive
from ..store.commit_outcome import until_known
from ..store.records import Condition, Conflict, Delete, Op, Put, Records, VersionIs, committed
from ..store.running_response import RunningResponse
from .dead_workers import held_in, is_stalled
from .heartbeat import Heartbeat
from .served_partitions import FOREGROUND

logger = get_logger(__name__)

_LARGE_BYTES: Final = 16_384
"""Bytes of the input, as JSON, above which it is left out: the row is written for every response.

It is also the bound above which the fields of `_EMPTY` together are written uncompressed: compression takes a
millisecond for 20,000 bytes.
"""

_LARGE_FIELD_BYTES: Final = 65_536
"""Bytes of a field, as JSON, above which it is left out."""

_EMPTY: Final[Json] = {"tools": [], "instructions": None}


def server_died_error() -> ApiError:
    """Return the error of a response whose server died, or was assumed dead."""
    return ApiError(500, "The server ended while it generated this response.")


class Lease:
    """The lease of one foreground response. An open stream holds one of these.

    Args:
        leases: the leases of this worker.
        response_id: the id of the response.
    """

    __slots__ = ("_leases", "_response_id")

    def __init__(self, leases: ForegroundLeases, response_id: str) -> None:
        self._leases = leases
        self._response_id = response_id

    @property
    def ops(self) -> list[Op]:
        """The ops that end the lease, for the commit that stores the response."""
        return _gone(self._leases.worker, self._response_id)

    @property
    def conditions(self) -> list[Condition]:
        """The conditions of that commit.

        They fail if another worker assumed this one dead and stored the response as failed, or if the response was
        deleted.
        """
        return [VersionIs(f"v/{self._response_id}", 1)]

    async def withdraw(self) -> None:
        """End the lease of a response that will not be stored."""
        await self._leases.withdraw(self._response_id)

    def mark_unstored(self, error: ApiError) -> None:
        """Record that the finished response could not be stored: `flush_unstored` stores it as failed with `error`."""
        self._leases.unstored[self._response_id] = error

    def untrack(self) -> None:
        """Record that this process no longer runs the response: `flush_unstored` deletes what is left of its lease."""
        self._leases.making.discard(self._response_id)


class ForegroundLeases:
    """The leases of one worker's foreground responses, as rows of a transactional store.

    Args:
        records: the store.
        archive: stores responses as failed.
        worker: the worker's id.
        heartbeat: the worker's own lease, on which these depend.

    Attributes:
        worker: the worker's id.
        making: the ids of the responses that this process runs.
        unstored: errors of finished responses that could not be stored, by their ids.
    """

    def __init__(
        self, records: Records, archive: Archive, worker: str, heartbeat: Heartbeat, intervals: Intervals = DEFAULT
    ) -> None:
        self._records = records
        self._archive = archive
        self._heartbeat = heartbeat
        self._intervals = intervals
        self.worker = worker
        self.making: set[str] = set()
        self.unstored: dict[str, ApiError] = {}
        heartbeat.holding.append(lambda: self.making)

    async def acquire(
        self, response: Json, *, owner: Owner, base: str | None, input_items: Sequence[Json], **_: object
    ) -> Lease | None:
        """Record that this worker runs the response, so that another worker fails it if this one dies.

        The arguments are those of `Archive.save`.

        Returns:
            The lease; None if the store is not transactional, and has none.
        """
        if not self._records.transactional:
            return None
        await self._heartbeat.ensure()
        encoded = partial(_encoded, response, owner, base, input_items, self.worker)
        size = INLINE_BYTES - bytes_left([response, input_items], INLINE_BYTES)
        if size <= _LARGE_BYTES:
            value = encoded(small=True)
        else:
            value = encoded() if size <= INLINE_BYTES else await in_thread(encoded)
        ops = [
            Put(f"v/{response['id']}", value),
            Put(f"o/{self.worker}/{response['id']}", b""),
            *await self._heartbeat.lease_ops(response["id"]),
        ]
        self.making.add(response["id"])
        try:
            await self._records.commit(ops)
        except BaseException:
            # The rows may exist all the same: `flush_unstored` deletes them.
            self.making.discard(response["id"])
            raise
        return Lease(self, response["id"])

    async def delete(self, running: RunningResponse) -> bool:
        """Delete a running response, whichever server runs it, so that it is not stored; return False if it has ended.

        The worker that runs the response deletes its `o/` row afterwards, in `flush_unstored`.
        """

        async def delete(deleted: bool) -> bool:
            return deleted or await committed(self._records, [Delete(running.row.key)], [running.row])

        return await until_known(
            delete,
            f"The response store did not confirm whether it deleted response '{running.response['id']}': delete it "
            "again. A 404 means that it was deleted.",
            self._intervals,
        )

    async def withdraw(self, response_id: str) -> None:
        """End the lease of a response that will not be stored."""
        await self._records.commit(_gone(self.worker, response_id))

    async def flush_unstored(self) -> None:
        """Store this worker's responses that could not be stored as failed, and delete leases without a response.

        Such a lease is left if the answer to the commit that acquired it was lost, or the commit that ends it failed.
        """
        failure: ApiError | None = None
        for response_id, error in list(self.unstored.items()):
            try:
                await self._fail(self.worker, response_id, error, [])
                del self.unstored[response_id]
            except ApiError as reason:
                failure = reason  # of a partition: others may answer
        for response_id in sorted(await self._acquired() - self.making - self.unstored.keys()):
            await self.withdraw(response_id)
        if failure:
            raise failure

    async def _acquired(self) -> set[str]:
        """Return the ids of the responses for which the store has a lease of this worker."""
        return await held_in(self._records, self._heartbeat.numbers, f"o/{self.worker}/")

    async def fail_abandoned(self) -> None:
        """Store the responses of dead workers as failed, as long as this worker has a lease itself."""
        async for worker, response_id in self._heartbeat.dead_workers.iter_stalled(FOREGROUND, self.worker):
            try:
                await self._fail(worker, response_id, server_died_error(), [is_stalled(worker, response_id)])
            except codec.UnreadableError as error:
                logger.error(
                    "could not read an abandoned response of a dead worker, skipping it: %s: %s", response_id, error
                )

    async def _fail(self, worker: str, response_id: str, error: ApiError, conditions: list[Condition]) -> None:
        key = f"v/{response_id}"
        record = (await self._records.get_many([key])).get(key)
        if record is None:
            await self._records.commit(_gone(worker, response_id))
            return
        [known] = await self._archive.decoder.decode([record.value])
        try:
            await self._archive.save(
                known["response"] | {"status": "failed", "error": error.response_error()},
                owner=Owner(*known["owner"]),
                base=known["base"],
                input_items=known["input_items"],
                extra_ops=_gone(worker, response_id),
                conditions=[VersionIs(key, record.version), *conditions],
            )
        except Conflict:
            return


def _encoded(
    response: Json, owner: Owner, base: str | None, input_items: Sequence[Json], worker: str, *, small: bool = False
) -> bytes:
    """Return the value of a `v/` row; `small`: the response and its input together are known not to be large."""
    known = {"response": response, "owner": owner.encode(), "base": base, "input_items": input_items, "worker": worker}
    if small:
        return codec.encode(known, small=True)
    # Nothing is encoded to be measured: one call would hold the interpreter lock for the whole input.
    left_out = {name: empty for name, empty in _EMPTY.items() if is_large(response[name], _LARGE_FIELD_BYTES)}
    known["response"] = stored = response | left_out
    known["input_items"] = [] if is_large(input_items, _LARGE_BYTES) else input_items
    return codec.encode(known, pack=not is_large([stored[name] for name in _EMPTY], _LARGE_BYTES))


def _gone(worker: str, response_id: str) -> list[Op]:
    return [Delete(f"v/{response_id}"), Delete(f"o/{worker}/{response_id}")]
