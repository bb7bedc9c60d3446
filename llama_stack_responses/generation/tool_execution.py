"""Execution of hosted tool calls, concurrently for the calls of one round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from ..concurrency.fair_yield import FairYield
from ..concurrency.share import current_share
from ..concurrency.tasks import gather_or_cancel
from ..core.json_values import bytes_left
from ..core.program_names import PROGRAM
from ..core.types import Json
from ..items.form import ItemForm, Stage
from ..logs import get_logger
from ..stream.assembler import Assembler
from ..stream.call_kinds import FORMS, ServerCall, made_by
from ..telemetry.instrumentation import Telemetry
from ..tools.tool_function import Function, Invocation, Outcome, Output, ToolError
from ..tools.toolset import Toolset
from .event_buffer import EventBuffer
from .held_output import HeldOutput
from .timeline import Timeline

Answered = Callable[[ServerCall, Output | None], Awaitable[None]]
Begun = Callable[[Sequence[ServerCall]], Awaitable[None]]
_Run = Callable[[], Awaitable[Outcome | None]]

logger = get_logger(__name__)

_MAX_CONCURRENT_CALLS: Final = 32
"""Maximum calls of one response that run at the same time; a round can have a thousand."""
_RESULT_BYTES: Final = 64 * 2**20
_TOO_MUCH: Final = (
    "The results of the tools are too large together, so this one is left out. Call no more tools, "
    "and answer with what you know."
)
_LOST: Final = (
    "The server was interrupted while this call ran, and its result is lost. The call may have taken effect: check "
    "this before you repeat it."
)


async def _nothing_begun(_: Sequence[ServerCall]) -> None:
    pass


async def _nothing_answered(_: ServerCall, __: Output | None) -> None:
    pass


class ToolExecution:
    """Answers calls and reports their progress to the client.

    Args:
        toolset: runs the calls, or returns why they are rejected.
        assembler: holds their items.
        event_buffer: receives the events.
        seconds: timeout of one call.
        telemetry: records the calls that are run.
        output: counts their results.
        fair_yield: lets calls of concurrent responses begin one after the other, users in turn.
        timeline: records when they were run.
    """

    __slots__ = (
        "_answered",
        "_assembler",
        "_begun",
        "_event_buffer",
        "_fair_yield",
        "_held",
        "_left",
        "_seconds",
        "_slots",
        "_telemetry",
        "_timeline",
        "_toolset",
    )

    def __init__(
        self,
        toolset: Toolset,
        assembler: Assembler,
        event_buffer: EventBuffer,
        seconds: float,
        telemetry: Telemetry,
        output: HeldOutput,
        fair_yield: FairYield,
        timeline: Timeline | None = None,
    ) -> None:
        self._toolset = toolset
        self._assembler = assembler
        self._event_buffer = event_buffer
        self._seconds = seconds
        self._left = _RESULT_BYTES
        self._telemetry = telemetry
        self._held = output
        self._fair_yield = fair_yield
        self._timeline = timeline or Timeline()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT_CALLS)
        self._begun: Begun = _nothing_begun
        self._answered: Answered = _nothing_answered

    async def answer(
        self, calls: Collection[ServerCall], answered: Answered, *, again: bool, begun: Begun = _nothing_begun
    ) -> None:
        """Answer all calls of the model, many of them at the same time.

        Args:
            calls: the calls, and after an interruption also those that programs had made.
            answered: awaited with each answer, also to calls of programs, in the order in which the calls finish. The
                answer of a program that waits for the client is None.
            again: whether an earlier try may have run these calls already.
            begun: awaited with calls of a program before the server runs them.
        """
        self._answered, self._begun = answered, begun
        await gather_or_cancel(self._answer_call(call, again=again) for call in calls if call.program is not None)
        await gather_or_cancel(self._answer_call(call, again=again) for call in calls if call.program is None)

    async def answer_calls(self, calls: Sequence[ServerCall]) -> None:
        """Record that calls of a program begin, run them at the same time, and close their items."""
        await self._begun(calls)
        await gather_or_cancel(self._answer_call(call) for call in calls)

    async def _answer_call(self, call: ServerCall, *, again: bool = False) -> None:
        """Answer one call, and close its item."""
        if call.refused:
            await self._answered(call, await self._toolset.refusal(call))
            return
        output: Output
        try:
            outcome = await self._run(call, again)
        except ToolError as error:
            output, fields, failed = str(error), error.fields or self._failure(call, str(error)), True
        else:
            if outcome is None:
                await self._answered(call, None)
                return
            output, fields, failed = outcome.output, dict(outcome.fields), False
            if outcome.image_usage:
                self._assembler.image_usage += outcome.image_usage
        if not self._count(output, fields):
            output, fields, failed = _TOO_MUCH, self._failure(call, _TOO_MUCH), True
        if call.open_index is not None:
            self.conclude(call.open_index, fields, failed=failed)
        await self._answered(call, output)

    def make(self, function: Function, arguments: str, program: str) -> ServerCall | None:
        """Make a call of a program; return it if the server runs it, and None if the client does.

        Raises:
            ToolError: no more tools may be called.
        """
        if function.kind.hosted and not self._toolset.take_hosted_call():
            raise ToolError("No more tools may be called for this response.")
        calls = self._assembler.calls
        self._event_buffer.put(calls.make(made_by(function.kind, program), function.name, arguments))
        if not function.kind.hosted:
            return None
        return replace(calls.server_calls.pop(), program=program)

    def output(self) -> Sequence[Json]:
        """Return the items of the response."""
        output: Sequence[Json] = self._assembler.response["output"]
        return output

    def limit(self, characters: int, earlier: Iterable[Output]) -> None:
        """Set the maximum characters of all results, as the model and the client get them; `earlier` ones count."""
        self._left = characters
        self._count(*earlier)

    def _count(self, *results: Any) -> bool:
        """Count results; return False if they are too large together with those before them."""
        before = self._left
        self._left = bytes_left(results, before)
        if self._left < 0:
            return False
        return self._held.holds(before - self._left)

    def _failure(self, call: ServerCall, message: str) -> Json:
        form = FORMS[self._item(call)["type"]]
        return form.failure(message) if form.failure else {}

    def _item(self, call: ServerCall) -> Json:
        """Return the item of a call; a program of an earlier response has none in this one."""
        return {"type": PROGRAM} if call.index is None else self._assembler.response["output"][call.index]

    async def _run(self, call: ServerCall, again: bool) -> Outcome | None:
        function = self._toolset.function(call.name)
        assert function.run
        if call.index is not None and (argument_error := await self._toolset.argument_error(call)):
            raise ToolError(argument_error)
        if again and not function.repeatable:
            raise ToolError(_LOST)
        if self._left < 0:
            raise ToolError(_TOO_MUCH)
        item = self._item(call)
        run = partial(function.run, Invocation(call, item, self))
        telemetry = self._telemetry.tool(call, item["type"])
        with telemetry as operation, self._timeline.tool(operation, item, call.name) as record:
            if function.composite:
                # Its calls have their own time limits, and take the places.
                outcome = await self._reported(call, run)
            else:
                async with self._slots:
                    await self._fair_yield.wait_behind_others(current_share())
                    outcome = await self._bounded(call, run)
            record.failed = outcome is not None and outcome.failed
            operation.ended("" if outcome is None else outcome.output)
        return outcome

    async def _bounded(self, call: ServerCall, run: _Run) -> Outcome | None:
        try:
            async with asyncio.timeout(self._seconds):
                return await self._reported(call, run)
        except TimeoutError:
            raise ToolError(f"The tool did not answer within {self._seconds:g} seconds.") from None

    async def _reported(self, call: ServerCall, run: _Run) -> Outcome | None:
        """Log a defect of the tool; the model gets its type only."""
        try:
            return await run()
        except (ToolError, TimeoutError):
            raise
        except Exception as error:
            logger.exception("tool failed: %r", call.name)
            raise ToolError(f"The tool failed ({type(error).__name__}).") from error

    def advance(self, index: int, stage: Stage) -> None:
        """Report the stage of an open item."""
        self._event_buffer.put(self._assembler.calls.advance(index, stage))

    def show_partial(self, index: int, number: int, fields: Json, size: int) -> None:
        """Show what an open item has not finished; nothing if there is no room."""
        if self._held.holds(size):
            self._event_buffer.put(self._assembler.calls.show_partial(index, number, fields))

    def hold(self, size: int) -> None:
        """Count bytes that a tool keeps until the response ends.

        Raises:
            ApiError: 429 or 503, the owner or all owners hold too much.
        """
        self._held.add(size)

    def begin(self, form: ItemForm, fields: Json) -> int:
        """Open an item of a tool's own; return its index in the output."""
        index, events = self._assembler.calls.begin(form, fields)
        self._event_buffer.put(events)
        return index

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> None:
        """Close an open item with its final fields."""
        self._event_buffer.put(self._assembler.calls.conclude(index, fields, failed=failed))

    def show(self, form: ItemForm, fields: Json) -> None:
        """Add a complete item.

        Raises:
            ToolError: the results of this response are too large together.
        """
        if not self._count(fields):
            raise ToolError(_TOO_MUCH)
        self._event_buffer.put(self._assembler.calls.show(form, fields))
