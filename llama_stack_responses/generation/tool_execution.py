"""How the calls of a round that the server answers are answered: hosted tools are run, several at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from ..concurrency import at_once
from ..core.stream.assembler import Assembler
from ..core.stream.calls import FORMS, ItemForm, ServerCall, Stage
from ..logs import get_logger
from ..telemetry.telemetry import Telemetry
from ..tools.tool import Invocation, Outcome, Output, ToolError
from ..tools.toolset import Toolset
from .event_buffer import Outbox

Json = dict[str, Any]
Answered = Callable[[ServerCall, Output], Awaitable[None]]

logger = get_logger(__name__)

_LOST: Final = (
    "The server was interrupted while this call ran, and its result is lost. The call may have had its effect: find "
    "out before you make it again."
)


class Answering:
    """Answers calls, and shows the client what comes of them.

    Args:
        toolset: runs them, or says why they do not go through.
        assembler: holds their items.
        outbox: where the events go.
        seconds: how long a call may take.
        telemetry: is told of the calls that are run.
    """

    def __init__(
        self, toolset: Toolset, assembler: Assembler, outbox: Outbox, seconds: float, telemetry: Telemetry
    ) -> None:
        self._toolset = toolset
        self._assembler = assembler
        self._outbox = outbox
        self._seconds = seconds
        self._telemetry = telemetry

    async def answer(self, calls: Collection[ServerCall], answered: Answered, *, again: bool) -> None:
        """Answers all calls.

        Args:
            answered: is told of each answer, in the order in which they come.
            again: whether another server may have run these calls already.
        """
        await at_once(self._answer(call, answered, again) for call in calls)

    async def _answer(self, call: ServerCall, answered: Answered, again: bool) -> None:
        if call.index is None:
            await answered(call, self._toolset.refusal(call))
            return
        try:
            outcome = await self._run(call, call.index, again)
        except ToolError as error:
            self.conclude(call.index, error.fields or self._failure(call, str(error)), failed=True)
            await answered(call, str(error))
        else:
            self.conclude(call.index, dict(outcome.fields))
            await answered(call, outcome.output)

    def _failure(self, call: ServerCall, message: str) -> Json:
        assert call.index is not None
        form = FORMS[self._assembler.response["output"][call.index]["type"]]
        return form.failure(message) if form.failure else {}

    async def _run(self, call: ServerCall, index: int, again: bool) -> Outcome:
        function = self._toolset.function(call.name)
        assert function.run
        if misread := self._toolset.misread(call):
            raise ToolError(misread)
        if again and not function.repeatable:
            raise ToolError(_LOST)
        item = self._assembler.response["output"][index]
        invocation = Invocation(call, item, self)
        with self._telemetry.tool(call, item["type"]) as told:
            outcome = await self._bounded(call, function.run(invocation))
            told.ended(outcome.output)
        return outcome

    async def _bounded(self, call: ServerCall, running: Awaitable[Outcome]) -> Outcome:
        try:
            async with asyncio.timeout(self._seconds):
                return await running
        except ToolError:
            raise
        except TimeoutError:
            raise ToolError(f"The tool did not answer within {self._seconds:g} seconds.") from None
        except Exception as error:
            logger.exception("a call of the tool %r failed", call.name)
            raise ToolError(f"The tool failed ({type(error).__name__}).") from error

    def advance(self, index: int, stage: Stage) -> None:
        """Says how far an open item is."""
        self._outbox.put(self._assembler.calls.advance(index, stage))

    def begin(self, form: ItemForm, fields: Json) -> int:
        """Opens an item of a tool's own; returns its place in the output."""
        index, events = self._assembler.calls.begin(form, fields)
        self._outbox.put(events)
        return index

    def conclude(self, index: int, fields: Json, *, failed: bool = False) -> None:
        """Closes an open item with what came of it."""
        self._outbox.put(self._assembler.calls.conclude(index, fields, failed=failed))

    def show(self, form: ItemForm, fields: Json) -> None:
        """Adds an item that is whole."""
        self._outbox.put(self._assembler.calls.show(form, fields))
