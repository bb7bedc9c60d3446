"""The one loop: a model round, the calls that the model made, the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..chat.exchanges import tool_output
from ..core.errors import ApiError, TooLongError
from ..core.exchanges import with_exchanges
from ..core.schema.request import SERVICE_TIERS, CreateRequest
from ..core.stream.assembler import Assembler
from ..core.stream.calls import ServerCall
from ..core.stream.deltas import Delta, Finish, FinishReason, Refusal
from ..moderation.filter import Guard
from ..telemetry.telemetry import Telemetry
from ..tools.tool import Output
from ..tools.toolset import Toolset
from .compaction import Compact, Compacting
from .event_buffer import Outbox
from .model_round import Asking, Heard
from .stop_point import Boundary
from .tool_execution import Answering

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ending:
    """How a turn ended without an error."""

    status: Literal["completed", "incomplete", "cancelled"]
    incomplete_reason: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """What the finished rounds of a turn left behind.

    Attributes:
        rounds: how many they are.
        said: what they added to the conversation.
        waiting: the calls of the last round that nobody has answered yet.
        ends: whether the client has to act once they are answered.
    """

    rounds: int = 0
    said: Sequence[Json] = ()
    waiting: Sequence[ServerCall] = ()
    ends: bool = False


NOTHING_DONE: Final = Progress()


@dataclass(frozen=True, slots=True)
class TurnLimits:
    """Bounds on one response.

    Attributes:
        rounds: model rounds, at most.
        idle_seconds: how long the provider may stay silent.
        tool_seconds: how long one call of a tool may take.
        output_bytes: characters that the model may say.
        output_events: events, at most.
    """

    rounds: int
    idle_seconds: float
    tool_seconds: float
    output_bytes: int = 32 * 2**20
    output_events: int = 500_000


_MOST_ITEMS: Final = 10_000
"""Items of one response's output."""

_CUT: Final[dict[FinishReason, Ending]] = {
    "length": Ending("incomplete", "max_output_tokens"),
    "content_filter": Ending("incomplete", "content_filter"),
    "cancelled": Ending("cancelled"),
    "steered": Ending("incomplete", "steered"),
}
"""What cuts a turn off, by the finish reason of the round."""


