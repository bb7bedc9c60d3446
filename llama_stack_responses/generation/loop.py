"""The loop of one generation: a model round, the tool calls of that round, the next round."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ..admission import Reservation
from ..chat.adaptation.streaming import in_one_piece
from ..chat.function_calls import tool_output
from ..chat.malformed_calls import MAX_REPAIRS, told
from ..config.limits import Limits
from ..core.errors import ApiError, MalformedCallError, TooLongError, UnusableAnswerError
from ..core.exchanges import with_exchanges
from ..core.shapes import DEFAULT_LIMITS
from ..core.types import Json
from ..inputs.moderation import OutputModeration
from ..items.registry import REQUESTS
from ..requests.request import CreateRequest
from ..requests.request_values import SERVICE_TIERS
from ..stream.assembler import Assembler
from ..stream.call_kinds import ServerCall
from ..stream.deltas import Delta, Finish, FinishReason, Refusal
from ..stream.usage import UNKNOWN
from ..telemetry.instrumentation import RoundOperation, Telemetry
from ..tools.mcp.list_budget import ServerBounds
from ..tools.tool_function import Output
from ..tools.toolset import SERVERS, Toolset
from .activity import Counts, Running
from .auto_compaction import AutoCompaction, Compact
from .cache_diagnostics import CacheDiagnostics
from .event_buffer import EventBuffer
from .held_output import HeldOutput
from .interruption import Interruption
from .model_round import ModelRound, RoundResult
from .repetition import Repetition
from .stop_point import StopPoint
from .timeline import Timeline
from .tool_execution import ToolExecution


@dataclass(frozen=True, slots=True)
class Ending:
    """How a generation ended without an error."""

    status: Literal["completed", "incomplete"]
    incomplete_reason: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationProgress:
    """The results of a generation's finished rounds.

    Attributes:
        rounds: number of finished rounds.
        new_items: the items that they added to the conversation.
        waiting: the calls of the last round that are not answered yet.
        ends: whether the client has to act once these calls are answered.
    """

    rounds: int = 0
    new_items: Sequence[Json] = ()
    waiting: Sequence[ServerCall] = ()
    ends: bool = False


NOTHING_DONE: Final = GenerationProgress()
_DEFAULTS: Final = Limits()


@dataclass(frozen=True, slots=True)
class GenerationLimits:
    """Bounds on one response.

    Attributes:
        rounds: maximum number of model rounds.
        idle_seconds: timeout for the model server's next data.
        tool_seconds: timeout of one tool call.
        output_bytes: maximum number of characters of the model's output.
        output_events: maximum number of events.
        tool_output_bytes: maximum number of characters of the results of hosted tools.
        servers: bounds on the MCP servers.
        tools: maximum number of tools, those of the input included.
        repeated_rounds: maximum number of rounds one after another with the same calls and the same results.
    """

    rounds: int
    idle_seconds: float
    tool_seconds: float
    output_bytes: int = _DEFAULTS.output_bytes
    output_events: int = _DEFAULTS.output_events
    tool_output_bytes: int = _DEFAULTS.tool_output_bytes
    servers: ServerBounds = SERVERS
    tools: int = DEFAULT_LIMITS.max_tools
    repeated_rounds: int = _DEFAULTS.repeated_rounds


_MAX_ITEMS: Final = 10_000
"""Maximum number of items of one response's output."""

_NAME_CHARACTERS: Final = 64
"""Characters of a tool's name that an error quotes."""
_UNKNOWN_ROUNDS: Final = 4
"""Rounds one after another that only call tools that do not exist, after which a response fails."""
_MISSED_ROUNDS: Final = 2
"""Rounds one after another that only call other tools than the chosen ones, after which a response fails."""

_CUT: Final[dict[FinishReason, Ending]] = {
    "length": Ending("incomplete", "max_output_tokens"),
    "content_filter": Ending("incomplete", "content_filter"),
    "steered": Ending("incomplete", "steered"),
}
"""The endings of a generation that is cut off, by the finish reason of the round."""


