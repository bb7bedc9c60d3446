"""Responses that a client waits for, and what becomes of them when their server dies.

    v/<response>             what is known of the response from its beginning on (`Vouched`)
    o/<worker>/<response>    this worker makes it

Both go in the commit that stores the response. If the worker dies before, they are all that is left of it: whoever
finds them stores the response as failed, so that nobody who knows its id is told that it never was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ..core.errors import ApiError
from ..core.owner import Owner
from ..logs import get_logger
from ..store import codec
from ..store.archive import Archive
from ..store.records import Condition, Conflict, Delete, Op, Put, Records, VersionIs, committed, pages_of
from ..store.vouched import Vouched
from .queue import is_dead, left_by_the_dead

Json = dict[str, Any]

logger = get_logger(__name__)

_LARGE: Final = 16_384
"""Bytes of the input, as JSON, past which it is left out: this is written for every response.

Fields that are larger than that together are written without compression, which takes a millisecond for 20,000 bytes.
"""

_LARGE_FIELD: Final = 65_536
"""Bytes of a field, as JSON, past which it is left out."""

_EMPTY: Final[Json] = {"tools": [], "instructions": None}


def ended() -> ApiError:
    """What a response fails with whose server was dead, or was taken for dead."""
    return ApiError(500, "The server ended while it made this response.")


class Vouchers:
    """Vouches for the foreground responses of one worker, and ends those of dead ones.

    Args:
        worker: the name under which this process says that it lives.
    """

    def __init__(self, records: Records, archive: Archive, worker: str) -> None:
        self._records = records
        self._archive = archive
        self._worker = worker
        self._making: set[str] = set()
        self._unstored: dict[str, ApiError] = {}

    async def vouch(
        self, response: Json, *, owner: Owner, base: str | None, input_items: Sequence[Json], **_: object
    ) -> None:
        """Says that this worker makes the response from now on."""
        sizes = {name: _size(response[name]) for name in _EMPTY}
        kept = response | {name: empty for name, empty in _EMPTY.items() if sizes[name] > _LARGE_FIELD}
        known = {
            "response": kept,
            "owner": owner.encode(),
            "base": base,
            "input_items": [] if _size(input_items) > _LARGE else input_items,
        }
        value = codec.encode(known, pack=sum(sizes.values()) <= _LARGE)
        ops = [Put(f"v/{response['id']}", value), Put(f"o/{self._worker}/{response['id']}", b"")]
        self._making.add(response["id"])
        try:
            await self._records.commit(ops)
        except BaseException:
            # The rows may be there all the same: `own_up` removes them.
            self._making.discard(response["id"])
            raise

    def ended_here(self, response_id: str) -> None:
        """Says that this process no longer makes the response: what vouches for it still is to go."""
        self._making.discard(response_id)

    def settled(self, response_id: str) -> tuple[list[Op], Condition]:
        """What says that there is no more to vouch for, and that nobody else has said so: for a commit with the end."""
        return _gone(self._worker, response_id), VersionIs(f"v/{response_id}", 1)

    async def delete(self, vouched: Vouched) -> bool:
        """Deletes a response that is under way, wherever that is: nothing of it is stored; False if it has ended.

        The worker that makes it removes its own row when it gets to its end.
        """
        return await committed(self._records, [Delete(vouched.row.key)], [vouched.row])

    async def withdraw(self, response_id: str) -> None:
        """Vouches no longer for a response of which nothing is to be stored."""
        await self._records.commit(_gone(self._worker, response_id))

    def give_up(self, response_id: str, error: ApiError) -> None:
        """The finished response is not stored, as far as its reader was told: if so, `own_up` stores it as failed."""
        self._unstored[response_id] = error

    async def own_up(self) -> None:
        """Stores those responses of this worker as failed that could not be stored.

        Nor is anything left that vouches for a response of which no client was told: the store may have made the commit
        that was to vouch for it without saying so, or not the one that was to withdraw it.
        """
        for response_id, error in list(self._unstored.items()):
            await self._bury(self._worker, response_id, error, [])
            del self._unstored[response_id]
        for response_id in await self._vouched() - self._making - self._unstored.keys():
            await self.withdraw(response_id)

    async def _vouched(self) -> set[str]:
        """The responses of which the store says that this worker makes them."""
        prefix = f"o/{self._worker}/"
        pages = pages_of(self._records, prefix)
        return {key.removeprefix(prefix) async for rows in pages for key, _ in rows}

    async def bury(self) -> None:
        """Stores the responses of dead workers as failed."""
        async for worker, response_id in left_by_the_dead(self._records, "o/"):
            try:
                await self._bury(worker, response_id, ended(), [is_dead(worker)])
            except codec.UnreadableError as error:
                logger.error("a response of a dead server that cannot be read is left: %s: %s", response_id, error)

    async def _bury(self, worker: str, response_id: str, error: ApiError, conditions: list[Condition]) -> None:
        key = f"v/{response_id}"
        record = (await self._records.get_many([key])).get(key)
        if record is None:
            await self._records.commit(_gone(worker, response_id))
            return
        known = codec.decode(record.value)
        try:
            await self._archive.save(
                known["response"] | {"status": "failed", "error": error.response_error()},
                owner=Owner(*known["owner"]),
                base=known["base"],
                input_items=known["input_items"],
                beside=_gone(worker, response_id),
                conditions=[VersionIs(key, record.version), *conditions],
            )
        except Conflict:
            return


def _size(value: Any) -> int:
    return len(codec.dumps(value))


def _gone(worker: str, response_id: str) -> list[Op]:
    return [Delete(f"v/{response_id}"), Delete(f"o/{worker}/{response_id}")]
