"""The course of a response, in the foreground and in a job: it is generated, and has an outcome or is refused.

Only what is stored, and when, differs. `ForegroundRun` of `generation/run.py` stores the response once, at its end: its
one reader gets the events from memory. `JobRunner` of `jobs/runner.py` stores each event before readers get it, so that
any server can go on with the response: it begins at a checkpoint, and all that it writes depends on holding the job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..concurrency.offloading import in_thread
from ..core.errors import ApiError, forget_frames
from ..logs import get_logger
from ..store.records import Conflict
from ..stream.assembler import Assembler
from .activity import Counts
from .event_buffer import EventBuffer
from .loop import Ending

logger = get_logger(__name__)


class GenerationDriver:
    """Runs one response to its outcome: that of its generation, failed, or cancelled.

    Args:
        assembler: builds the response.
        event_buffer: receives its events.
        clock: returns the time of its completion, in seconds since the epoch.
        counts: the owner's counts.

    Attributes:
        error: why it failed; None if it did not.
    """

    __slots__ = ("_assembler", "_clock", "_counts", "_event_buffer", "error")

    def __init__(
        self, assembler: Assembler, event_buffer: EventBuffer, clock: Callable[[], float], counts: Counts
    ) -> None:
        self._assembler = assembler
        self._event_buffer = event_buffer
        self._clock = clock
        self._counts = counts
        self.error: ApiError | None = None

    async def run(
        self, generate: Callable[[], Awaitable[Ending]], refused: Callable[[ApiError], Awaitable[bool]]
    ) -> bool:
        """Generate the response and set its outcome; return False if it was refused, and has none.

        Args:
            generate: runs the generation.
            refused: called with the error of a failed generation; returns whether it refuses the response, of which
                nothing is then to be stored.

        Raises:
            Conflict: another worker runs the response.
        """
        try:
            ending = await generate()
        except Conflict:
            raise
        except asyncio.CancelledError as problem:
            if _is_cancelled():
                raise
            # What it waited for was cancelled, not the response.
            error = self._defect(problem)
        except ApiError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - `_defect` logs it
            error = self._defect(problem)
        else:
            self._ended(ending)
            return True
        forget_frames(error)
        if await refused(error):
            return False
        await self.fail(error)
        return True

    def _ended(self, ending: Ending) -> None:
        completed_at = int(self._clock()) if ending.status == "completed" else None
        self._assembler.set_outcome(
            ending.status, completed_at=completed_at, incomplete_reason=ending.incomplete_reason
        )

    async def fail(self, error: ApiError) -> None:
        """Close the open items and set the outcome `failed`."""
        self.error = error
        self._counts.failed += 1
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

    def _defect(self, error: BaseException) -> ApiError:
        """Log a defect of this software, and return the error for the response that fails with it."""
        logger.error("could not generate a response: %s", self._assembler.response["id"], exc_info=error)
        return ApiError(500, f"The server failed while it generated the response ({type(error).__name__}).")


def _is_cancelled() -> bool:
    """Whether this task was cancelled. The error refers to the caller's frame, which must not refer to the task."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
