"""Sets the outcome of a response, in the foreground and in the background."""

from __future__ import annotations

from collections.abc import Callable

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError
from ..logs import get_logger
from ..stream.assembler import Assembler
from .event_buffer import EventBuffer
from .loop import Ending

logger = get_logger(__name__)


class GenerationDriver:
    """Sets the outcome of one response: that of its generation, failed, or cancelled.

    Args:
        assembler: builds the response.
        event_buffer: receives its events.
        clock: returns the time of its completion, in seconds since the epoch.
    """

    __slots__ = ("_assembler", "_clock", "_event_buffer")

    def __init__(self, assembler: Assembler, event_buffer: EventBuffer, clock: Callable[[], float]) -> None:
        self._assembler = assembler
        self._event_buffer = event_buffer
        self._clock = clock

    def ended(self, ending: Ending) -> None:
        """Set the outcome of the response, whose generation has ended."""
        completed_at = int(self._clock()) if ending.status == "completed" else None
        self._assembler.set_outcome(
            ending.status, completed_at=completed_at, incomplete_reason=ending.incomplete_reason
        )

    async def fail(self, error: ApiError) -> None:
        """Close the open items and set the outcome `failed`."""
        await self._close()
        self._assembler.set_outcome("failed", error=error)

    async def cancel(self) -> None:
        """Close the open items and set the outcome `cancelled`."""
        await self._close()
        self._assembler.set_outcome("cancelled")

    async def _close(self) -> None:
        while work := self._assembler.preparation():
            await in_thread(work)
        self._event_buffer.put(self._assembler.close("incomplete"))

    def defect(self, error: Exception) -> ApiError:
        """Log a defect of this software, and return the error for the response that fails with it."""
        logger.error("could not generate a response: %s", self._assembler.response["id"], exc_info=error)
        return ApiError(500, f"The server failed while it generated the response ({type(error).__name__}).")
