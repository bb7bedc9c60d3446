"""What the commit of a response's end writes if the response is that of a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...core.backoff import pause_after
from ...core.errors import ApiError
from ...feature import Ended
from ...store.records import Op
from ...telemetry.instrumentation import Telemetry
from ...telemetry.metrics import Metric
from .objects import counted_of, result_of
from .rows import Line, ended_ops, retry_ops

LINES: Final = Metric("llama_stack_responses.batch.lines", "{line}", "Ended tries of lines of batches, by their result")

_LONGEST_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Tries:
    """How often a line is tried.

    Attributes:
        most: how often.
        first: seconds before the second try.
    """

    most: int
    first: float

    def pause(self, attempt: int, error: ApiError) -> float | None:
        """Return the seconds after a try that failed, with jitter; None if it was the last one."""
        if attempt >= self.most or not (error.status == 429 or error.status >= 500):
            return None
        return max(pause_after(attempt, self.first, _LONGEST_SECONDS), min(error.retry_after or 0.0, _LONGEST_SECONDS))


class LineEnds:
    """Writes the ends of lines.

    Args:
        tries: how often a line is tried.
        telemetry: records metrics.
    """

    def __init__(self, tries: Tries, telemetry: Telemetry) -> None:
        self._tries, self._telemetry = tries, telemetry

    def ops(self, ended: Ended) -> Sequence[Op]:
        """Return what belongs to the commit of a response's end."""
        line = Line.of_response(ended.response["id"])
        if line is None:
            return ()
        result = result_of(ended)
        if ended.error and result.status != 200 and (pause := self._tries.pause(line.attempt, ended.error)) is not None:
            self._telemetry.record(LINES, 1, {"result": "retried"})
            return retry_ops(line, ended.at + pause)
        counted = counted_of(ended.response, result)
        self._telemetry.record(LINES, 1, {"result": "completed" if counted.completed else "failed"})
        return ended_ops(line, result, counted)
