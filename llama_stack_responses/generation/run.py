"""A response in the making: the task that makes it, and what those who wait for it can ask."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from ..core.errors import ApiError, OutcomeUnknown
from ..core.stream.assembler import Assembler
from ..logs import about, get_logger
from .event_buffer import Outbox
from .loop import Ending

Json = dict[str, Any]

logger = get_logger(__name__)


class Making(Protocol):
    """What makes a response."""

    @property
    def accepted(self) -> asyncio.Future[None]:
        """Done once the provider has accepted the first request."""
        ...

    async def run(self) -> Ending:
        """Makes it, and says how it ended.

        Raises:
            ApiError: it could not be made. What was said so far stands open in the assembler.
        """
        ...


class Run:
    """Runs one turn to its end and keeps what came of it.

    Args:
        turn: makes the response.
        assembler: what it is built with.
        outbox: where its events go.
        keep: stores the finished response; awaited before the terminal event goes out, so that whoever
            sees that event can already continue from the response.
        drop: awaited instead when nothing is to be stored.

    Attributes:
        outbox: the events.
        error: what went wrong, if anything did.
    """

    def __init__(
        self,
        turn: Making,
        assembler: Assembler,
        outbox: Outbox,
        keep: Callable[[Json], Awaitable[None]],
        drop: Callable[[], Awaitable[None]],
    ) -> None:
        self.outbox = outbox
        self._turn = turn
        self._assembler = assembler
        self._keep = keep
        self._drop = drop
        self.error: ApiError | None = None
        self._begun = False
        self._settling = False
        self._shutting_down = False
        with about(response_id=assembler.response["id"]):
            self._task = asyncio.create_task(self._main())

    @property
    def response(self) -> Json:
        """The response as it is now."""
        return self._assembler.response

    async def begin(self, patience: float) -> None:
        """Waits until the provider has accepted the request, but no longer than `patience` seconds.

        From then on the answer counts as begun: whatever goes wrong becomes part of the response.

        Raises:
            ApiError: the provider refused in that time; nothing is stored.
        """
        await asyncio.wait([self._task, self._turn.accepted], timeout=patience, return_when=asyncio.FIRST_COMPLETED)
        if self.error and not self._turn.accepted.done():
            raise self.error
        self._begun = True

    async def finish(self) -> Json:
        """Waits for the end and returns the final response.

        Raises:
            ApiError: the provider failed; if it had accepted the request, what it said is stored.
        """
        await self.settled()
        if self.error:
            raise self.error
        return self._assembler.response

    @property
    def unknown(self) -> bool:
        """Whether it is unknown if the finished response is stored: its stream ends without a terminal event."""
        return isinstance(self.error, OutcomeUnknown)

    def abandon(self) -> None:
        """Ends the response because nobody waits for it any more; what was said is kept as cancelled."""
        # In the next turn of the loop: a task that is cancelled before its first step never sees it.
        asyncio.get_running_loop().call_soon(self._cancel)

    def shut_down(self) -> None:
        """Ends the response because the server ends; what was said is kept as failed."""
        self._shutting_down = True
        self.abandon()

    async def settled(self) -> None:
        """Waits until the task has ended, whatever came of it."""
        await asyncio.wait([self._task])

    def when_settled(self, told: Callable[[], object]) -> None:
        """Has `told` called once the task has ended."""
        self._task.add_done_callback(lambda _: told())

    def _cancel(self) -> None:
        if not self._settling:
            self._task.cancel()

    async def _main(self) -> None:
        try:
            self.outbox.put(self._assembler.start())
            ending = await self._turn.run()
            completed_at = int(time.time()) if ending.status == "completed" else None
            self._assembler.settle(ending.status, completed_at=completed_at, incomplete_reason=ending.incomplete_reason)
            await self._conclude()
        except ApiError as error:
            await self._fail(error)
        except asyncio.CancelledError:
            await self._break_off()
        except Exception as error:
            logger.exception("%s failed", self._assembler.response["id"])
            await self._fail(ApiError(500, f"The server failed while it made the response ({type(error).__name__})."))
        finally:
            self.outbox.end()

    async def _break_off(self) -> None:
        if self._shutting_down:
            await self._fail(ApiError(503, "The server is shutting down. Try again.", retry_after=1))
            return
        self.outbox.put(self._assembler.close("incomplete"))
        self._assembler.settle("cancelled")
        await self._conclude()

    async def _fail(self, error: ApiError) -> None:
        self.error = error
        if self._begun or self._turn.accepted.done():
            self.outbox.put(self._assembler.close("incomplete"))
            self._assembler.settle("failed", error=error)
            await self._conclude()
            return
        try:
            await self._drop()
        except ApiError as problem:
            logger.warning("%s is looked for in vain later: %s", self._assembler.response["id"], problem)

    async def _conclude(self) -> None:
        """Stores the settled response and lets its terminal event go, or none if it is unknown whether it is stored."""
        self._settling = True
        if error := await self._kept():
            self.error = error
            self._assembler.settle("failed", error=error)
        self.outbox.put(self._assembler.cut(error) if error and self.unknown else self._assembler.end())

    async def _kept(self) -> ApiError | None:
        """Stores the response and says what went wrong, if anything did: its reader must hear of an end in any case."""
        response_id = self._assembler.response["id"]
        try:
            await self._keep(self._assembler.response)
        except ApiError as error:
            logger.error("%s could not be stored: %s", response_id, error)
            return error
        except Exception:
            logger.exception("%s could not be stored", response_id)
            return ApiError(500, "The response could not be stored. The server's log has the details.")
        return None
