"""Storing of one foreground response that has ended, also when the answer to a commit is lost."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..core.errors import ApiError, OutcomeUnknown
from ..core.types import Json
from ..generation.connection_options import ConnectionOptions
from ..generation.loop import Generation
from ..generation.timeline import Timeline
from ..generation.warmup import WarmUp
from ..inputs.resolver import ResolvedInput
from ..intervals import DEFAULT, Intervals
from ..jobs.foreground_leases import Lease, server_died_error
from ..store.archive import Archive, save_once
from ..store.commit_outcome import until_known
from ..store.ends import Ended
from ..store.records import Conflict
from ..stream.transcript import Transcript


class ResponseWriter:
    """Stores a foreground response that has ended, as its request wants it. An open stream holds one of these.

    Args:
        archive: stores responses.
        start: what the response started from.
        generation: generates it.
        timeline: records its course.
        transcript: records its events, if a client that reads them may come back for them.
        lease: its lease, which ends with the commit that stores it; None if no client knows its id before.
        connection: the connection that it is sent on, if that has options.
        intervals: how often and how long to ask the store for the outcome of a commit.
    """

    __slots__ = (
        "_archive",
        "_connection",
        "_generation",
        "_intervals",
        "_lease",
        "_start",
        "_timeline",
        "_transcript",
    )

    def __init__(
        self,
        archive: Archive,
        start: ResolvedInput,
        generation: Generation | WarmUp,
        timeline: Timeline,
        transcript: Transcript | None = None,
        lease: Lease | None = None,
        connection: ConnectionOptions | None = None,
        intervals: Intervals = DEFAULT,
    ) -> None:
        self._archive = archive
        self._start = start
        self._generation = generation
        self._timeline = timeline
        self._transcript = transcript
        self._lease = lease
        self._connection = connection
        self._intervals = intervals

    async def keep(self, final: Json) -> None:
        """Store the finished response; one that is not stored itself is kept in its conversation and its connection.

        Raises:
            OutcomeUnknown: the store did not confirm in time whether the response is stored.
            ApiError: it is not stored. If it has a lease, it will be stored as failed once the store can be written,
                unless it was deleted.
        """
        exchanges, start, connection = self._generation.exchanges, self._start, self._connection
        if start.request.store:
            await self._save(final, exchanges)
            return
        if start.request.conversation:
            await self._join(final, exchanges)
        if not isinstance(self._generation, WarmUp):
            await self._end_unstored(final)
        if connection:
            await connection.memory.remember(final, start.remembered, exchanges, start.history.link, start.history.base)

    async def _end_unstored(self, final: Json) -> None:
        archive = self._archive
        ended = Ended(final, self._start.owner, self._timeline.recording().timing, archive.clock())
        await archive.ends.unstored(ended)

    async def drop(self) -> None:
        """End the lease of a response that is not stored."""
        if self._lease:
            await self._lease.withdraw()

    def ended(self) -> None:
        """Record that this process no longer runs the response."""
        if self._lease:
            self._lease.untrack()

    async def _save(self, final: Json, exchanges: Mapping[str, Json]) -> None:
        more: dict[str, Any] = {
            **self._start.stored,
            "exchanges": exchanges,
            "recording": self._timeline.recording(),
            "transcript": self._transcript.marks(self._generation.left_out) if self._transcript else None,
        }
        unknown = (
            f"The response was generated, and the response store did not confirm whether it is stored. Retrieve "
            f"response '{final['id']}' before you send the request again: a 404 means that it is not stored."
        )
        if self._lease is None:
            await save_once(self._archive, final, unknown, self._intervals, **more)
            return
        try:
            await until_known(partial(self._save_leased, self._lease, final, more), unknown, self._intervals)
        except OutcomeUnknown:
            self._lease.mark_unstored(ApiError(503, "The response could not be stored."))
            raise
        except ApiError as error:
            self._lease.mark_unstored(error)
            raise
        except Exception:
            self._lease.mark_unstored(ApiError(500, "The response could not be stored."))
            raise

    async def _save_leased(self, lease: Lease, final: Json, more: Mapping[str, Any], _: bool) -> None:
        try:
            await self._archive.save(final, extra_ops=lease.ops, conditions=lease.conditions, **more)
        except Conflict as conflict:
            entry = await self._archive.entry(final["id"])
            if entry is None:
                await self._end_unstored(final)
                raise ApiError(500, "The response was deleted while it was generated.") from conflict
            # An earlier call may have stored it, or another server may have stored it as failed.
            if any(entry.response[name] != final[name] for name in ("status", "error")):
                raise server_died_error() from conflict

    async def _join(self, final: Json, exchanges: Mapping[str, Json]) -> None:
        """Append the items of a response that is not stored itself to its conversation."""
        stored = self._start.stored

        async def join(joined: bool) -> None:
            if not joined:
                owner, input_items = stored["owner"], stored["input_items"]
                await self._archive.join(final, owner=owner, input_items=input_items, exchanges=exchanges)

        await until_known(
            join,
            f"The response was generated, and the response store did not confirm whether it is part of conversation "
            f"'{final['conversation']['id']}'. List the items of the conversation before you send the request again.",
            self._intervals,
        )
