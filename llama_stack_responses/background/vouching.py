"""Responses that a client waits for, and what becomes of them when their server dies.

    v/<response>             what is known of the response from its beginning on
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
from ..store.records import Condition, Conflict, Delete, Op, Put, Records, VersionIs
from .jobs import is_dead, left_by_the_dead

Json = dict[str, Any]

logger = get_logger(__name__)

_LARGE: Final = 16_384
"""Bytes of a field or of the input, as JSON, past which it is left out: this is written for every response."""

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
        self._unstored: dict[str, ApiError] = {}

    async def vouch(
        self, response: Json, *, owner: Owner, base: str | None, input_items: Sequence[Json], **_: object
    ) -> None:
        """Says that this worker makes the response from now on."""
        kept = response | {name: empty for name, empty in _EMPTY.items() if _is_large(response[name])}
        known = {
            "response": kept,
            "owner": owner.encode(),
            "base": base,
            "input_items": [] if _is_large(input_items) else input_items,
        }
        ops = [Put(f"v/{response['id']}", codec.encode(known)), Put(f"o/{self._worker}/{response['id']}", b"")]
        await self._records.commit(ops)

    def settled(self, response_id: str) -> tuple[list[Op], Condition]:
        """What says that there is no more to vouch for, and that nobody else has said so: for a commit with the end."""
        return _gone(self._worker, response_id), VersionIs(f"v/{response_id}", 1)

    async def withdraw(self, response_id: str) -> None:
        """Vouches no longer for a response of which nothing is to be stored."""
        await self._records.commit(_gone(self._worker, response_id))

    def give_up(self, response_id: str, error: ApiError) -> None:
        """The store did not take the finished response, and its reader was told so: `own_up` stores it as failed."""
        self._unstored[response_id] = error

    async def own_up(self) -> None:
        """Stores those responses of this worker as failed that could not be stored."""
        for response_id, error in list(self._unstored.items()):
            await self._bury(self._worker, response_id, error, [])
            del self._unstored[response_id]

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


def _is_large(value: Any) -> bool:
    return len(codec.dumps(value)) > _LARGE


def _gone(worker: str, response_id: str) -> list[Op]:
    return [Delete(f"v/{response_id}"), Delete(f"o/{worker}/{response_id}")]