class Generation:
    """Generates one response: feeds the model's deltas to the assembler and has its tool calls answered.

    Args:
        request: the client's request.
        items: the history and the input, normalised, with references resolved.
        model_items: these items as the model continues from them, with files and images resolved; what the response
            adds is appended to them.
        held: counts the memory that `model_items` and the results of tools take, until the generation has ended.
        model_round: runs the model rounds.
        auto_compaction: replaces the conversation by a summary when it is too long.
        toolset: the request's tools.
        assembler: builds the response; knows the call kinds of `toolset`.
        event_buffer: receives the events.
        limits: bounds on the response.
        telemetry: records spans and metrics.
        moderation_filter: refuses the input if it was flagged, and reports the moderation of the output at the end.
        cache_diagnostics: compares the prompt with that of another response at the end; None if this was not requested.
        progress: what earlier tries have finished.
        stop_point: ends the generation early.
        after_step: receives the progress after compactions, rounds with calls to run, and answered calls.
    """

    __slots__ = (
        "_after_step",
        "_assembler",
        "_auto_compaction",
        "_cache_diagnostics",
        "_ends",
        "_event_buffer",
        "_held",
        "_interruption",
        "_items",
        "_limits",
        "_model_round",
        "_moderation_filter",
        "_new_items",
        "_operation",
        "_output_said",
        "_repetition",
        "_request",
        "_rounds",
        "_shown",
        "_stop_point",
        "_telemetry",
        "_tool_execution",
        "_toolset",
        "_unknown_rounds",
        "_waiting",
    )

    def __init__(
        self,
        request: CreateRequest,
        items: list[Json],
        *,
        model_items: list[Json],
        held: Reservation,
        model_round: ModelRound,
        auto_compaction: AutoCompaction,
        toolset: Toolset,
        assembler: Assembler,
        event_buffer: EventBuffer,
        limits: GenerationLimits,
        telemetry: Telemetry,
        moderation_filter: OutputModeration | None = None,
        cache_diagnostics: CacheDiagnostics | None = None,
        progress: GenerationProgress = NOTHING_DONE,
        stop_point: StopPoint | None = None,
        after_step: Callable[[GenerationProgress], Awaitable[None]] | None = None,
    ) -> None:
        self._request = request
        self._items, self._held = items, held
        self._model_round, self._auto_compaction = model_round, auto_compaction
        self._toolset, self._assembler = toolset, assembler
        self._event_buffer, self._limits, self._telemetry = event_buffer, limits, telemetry
        self._moderation_filter, self._cache_diagnostics = moderation_filter, cache_diagnostics
        self._stop_point, self._interruption = stop_point or StopPoint(), Interruption()
        turns, timeline = model_round.fair_yield, model_round.timeline
        self._tool_execution = ToolExecution(
            toolset, assembler, event_buffer, limits.tool_seconds, telemetry, HeldOutput(held), turns, timeline
        )
        self._tool_execution.limit(limits.tool_output_bytes, _outputs(progress.new_items))
        self._rounds, self._ends, self._unknown_rounds = progress.rounds, progress.ends, 0
        self._repetition = Repetition(limits.repeated_rounds)
        self._new_items, self._shown = list[Json](), model_items
        self._add(*progress.new_items)
        self._waiting = {call.call_id: call for call in progress.waiting}
        self._output_said = len(assembler.response["output"])
        toolset.hosted_calls = sum(item["type"] == "function_call" and "id" in item for item in progress.new_items)
        self._after_step = after_step

    @property
    def accepted(self) -> asyncio.Future[None]:
        """A future that is done once the model server has accepted the first request."""
        return self._model_round.accepted

    @property
    def begun(self) -> bool:
        """Whether it has asked the model server or begun a call, so that it must not run a second time."""
        return self._model_round.asked or self.accepted.done() or bool(self._assembler.response["output"])

    @property
    def counts(self) -> Counts:
        """The counts of its owner."""
        return self.timeline.counts

    @property
    def timeline(self) -> Timeline:
        """Records the times of rounds and tool calls, and counts them."""
        return self._model_round.timeline

    async def run(self) -> Ending:
        """Run rounds until the model has answered or the client has to act.

        Raises:
            ApiError: the model server failed, or a service that a tool depends on. The output so far stays open in the
                assembler.
        """
        response, request = self._assembler.response, self._request
        owner, end = self.timeline.owner, self._interruption.end
        running = Running(self._assembler, self._items, request.store, request.stream, owner, end)
        try:
            with self._telemetry.response(response) as self._operation, self.timeline.response(running) as record:
                ending = self._refuse()
                if ending is None:
                    work = self._only_compact() if request.compacts else self._run()
                    ending = await self._interruption.within(work)
                if self._moderation_filter:
                    response["moderation"] = await self._moderation_filter.moderation(self._assembler.final_output)
                if self._cache_diagnostics:
                    rounds = self.timeline.rounds
                    response["prompt_cache_diagnostics"] = await self._cache_diagnostics.of(
                        response, self._items, rounds
                    )
                self._operation.ended(response, ending.status, self._rounds, self._event_buffer.passed)
                record.status = ending.status
                return ending
        finally:
            self.release()

    def release(self) -> None:
        """Release the tools' connections and the held memory. Call it also for a generation that is not run."""
        self._toolset.release()
        self._held.release()

    def _refuse(self) -> Ending | None:
        """Answer a flagged input with a refusal; return None if the input is not refused."""
        if self._moderation_filter is None or self._moderation_filter.input_refusal is None:
            return None
        self._model_round.accept()
        self._event_buffer.put(self._assembler.feed(Refusal(self._moderation_filter.input_refusal)))
        self._event_buffer.put(self._assembler.finish_unasked("content_filter"))
        return _CUT["content_filter"]

    async def _run(self) -> Ending:
        await self._prepare()
        if self._waiting:
            await self._answer(again=True)
        elif not self._new_items:
            await self._make_due_calls()
        while not self._ends and self._rounds < self._limits.rounds and not self._toolset.exhausted:
            if self._must_answer():
                self._toolset.withhold()
            if cut := await self._between_rounds() or _CUT.get(await self._round()):
                return cut
            before = len(self._new_items)
            self._add_output()
            if not self._waiting:
                return Ending("completed")
            self._count_unknown()
            if any(not call.refused for call in self._waiting.values()):
                await self._step()
            await self._answer(again=False)
            self._repetition.count(self._new_items[before:])
        return Ending("completed") if self._ends else Ending("incomplete", "max_messages")

    def _must_answer(self) -> bool:
        """Return whether the model has had all of its hosted tools: its calls, its rounds, or by repeating itself."""
        is_last = 0 < self._rounds == self._limits.rounds - 1
        return self._toolset.spent or is_last or self._repetition.reached

    def _count_unknown(self) -> None:
        """Count a round that only calls tools that do not exist, or others than `tool_choice` requires.

        Raises:
            ApiError: the model has done little else.
        """
        names = [call.name for call in self._waiting.values()]
        misses = self._toolset.misses_choice(names)
        self._unknown_rounds = self._unknown_rounds + 1 if misses or not any(map(self._toolset.has, names)) else 0
        if misses and self._unknown_rounds >= _MISSED_ROUNDS:
            raise UnusableAnswerError(
                f"The model calls '{names[0][:_NAME_CHARACTERS]}', not a tool that 'tool_choice' requires, although "
                "it was asked twice: use another model, or 'tool_choice': 'auto'."
            )
        if self._unknown_rounds >= _UNKNOWN_ROUNDS:
            raise UnusableAnswerError(
                f"The model keeps calling a tool that does not exist: '{names[0][:_NAME_CHARACTERS]}'. Declare the "
                "tool, or name those that the model may call in the instructions.",
            )

    @property
    def left_out(self) -> Mapping[int, Json] | None:
        """The items, by output index, that the ended response leaves out."""
        return self._assembler.left_out

    @property
    def exchanges(self) -> dict[str, Json]:
        """The answered calls and their outputs as the model sees them, by the id of the item that the client sees."""
        outputs = {
            item["call_id"]: item["output"] for item in self._new_items if item["type"] == "function_call_output"
        }
        return {
            item["id"]: {"name": item["name"], "arguments": item["arguments"], "output": outputs[item["call_id"]]}
            for item in self._new_items
            if item["type"] == "function_call" and "id" in item and item["call_id"] in outputs
        }

    async def _prepare(self) -> None:
        try:
            output = with_exchanges(self._assembler.response["output"], self.exchanges)
            await self._toolset.prepare([*self._items, *output], self._tool_execution)
        except ApiError:
            if self._assembler.response["output"]:
                # Output has begun, so the error becomes part of the response.
                self._model_round.accept()
            raise
        self.timeline.left_out(self._toolset.omitted)
        self._output_said = len(self._assembler.response["output"])
        if self._new_items:
            # An earlier try may have compacted the conversation.
            self._shown = await self._auto_compaction.continued(self._shown)

    async def _make_due_calls(self) -> None:
        """Run the calls of earlier responses that waited for the client."""
        calls = self._assembler.calls
        for due in await self._toolset.due(self._items):
            self._event_buffer.put(calls.make(due.kind, due.name, due.arguments))
        due_calls, calls.server_calls = [*calls.server_calls, *self._toolset.unfinished()], []
        if due_calls:
            self._wait_for(due_calls)
            await self._step()
            await self._answer(again=False)
        if self._ends:
            self._model_round.accept()  # a program waits for the client again, before the model is asked

    async def _between_rounds(self) -> Ending | None:
        """Compact the conversation if that is due; return the ending if the generation has to end here."""
        if (ended := self._ended_between_rounds()) is None:
            if await self._auto_compaction.due(self._shown, self._tokens_left()):
                await self._compact(self._auto_compaction.before_answer)
            ended = self._ended_between_rounds()
        return ended

    def _ended_between_rounds(self) -> Ending | None:
        left = self._tokens_left()
        if self._full() or (left is not None and left <= 0):
            return _CUT["length"]
        return _CUT["steered"] if self._stop_point.wanted else None

    async def _round(self) -> FinishReason:
        """Run one round. If the model server refuses the request as too long, shorten and resend it where allowed.

        If the model writes a call that its server cannot read, it is asked again.
        """
        self._stop_point.begin_round()
        numbered, said = self._assembler.numbered, self._output_said
        malformed: list[MalformedCallError] = []
        while True:
            try:
                result = await self._ask(malformed)
            except MalformedCallError as error:
                malformed.append(error)
                if len(malformed) > MAX_REPAIRS or not self._takes_back():
                    self._output_said = said
                    raise
                numbered = self._assembler.numbered
            except TooLongError as error:
                numbered = await self._shorten(error, numbered)
            else:
                if result.service_tier in SERVICE_TIERS:
                    self._assembler.response["service_tier"] = result.service_tier
                return result.finish.reason

    def _takes_back(self) -> bool:
        """Have the response leave out what was shown of this round; return False if a client may have used it.

        Reasoning alone stays: the next answer goes on from it.
        """
        assembler, output, said = self._assembler, self._assembler.response["output"], self._output_said
        if all(item["type"] == "reasoning" for item in output[said:]):
            return True
        if not self._is_unused(output[said:]):
            return False
        self._event_buffer.put(assembler.close("incomplete"))
        assembler.calls.server_calls, assembler.calls.client_calls = [], 0
        self._output_said = len(output)
        assembler.repeated = {*assembler.repeated, *range(said, len(output))}
        return True

    def _is_unused(self, shown: Sequence[Json]) -> bool:
        """Return whether no client has used these items of a round that has not ended."""
        request = self._request
        if not (request.stream or request.background):
            return True
        if any(item["type"] in REQUESTS and item.get("status", "completed") == "completed" for item in shown):
            return False  # a client that reads along may have run the call
        return request.background or all(item["type"] != "message" for item in shown)

    async def _shorten(self, error: TooLongError, numbered: int) -> int:
        """Shorten what was refused as too long; return the number of events so far.

        Args:
            error: the refusal.
            numbered: the number of events when the round began.

        Raises:
            TooLongError: it cannot be sent again.
        """
        is_begun = self._assembler.numbered > numbered
        if not is_begun and self._model_round.shorten_answer(error, self._tokens_left()):
            return self._assembler.numbered
        compact = await self._auto_compaction.possible(self._shown)
        if is_begun or not await self._model_round.shorten(error, otherwise=compact):
            raise error
        if compact:
            await self._compact(self._auto_compaction.before_answer)
        return self._assembler.numbered

    async def _ask(self, malformed: Sequence[MalformedCallError]) -> RoundResult:
        with (
            self._telemetry.round(self._request.model, self._operation) as operation,
            self.timeline.round(operation, "answer"),
        ):
            asked = self._prefill(operation) if self._request.prewarms else self._answer_round(operation, malformed)
            result = await asked
            operation.ended(result.finish, self._assembler.response["output"][self._output_said :])
        return result

    async def _answer_round(self, operation: RoundOperation, malformed: Sequence[MalformedCallError]) -> RoundResult:
        return await self._model_round.run(
            await self._chat(malformed),
            self._take,
            operation,
            self._full,
            self._assembler,
            self._assembler.preparation,
        )

    async def _chat(self, malformed: Sequence[MalformedCallError]) -> Json:
        """Return the request of the round. A server that could not read a stream is first asked for the same again."""
        chat = await self._model_round.chat(self._shown, self._tokens_left())
        if malformed and malformed[-1].of_stream:
            chat = in_one_piece(chat)
            if len(malformed) == 1:
                return chat
        return chat | {"messages": [*chat["messages"], told(malformed[-1])]} if malformed else chat

    async def _prefill(self, operation: RoundOperation) -> RoundResult:
        result = await self._model_round.prefill(self._shown, operation)
        self._assembler.feed(result.finish)
        return result

    async def _only_compact(self) -> Ending:
        """Answer a request for compaction alone."""
        if not self._new_items:
            await self._compact(self._auto_compaction.alone)
        return Ending("completed")

    async def _compact(self, compacted: Compact) -> None:
        """Compact the conversation and continue from its summary."""
        with (
            self._telemetry.round(self._request.model, self._operation) as operation,
            self.timeline.round(operation, "compaction"),
        ):
            added = await compacted(self._shown, self._tokens_left(), self._tool_execution, operation)
            self._add(*added)
            self._shown = await self._auto_compaction.continued(self._shown)
        self._output_said = len(self._assembler.response["output"])
        await self._step()

    def _add(self, *items: Json) -> None:
        """Add items to the conversation."""
        self._new_items += items
        self._shown += items

    def _take(self, delta: Delta) -> Finish | None:
        if self._stop_point.reached(delta):
            self._event_buffer.put(self._assembler.close("completed"))
            self._assembler.count(UNKNOWN)
            return Finish("steered", UNKNOWN)
        self._event_buffer.put(self._assembler.feed(delta))
        self._model_round.note_output()
        return None

    def _full(self) -> bool:
        """Return whether the response has too many events or items."""
        assembler = self._assembler
        return assembler.numbered > self._limits.output_events or len(assembler.response["output"]) > _MAX_ITEMS

    def _tokens_left(self) -> int | None:
        bound = self._request.max_output_tokens
        if bound is None:
            return None
        return bound - self._assembler.used.output_tokens

    def _add_output(self) -> None:
        """Add the output of this round to the conversation for the next one."""
        calls = self._assembler.calls
        server_calls, calls.server_calls = calls.server_calls, []
        self._ends, calls.client_calls = calls.client_calls > 0, 0
        output = self._assembler.response["output"]
        hosted = {call.index for call in server_calls}
        unsaid = enumerate(output[self._output_said :], self._output_said)
        self._add(*(item for index, item in unsaid if index not in hosted))
        self._output_said = len(output)
        self._rounds += 1
        if self._ends and hosted <= {None}:
            return  # no next round, so the model would not see the refusals
        self._wait_for(server_calls)

    def _wait_for(self, server_calls: Sequence[ServerCall]) -> None:
        """Add calls that the server answers to the conversation."""
        for call in server_calls:
            if call.closed and call.index is None:
                continue  # an earlier response has the program
            item = {} if call.index is None else self._assembler.response["output"][call.index]
            shown_as = {name: item[name] for name in ("id", "approval_request_id") if item.get(name)}
            called = {
                "type": "function_call",
                "call_id": call.call_id,
                "name": call.name,
                "arguments": call.arguments,
            }
            self._add(shown_as | called)
        self._waiting = {call.call_id: call for call in server_calls}

    async def _answer(self, *, again: bool) -> None:
        await self._tool_execution.answer(list(self._waiting.values()), self._answered, again=again, begun=self._begun)
        self._assembler.calls.client_calls = 0  # those of programs, which wait for them
        self._output_said = len(self._assembler.response["output"])

    async def _begun(self, calls: Sequence[ServerCall]) -> None:
        """Record calls of a program that the server runs: the next worker repeats only those that it may repeat."""
        if calls:
            self._waiting |= {call.call_id: call for call in calls}
            await self._step()

    async def _answered(self, call: ServerCall, output: Output | None) -> None:
        if output is None:
            self._ends = True
        elif call.program is None:
            self._add(tool_output(call.call_id, output))
        del self._waiting[call.call_id]
        if not call.refused or not self._waiting:
            await self._step()

    async def _step(self) -> None:
        if self._after_step:
            await self._after_step(
                GenerationProgress(self._rounds, self._new_items, list(self._waiting.values()), self._ends)
            )


def _outputs(items: Sequence[Json]) -> Iterator[Output]:
    """Return the results of calls in a conversation."""
    return (item["output"] for item in items if item["type"] == "function_call_output")
