"""Responses that end with their requests, and other work that does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, Protocol

from ..admission import Admission, Reservation
from ..concurrency.turns import Turns
from ..core.errors import NotBegunError
from ..core.types import Json
from ..generation.connection_options import ConnectionOptions
from ..generation.event_buffer import EventBuffer
from ..generation.factory import GenerationFactory
from ..generation.run import ForegroundRun
from ..inputs.resolver import ResolvedInput
from ..intervals import Intervals
from ..jobs.foreground_leases import ForegroundLeases
from ..lifecycle.finishing import Finishing
from ..logs import about
from ..store.archive import Archive
from ..stream.transcript import Transcript
from .response_writer import ResponseWriter

_GIVES_WAY_SECONDS: Final = 1.0
"""Time for which the end of a stream lets other responses of its user begin first.

Its client has read all of the output, while theirs have nothing yet. It is longer than 256 responses take to begin.
"""
_ENDS: Final = 16
"""Streams that are stored at a time. Those of hundreds that end together would all be stored late, and hold much."""
_ENDS_PER_USER: Final = 8
"""Those of one authenticated user: a stream of another one does not wait until one of theirs is stored."""
_END_SECONDS: Final = 0.001
"""Time after which one that waits for the store no longer counts if the server is idle."""


class Stoppable(Protocol):
    """Work for a request."""

    def shut_down(self) -> None:
        """End it, because the server shuts down."""
        ...


class ForegroundResponses:
    """Runs foreground responses.

    Args:
        factory: makes the responses.
        archive: stores them.
        leases: the leases of streamed responses.
        admission: how many responses may run at a time.
        beginnings: the turns of responses that begin.
        finishing: how long a shutdown waits for the running ones, and how long it accepts connections before.
        refusal_seconds: time for which a stream waits for the model server's refusal.
        intervals: how often and how long to ask the store for the outcome of a commit.

    Attributes:
        finishing: the wait of a shutdown for the running ones.
    """

    def __init__(
        self,
        factory: GenerationFactory,
        archive: Archive,
        leases: ForegroundLeases,
        admission: Admission,
        beginnings: Turns,
        finishing: tuple[float, float],
        refusal_seconds: float,
        intervals: Intervals,
    ) -> None:
        self._factory = factory
        self._archive = archive
        self._leases = leases
        self._admission = admission
        self._beginnings = beginnings
        self._ends = Turns(_ENDS, _ENDS_PER_USER, _END_SECONDS)
        self._refusal_seconds = refusal_seconds
        self._intervals = intervals
        self._new_objects = factory.new_objects
        self._runs = set[Stoppable]()
        self._stopped = False
        self.finishing = Finishing(self._runs, *finishing)

    @property
    def running(self) -> int:
        """The number of responses and compactions that run."""
        return len(self._runs)

    def shut_down(self) -> None:
        """End all running responses, and begin no more, because the server shuts down."""
        self._stopped = True
        for run in self._runs:
            run.shut_down()

    @contextmanager
    def running_beside(self, work: Stoppable) -> Iterator[None]:
        """Have a shutdown wait for other work within the block, and end it as it ends responses.

        Raises:
            NotBegunError: the server shuts down.
        """
        if self._stopped:
            raise NotBegunError
        self._runs.add(work)
        try:
            yield
        finally:
            self._runs.discard(work)

    async def run(self, start: ResolvedInput, connection: ConnectionOptions | None = None) -> ForegroundRun:
        """Begin a response.

        Args:
            start: what the response starts from.
            connection: the connection that it is sent on, if that has options.

        Raises:
            NotBegunError: the server shuts down.
        """
        if self._stopped:
            raise NotBegunError
        request = start.request
        response = self._factory.begin(request, start.moderation, start.tag(self._archive.placement))
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
            lease = await self._leases.acquire(response, **start.stored) if transcript else None
            unless_begun.pop_all()
        writer = ResponseWriter(
            self._archive, start, generation, context.timeline, transcript, lease, connection, self._intervals
        )
        begun = self._new_objects.note_begun()
        with about(**self._factory.name_owner(start.owner)):
            run = ForegroundRun(
                generation,
                context.assembler,
                event_buffer,
                partial(self._keep_stream, writer.keep, begun) if request.stream else writer.keep,
                writer.drop,
                self._refusal_seconds,
                # The balancer cannot give a message of a WebSocket to another server.
                lambda: connection is None and self.finishing.refuses,
                context.factory.clock,
            )
        self._runs.add(run)
        run.on_ended(partial(self._ended, run, writer, slot, begun))
        return run

    async def _keep_stream(self, keep: Callable[[Json], Awaitable[None]], begun: int, final: Json) -> None:
        self._new_objects.note_ending(begun)
        await self._beginnings.give_way(_GIVES_WAY_SECONDS)
        with await self._ends.take():
            await keep(final)

    def _ended(self, run: ForegroundRun, writer: ResponseWriter, slot: Reservation, begun: int, _: object) -> None:
        self._runs.discard(run)
        writer.ended()
        slot.release()
        self._new_objects.note_ended(begun)
