"""A foreground response: the task that generates and stores it, and the interface for its client's request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from time import perf_counter
from typing import Protocol

from ..core.errors import ApiError, OutcomeUnknown, UnusableAnswerError, stopped
from ..core.types import Json
from ..logs import about, get_logger
from ..stream.assembler import Assembler
from .activity import Counts
from .driver import GenerationDriver
from .event_buffer import EventBuffer
from .loop import Ending
from .response_log import log_ended

logger = get_logger(__name__)


class ForegroundGeneration(Protocol):
    """The generation of a foreground response, or its replacement by a warm-up."""

    async def run(self) -> Ending:
        """Generate the response, and return how it ended.

        Raises:
            ApiError: the generation failed. Its open items stay open in the assembler.
        """
        ...

    @property
    def accepted(self) -> asyncio.Future[None]:
        """A future that is done once the model server has accepted the first request."""
        ...

    @property
    def begun(self) -> bool:
        """Whether it has asked the model server or begun a call, so that it must not run a second time."""
        ...

    @property
    def counts(self) -> Counts:
        """The counts of its owner."""
        ...


class ForegroundRun:
    """Runs one generation to its end and stores the response.

    Args:
        generation: generates the response.
        assembler: builds the response.
        event_buffer: receives its events.
        keep: stores the finished response. It is awaited before the terminal event is emitted, so that a client that
            has received that event can continue from the response.
        drop: awaited instead if the response was refused and is not stored.
        refusal_seconds: how long `begin` waits for a refusal.
        refuses: returns whether the server shuts down and accepts no more requests.
        clock: returns the time of its completion, in seconds since the epoch.

    Attributes:
        event_buffer: the events.
        error: the error of a failed response; None if there is none.
        refused: whether the model server refused the request, so that there is no response.
        headers: further headers of the answer to the request.
    """

    __slots__ = (
        "_assembler",
        "_begun",
        "_created",
        "_driver",
        "_drop",
        "_ending",
        "_generation",
        "_keep",
        "_refusal_seconds",
        "_refuses",
        "_shutting_down",
        "_task",
        "error",
        "event_buffer",
        "headers",
        "refused",
    )

    def __init__(
        self,
        generation: ForegroundGeneration,
        assembler: Assembler,
        event_buffer: EventBuffer,
        keep: Callable[[Json], Awaitable[None]],
        drop: Callable[[], Awaitable[None]],
        refusal_seconds: float,
        refuses: Callable[[], bool],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._refusal_seconds, self._refuses = refusal_seconds, refuses
        self._driver = GenerationDriver(assembler, event_buffer, clock, generation.counts)
        self.event_buffer = event_buffer
        self._generation = generation
        self._assembler = assembler
        self._keep = keep
        self._drop = drop
        self.error: ApiError | None = None
        self.refused = False
        self.headers: Mapping[str, str] = {}
        self._begun = False
        self._ending = False
        self._shutting_down = False
        self._created = perf_counter()
        with about(response_id=assembler.response["id"]):
            self._task = asyncio.create_task(self._main())

    @property
    def response(self) -> Json:
        """The response as it is now."""
        return self._assembler.response

    async def begin(self) -> None:
        """Wait until the model server has accepted the request, for `refusal_seconds` at most.

        From then on the response counts as begun: any later error becomes part of it. While the server shuts down, a
        response that has only waited is refused instead: another server can run it.

        Raises:
            ApiError: the request was refused in that time; nothing is stored.
        """
        await asyncio.wait(
            [self._task, self._generation.accepted], timeout=self._refusal_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if self._refuses() and not self._generation.begun:
            self._shutting_down = True
            self._cancel()
            await self.wait_ended()
        if self.error and not self._generation.accepted.done():
            raise self.error
        self._begun = True

    async def finish(self) -> Json:
        """Wait for the end, and return the final response, a failed one if the model gave no usable answer.

        Raises:
            ApiError: the response could not be stored, or the generation failed. In the latter case, if the model
                server had accepted the request, the response is stored as failed, with its output so far.
            Exception: any other, by which a defect broke off the work of this object.
        """
        await self.wait_ended()
        if not self._task.cancelled() and (defect := self._task.exception()):
            raise defect
        if self.error and not isinstance(self.error, UnusableAnswerError):
            raise self.error
        return self._assembler.response

    @property
    def unknown(self) -> bool:
        """Whether it is unknown if the finished response is stored; its stream then ends without a terminal event."""
        return isinstance(self.error, OutcomeUnknown)

    def abandon(self) -> None:
        """End the response because its client has disconnected; its output so far is stored as cancelled."""
        # In the next iteration of the event loop: a task that is cancelled before its first step never runs.
        asyncio.get_running_loop().call_soon(self._cancel)

    def shut_down(self) -> None:
        """End the response because the server shuts down; its output so far is stored as failed."""
        self._shutting_down = True
        self.abandon()

    async def wait_ended(self) -> None:
        """Wait until the response has ended and is stored, or has failed; errors are not raised."""
        await asyncio.wait([self._task])

    def on_accepted(self, callback: Callable[[object], object]) -> None:
        """Call `callback` once the model server has accepted the first request."""
        self._generation.accepted.add_done_callback(callback)

    def on_ended(self, callback: Callable[[object], object]) -> None:
        """Call `callback` with the response's task once the response has ended and is stored, or has failed."""
        self._task.add_done_callback(callback)

    def _cancel(self) -> None:
        if not self._ending:
            self._task.cancel()

    async def _main(self) -> None:
        try:
            self.event_buffer.put(self._assembler.start())
            if await self._driver.run(self._generation.run, self._refused):
                await self._conclude()
        except asyncio.CancelledError:
            await self._on_cancelled()
        finally:
            self.event_buffer.end()

    async def _on_cancelled(self) -> None:
        if not self._shutting_down:
            self._ending = True
            await self._driver.cancel()
        else:
            error = stopped(begun=self._generation.begun)
            if await self._refused(error):
                return
            await self._driver.fail(error)
        await self._conclude()

    async def _refused(self, error: ApiError) -> bool:
        """Note the error of the generation; return whether it refuses the request, so that nothing is stored."""
        self.error = error
        self._ending = True
        if self._begun or self._generation.accepted.done():
            return False
        self.refused = True
        try:
            await self._drop()
        except ApiError as problem:
            logger.warning(
                "could not release the lease of a response, it will be removed later: %s: %s",
                self._assembler.response["id"],
                problem,
            )
        return True

    async def _conclude(self) -> None:
        """Store the response and emit its terminal event, or none if it is unknown whether the response is stored."""
        self._ending = True
        if error := await self._kept():
            self.error = error
            self._assembler.set_outcome("failed", error=error)
        log_ended(self._assembler.response, perf_counter() - self._created, self.error)
        self.event_buffer.put(self._assembler.cut(error) if error and self.unknown else self._assembler.end())

    async def _kept(self) -> ApiError | None:
        """Store the response; return an error rather than raise it, so that the stream always ends properly."""
        response_id = self._assembler.response["id"]
        try:
            await self._keep(self._assembler.response)
        except ApiError as error:
            logger.error("could not store a response: %s: %s", response_id, error)
            return error
        except Exception:
            logger.exception("could not store a response: %s", response_id)
            return ApiError(500, "The response could not be stored. The server's log has the details.")
        return None