class Turn:
    """Makes one response: feeds what the model streams to the assembler and has its calls answered.

    Args:
        request: what the client asked for.
        items: the history and the input, normalised, references resolved.
        shown: what the model is to see of them, with all media that it takes in it.
        asking: asks the model.
        compacting: puts a summary in the place of the conversation.
        assembler: builds the response; knows the calls of `toolset`.
        outbox: where the events go.
        telemetry: is told what is done.
        guard: knows whether the input is refused, and what is to be said of the output at its end.
        progress: what has been done of it before.
        boundary: where the turn is to end before its time.
        after_step: is told, after each round but the last and after each answered call, what has been done by then.
    """

    def __init__(
        self,
        request: CreateRequest,
        items: list[Json],
        *,
        shown: list[Json],
        asking: Asking,
        compacting: Compacting,
        toolset: Toolset,
        assembler: Assembler,
        outbox: Outbox,
        limits: TurnLimits,
        telemetry: Telemetry,
        guard: Guard | None = None,
        progress: Progress = NOTHING_DONE,
        boundary: Boundary | None = None,
        after_step: Callable[[Progress], Awaitable[None]] | None = None,
    ) -> None:
        self._request = request
        self._items = items
        self._shown = shown
        self._asking = asking
        self._compacting = compacting
        self._toolset = toolset
        self._assembler = assembler
        self._outbox = outbox
        self._limits = limits
        self._telemetry = telemetry
        self._guard = guard
        self._boundary = boundary or Boundary()
        self._answering = Answering(toolset, assembler, outbox, limits.tool_seconds, telemetry)
        self._rounds = progress.rounds
        self._said = list(progress.said)
        self._waiting = {call.call_id: call for call in progress.waiting}
        self._ends = progress.ends
        self._output_said = len(assembler.response["output"])
        toolset.hosted_calls = sum(item["type"] == "function_call" and "id" in item for item in progress.said)
        self._after_step = after_step

    @property
    def accepted(self) -> asyncio.Future[None]:
        """Done once the provider has accepted the first request."""
        return self._asking.accepted

    async def run(self) -> Ending:
        """Runs rounds until the model has answered or the client has to act.

        Raises:
            ApiError: the provider failed, or what a tool stands on. What was said so far stands open in the assembler.
        """
        response = self._assembler.response
        try:
            with self._telemetry.response(response) as self._told:
                ending = self._refuse() or await (self._only_compact() if self._request.compacts else self._run())
                if self._guard:
                    response["moderation"] = await self._guard.moderation(response["output"])
                self._told.ended(response, ending.status, self._rounds)
                return ending
        finally:
            self._toolset.release()

    def _refuse(self) -> Ending | None:
        """Says no to an input that is refused."""
        if self._guard is None or self._guard.input_refusal is None:
            return None
        self._asking.accept()
        for delta in (Refusal(self._guard.input_refusal), Finish("content_filter")):
            self._outbox.put(self._assembler.feed(delta))
        return _CUT["content_filter"]

    async def _run(self) -> Ending:
        await self._prepare()
        if self._waiting:
            await self._answer(again=True)
        elif not self._said:
            await self._make_due_calls()
        while not self._ends and self._rounds < self._limits.rounds:
            if cut := await self._between_rounds() or _CUT.get(await self._round()):
                return cut
            self._hear()
            if not self._waiting:
                return Ending("completed")
            if any(call.index is not None for call in self._waiting.values()):
                await self._step()
            await self._answer(again=False)
        return Ending("completed") if self._ends else Ending("incomplete", "max_messages")

    @property
    def exchanges(self) -> dict[str, Json]:
        """What the model called and was told, by the id of the item that shows it to the client."""
        outputs = {item["call_id"]: item["output"] for item in self._said if item["type"] == "function_call_output"}
        return {
            item["id"]: {"name": item["name"], "arguments": item["arguments"], "output": outputs[item["call_id"]]}
            for item in self._said
            if item["type"] == "function_call" and "id" in item and item["call_id"] in outputs
        }

    async def _prepare(self) -> None:
        try:
            output = with_exchanges(self._assembler.response["output"], self.exchanges)
            await self._toolset.prepare([*self._items, *output], self._answering)
        except ApiError:
            if self._assembler.response["output"]:
                # The answer has begun, and shows what went wrong.
                self._asking.accept()
            raise
        self._output_said = len(self._assembler.response["output"])

    async def _make_due_calls(self) -> None:
        """Runs the calls of earlier responses that were waiting for the client."""
        calls = self._assembler.calls
        for due in self._toolset.due(self._items):
            self._outbox.put(calls.make(due.kind, due.name, due.arguments))
        made, calls.server_calls = calls.server_calls, []
        if made:
            self._wait_for(made)
            await self._step()
            await self._answer(again=False)

    async def _between_rounds(self) -> Ending | None:
        """Has the conversation compacted, if that is due; how the turn ends, if it does not go on."""
        if (ended := self._ended_between_rounds()) is None:
            if await self._compacting.due(self._conversation, self._tokens_left()):
                await self._compact(self._compacting.before_answer)
            ended = self._ended_between_rounds()
        return ended

    def _ended_between_rounds(self) -> Ending | None:
        left = self._tokens_left()
        if self._full() or (left is not None and left <= 0):
            return _CUT["length"]
        return _CUT["steered"] if self._boundary.wanted else None

    async def _round(self) -> FinishReason:
        """One round; what the model refuses because it is too long is asked again shorter, if that may be."""
        self._boundary.begin_round()
        numbered = self._assembler.numbered
        while True:
            try:
                heard = await self._ask()
            except TooLongError as error:
                compact = self._compacting.possible(self._conversation)
                if self._assembler.numbered > numbered or not self._asking.shorten(error, otherwise=compact):
                    raise
                if compact:
                    await self._compact(self._compacting.before_answer)
                    numbered = self._assembler.numbered
            else:
                if heard.service_tier in SERVICE_TIERS:
                    self._assembler.response["service_tier"] = heard.service_tier
                return heard.finish.reason

    async def _ask(self) -> Heard:
        with self._telemetry.round(self._request.model, self._told) as told:
            heard = await self._asking.ask(self._conversation, self._tokens_left(), self._take, told, self._full)
            told.ended(heard.finish, self._assembler.response["output"][self._output_said :])
        return heard

    @property
    def _conversation(self) -> list[Json]:
        return [*self._shown, *self._said]

    async def _only_compact(self) -> Ending:
        """Makes a response of which nothing but a compaction is wanted."""
        if not self._said:
            await self._compact(self._compacting.alone)
        return Ending("completed")

    async def _compact(self, compacted: Compact) -> None:
        """Goes on from a summary of the conversation."""
        with self._telemetry.round(self._request.model, self._told) as told:
            self._said += await compacted(self._conversation, self._tokens_left(), self._answering, told)
        self._output_said = len(self._assembler.response["output"])
        await self._step()

    def _take(self, delta: Delta) -> Finish | None:
        if self._boundary.reached(delta):
            self._outbox.put(self._assembler.close("completed"))
            return Finish("steered")
        self._outbox.put(self._assembler.feed(delta))
        return None

    def _full(self) -> bool:
        """Whether the response is as large as it may be."""
        assembler = self._assembler
        return assembler.numbered > self._limits.output_events or len(assembler.response["output"]) > _MOST_ITEMS

    def _tokens_left(self) -> int | None:
        bound = self._request.max_output_tokens
        if bound is None:
            return None
        usage = self._assembler.response["usage"]
        return bound - (usage["output_tokens"] if usage else 0)

    def _hear(self) -> None:
        """Puts what this round said into the conversation of the next one."""
        calls = self._assembler.calls
        server_calls, calls.server_calls = calls.server_calls, []
        self._ends, calls.shown = calls.shown > 0, 0
        output = self._assembler.response["output"]
        hosted = {call.index for call in server_calls}
        self._said += [item for index, item in enumerate(output) if index >= self._output_said and index not in hosted]
        self._output_said = len(output)
        self._rounds += 1
        if self._ends and hosted <= {None}:
            return  # nobody hears the refusals
        self._wait_for(server_calls)

    def _wait_for(self, server_calls: Sequence[ServerCall]) -> None:
        """Puts calls that the server answers into the conversation."""
        for call in server_calls:
            item = {} if call.index is None else self._assembler.response["output"][call.index]
            shown_as = {name: item[name] for name in ("id", "approval_request_id") if item.get(name)}
            said = {"type": "function_call", "call_id": call.call_id, "name": call.name, "arguments": call.arguments}
            self._said.append(shown_as | said)
        self._waiting = {call.call_id: call for call in server_calls}

    async def _answer(self, *, again: bool) -> None:
        await self._answering.answer(list(self._waiting.values()), self._answered, again=again)
        self._output_said = len(self._assembler.response["output"])

    async def _answered(self, call: ServerCall, output: Output) -> None:
        self._said.append(tool_output(call.call_id, output))
        del self._waiting[call.call_id]
        if call.index is not None or not self._waiting:
            await self._step()

    async def _step(self) -> None:
        if self._after_step:
            await self._after_step(Progress(self._rounds, self._said, list(self._waiting.values()), self._ends))
