"""The one loop: a model round, the calls that the model made, the next round."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from .answering import Answering
from .chat.chunks import ChunkReader
from .chat.exchanges import tool_output
from .chat.inference import Inference
from .chat.messages import FileContent, chat_messages
from .chat.profile import Profile
from .chat.request import chat_request
from .core.assembler import Assembler
from .core.calls import ServerCall
from .core.citing import Citing
from .core.deltas import Delta, Finish, FinishReason
from .core.errors import ApiError
from .core.exchanges import with_exchanges
from .core.request import SERVICE_TIERS, CreateRequest
from .core.thoughts import Thought, plain_thoughts
from .gates import Gate, through
from .hangup import hanging_up
from .outbox import Outbox
from .tools.tool import Output
from .tools.toolset import Toolset
from .turnstile import Turnstile
from .watchdog import Watchdog

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
    """

    rounds: int
    idle_seconds: float
    tool_seconds: float


_BURST: Final = 16
"""Chunks after which others get their turn: those that a fast provider sent together come without a pause, and a
stream's first do not wait behind those that run already."""

_CUT: Final[dict[FinishReason, Ending]] = {
    "length": Ending("incomplete", "max_output_tokens"),
    "content_filter": Ending("incomplete", "content_filter"),
    "cancelled": Ending("cancelled"),
}
"""What cuts a turn off, by the finish reason of the round."""


class Turn:
    """Makes one response: feeds what the model streams to the assembler and has its calls answered.

    Args:
        request: what the client asked for.
        items: the history and the input, normalised, references resolved.
        files: the stored files that the items name by id.
        assembler: builds the response; knows the calls of `toolset`.
        outbox: where the events go.
        turnstile: where it and other turns let one another through.
        read_reasoning: what a reasoning item holds for the model.
        gates: what the deltas of a round have to pass, the first one first.
        progress: what has been done of it before.
        after_step: is told, after each round but the last and after each answered call, what has been done by then.

    Attributes:
        accepted: done once the provider has accepted the first request.
    """

    def __init__(
        self,
        request: CreateRequest,
        items: list[Json],
        files: Mapping[str, FileContent],
        *,
        profile: Profile,
        toolset: Toolset,
        assembler: Assembler,
        inference: Inference,
        outbox: Outbox,
        limits: TurnLimits,
        turnstile: Turnstile | None = None,
        read_reasoning: Callable[[Json], Sequence[Thought]] = plain_thoughts,
        gates: Sequence[Gate] = (),
        progress: Progress = NOTHING_DONE,
        after_step: Callable[[Progress], Awaitable[None]] | None = None,
    ) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._request = request
        self._items = items
        self._files = files
        self._profile = profile
        self._toolset = toolset
        self._assembler = assembler
        self._inference = inference
        self._outbox = outbox
        self._limits = limits
        self._turnstile = turnstile or Turnstile()
        self._read_reasoning = read_reasoning
        self._gates = gates
        self._answering = Answering(toolset, assembler, outbox, limits.tool_seconds)
        self._rounds = progress.rounds
        self._said = list(progress.said)
        self._waiting = {call.call_id: call for call in progress.waiting}
        self._ends = progress.ends
        self._output_said = len(assembler.response["output"])
        toolset.hosted_calls = sum(item["type"] == "function_call" and "id" in item for item in progress.said)
        self._after_step = after_step

    async def run(self) -> Ending:
        """Runs rounds until the model has answered or the client has to act.

        Raises:
            ApiError: the provider failed, or what a tool stands on. What was said so far stands open in the assembler.
        """
        try:
            return await self._run()
        finally:
            self._toolset.release()

    async def _run(self) -> Ending:
        await self._prepare()
        if self._waiting:
            await self._answer(again=True)
        elif not self._said:
            await self._make_due_calls()
        while not self._ends and self._rounds < self._limits.rounds:
            left = self._tokens_left()
            if left is not None and left <= 0:
                return Ending("incomplete", "max_output_tokens")
            if cut := _CUT.get(await self._round(left)):
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
                self._accept()
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

    async def _round(self, max_tokens: int | None) -> FinishReason:
        reader = ChunkReader(self._profile, summaries=self._request.reasoning_summary is not None)
        citing = self._toolset.citing()
        try:
            with Watchdog(self._limits.idle_seconds) as watchdog:
                stream = await self._inference.open(self._chat_request(max_tokens))
                self._accept()
                async with hanging_up(stream) as chunks:
                    if end := await self._read(chunks, reader, citing, watchdog):
                        return end
        except ApiError:
            raise
        except Exception as error:
            raise self._inference.explain(error) from error
        if reader.service_tier in SERVICE_TIERS:
            self._assembler.response["service_tier"] = reader.service_tier
        end = await self._pass(_cited(reader.end(), citing))
        assert end, "a round ends with its Finish"
        return end

    async def _read(
        self, chunks: AsyncIterator[Any], reader: ChunkReader, citing: Citing | None, watchdog: Watchdog
    ) -> FinishReason | None:
        """Shows what the provider streams; how the round ended, if one of the gates ended it."""
        read = 0
        async for chunk in chunks:
            watchdog.pat()
            deltas = _cited(reader.read(chunk), citing)
            if self._gates:
                with watchdog.asleep():
                    if end := await self._pass(deltas):
                        return end
            else:
                for delta in deltas:
                    self._outbox.put(self._assembler.feed(delta))
            if self._outbox.full:
                with watchdog.asleep():
                    await self._outbox.drained()
            read += 1
            if read % _BURST == 0:
                await self._turnstile.through()
        return None

    def _accept(self) -> None:
        if not self.accepted.done():
            self.accepted.set_result(None)

    async def _pass(self, deltas: Iterable[Delta]) -> FinishReason | None:
        """Shows what comes of the deltas behind the gates; how the round ended, if it did."""
        for delta in deltas:
            end: FinishReason | None = None
            async for shown in through(self._gates, delta):
                self._outbox.put(self._assembler.feed(shown))
                if isinstance(shown, Finish):
                    end = shown.reason
            if end:
                return end
        return None

    def _chat_request(self, max_tokens: int | None) -> Json:
        messages = chat_messages(
            [*self._items, *self._said],
            self._profile,
            instructions=self._request.instructions,
            files=self._files,
            all_reasoning=self._profile.replayed_reasoning(self._request.reasoning) == "all_turns",
            names=self._toolset.names,
            read_reasoning=self._read_reasoning,
        )
        return chat_request(self._request, self._profile, messages, self._toolset.offer(), max_tokens)

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


def _cited(deltas: list[Delta], citing: Citing | None) -> list[Delta]:
    """The deltas, with the citations that the model wrote into its text."""
    return deltas if citing is None else [shown for delta in deltas for shown in citing.feed(delta)]
