"""Responses that end with their requests."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from ..admission import Admission, Reservation
from ..core.stream.transcript import Transcript
from ..core.types import Json
from ..generation.connection_options import ConnectionOptions
from ..generation.event_buffer import EventBuffer
from ..generation.factory import GenerationFactory
from ..generation.loop import Generation
from ..generation.run import ForegroundRun
from ..generation.timeline import Timeline
from ..generation.warmup import WarmUp
from ..inputs.resolver import ResolvedInput
from ..jobs.foreground_leases import ForegroundLeases
from ..lifecycle.finishing import Finishing
from .response_writer import ResponseExtras, ResponseWriter


class ForegroundResponses:
    """Runs foreground responses.

    Args:
        factory: makes the responses.
        writer: stores them.
        leases: the leases of streamed responses.
        admission: how many responses may run at a time.
        finish_seconds: how long a shutdown waits for the running ones.
        refusal_seconds: time for which a stream waits for the model server's refusal.

    Attributes:
        finishing: the wait of a shutdown for the running ones.
    """

    def __init__(
        self,
        factory: GenerationFactory,
        writer: ResponseWriter,
        leases: ForegroundLeases,
        admission: Admission,
        finish_seconds: float,
        refusal_seconds: float,
    ) -> None:
        self._factory = factory
        self._writer = writer
        self._leases = leases
        self._admission = admission
        self._refusal_seconds = refusal_seconds
        self._runs = set[ForegroundRun]()
        self.finishing = Finishing(self._runs, finish_seconds)

    @property
    def running(self) -> int:
        """The number of responses that run."""
        return len(self._runs)

    def shut_down(self) -> None:
        """End all running responses, because the server shuts down."""
        for run in self._runs:
            run.shut_down()

    async def run(self, start: ResolvedInput, connection: ConnectionOptions | None = None) -> ForegroundRun:
        """Begin a response.

        Args:
            start: what the response starts from.
            connection: the connection that it is sent on, if that has options.
        """
        request, stored = start.request, start.stored
        response = self._factory.begin(request, start.moderation)
        context = self._factory.context(request, response, start.owner, start.opened)
        # Only a client that reads the stream knows event numbers, and the response's id before it is stored.
        transcript = Transcript() if request.store and request.stream else None
        event_times = context.timeline.event_times if transcript else None
        event_buffer = EventBuffer(
            wanted=request.stream, transcript=transcript, event_times=event_times, timer=self._factory.timer
        )

        with ExitStack() as unless_begun:
            slot = unless_begun.enter_context(self._admission.reserve(start.owner).add(1))
            generation = await context.generation_for(start.items, event_buffer, connection)
            unless_begun.callback(generation.release)
            if transcript:
                await self._leases.acquire(response, **stored)
            unless_begun.pop_all()
        keeper = _Keeper(
            self._writer, self._leases, response["id"], start, connection, context.timeline, generation, transcript
        )
        run = ForegroundRun(
            generation,
            context.assembler,
            event_buffer,
            keeper.keep,
            keeper.drop,
            self._refusal_seconds,
            context.factory.clock,
        )
        self._runs.add(run)
        run.on_ended(partial(self._ended, run, slot))
        return run

    def _ended(self, run: ForegroundRun, slot: Reservation, _: object) -> None:
        self._runs.discard(run)
        self.finishing.check()
        self._leases.untrack(run.response["id"])
        slot.release()


class _Keeper:
    """Stores a foreground response that has ended. An open stream holds one of these.

    Args:
        writer: stores it.
        leases: has its lease.
        response_id: the id of the response.
        start: what it started from.
        connection: the connection that it is sent on, if that has options.
        timeline: records its course.
        generation: generates it.
        transcript: records its events, if a client that reads them may come back for them.
    """

    __slots__ = ("_connection", "_generation", "_id", "_leases", "_start", "_timeline", "_transcript", "_writer")

    def __init__(
        self,
        writer: ResponseWriter,
        leases: ForegroundLeases,
        response_id: str,
        start: ResolvedInput,
        connection: ConnectionOptions | None,
        timeline: Timeline,
        generation: Generation | WarmUp,
        transcript: Transcript | None,
    ) -> None:
        self._writer = writer
        self._leases = leases
        self._id = response_id
        self._start = start
        self._connection = connection
        self._timeline = timeline
        self._generation = generation
        self._transcript = transcript

    async def keep(self, final: Json) -> None:
        """Store the finished response as its request wants it."""
        exchanges = self._generation.exchanges
        extras = ResponseExtras(exchanges, self._timeline.recording())
        if self._transcript:
            await self._writer.write_streamed(final, self._transcript, self._start.stored, extras)
        elif self._start.request.store:
            await self._writer.write(final, self._start.stored, extras)
        else:
            await self._save_items_only(final, exchanges)

    async def drop(self) -> None:
        """End the lease of a response that is not stored."""
        if self._transcript:
            await self._leases.withdraw(self._id)

    async def _save_items_only(self, final: Json, exchanges: Mapping[str, Json]) -> None:
        """Keep the items of a response that is not stored: in its conversation, and in its connection's memory."""
        start, connection = self._start, self._connection
        if start.request.conversation:
            await self._writer.join(final, start.stored, exchanges)
        if connection:
            await connection.memory.remember(final, start.remembered, exchanges, start.history.link, start.history.base)
