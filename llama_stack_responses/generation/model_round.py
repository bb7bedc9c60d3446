"""Model rounds of one generation: sends a chat request and reads the streamed deltas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from typing import Any, Final, NoReturn

from ..chat.adaptation.explanation import explained
from ..chat.adaptation.refusal import RefusedError
from ..chat.answer_end import OutputLimitReached
from ..chat.chunks import ChunkReader
from ..chat.inference import Inference
from ..chat.malformed_calls import written_calls
from ..chat.messages import chat_messages
from ..chat.profile import Profile
from ..chat.request import chat_request
from ..chat.summary import compaction_request
from ..concurrency.fair_yield import FairYield
from ..concurrency.offloading import in_thread
from ..concurrency.waiting_work import Precedence
from ..core.errors import (
    ApiError,
    ConnectionFailedError,
    MalformedCallError,
    TooLongError,
    UnusableAnswerError,
    cut_off,
)
from ..core.types import Json
from ..items.reasoning_segments import ReasoningSegment, plain_reasoning
from ..lifecycle.garbage import NewObjects
from ..requests.request import CreateRequest
from ..stream.assembler import Assembler
from ..stream.deltas import Delta, Finish, Text
from ..stream.usage import Usage
from ..telemetry.instrumentation import RoundOperation
from ..tools.toolset import Toolset
from .chunk_intake import Deltas, Intake, Preparation, Round, Take, nothing_to_prepare
from .context_fit import ContextFit, Make
from .delta_filter import DeltaFilter
from .event_buffer import EventBuffer
from .held_answer import CheckJson, HeldAnswer, UnfitAnswer, are_valid, no_repair
from .held_output import HeldOutput
from .model_server_queues import ModelServerQueues
from .request_adaptation import AdaptedRequest, ModelServers, OwnChanges
from .shared_timer import SharedTimer
from .stream_close import ClosedStream
from .timeline import Timeline
from .watchdog import Watchdog

_DELTAS_PER_BATCH: Final = 8
"""Deltas of a large chunk that are taken before the stream yields to others."""
_PREFILL_TOKENS: Final = 1
_PREFILL_CHARACTERS: Final = 65_536
"""The bound on a prefill's output, for model servers that ignore the maximum of tokens."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """How a round ended.

    Attributes:
        finish: the round's last delta.
        service_tier: the tier that the model server reports to have used, if any.
    """

    finish: Finish
    service_tier: str | None


@dataclass(frozen=True, slots=True)
class Written:
    """A text that the model wrote, and how the round ended."""

    text: str
    finish: Finish


def _raise(error: ApiError, chat: Json) -> NoReturn:
    """Raise an error; a refusal of a chat request with what can be done about it."""
    if isinstance(error, RefusedError):
        raise explained(error, chat) from error
    raise error


def _drop(_: Delta) -> None:
    """Take a delta that nothing needs."""


class ModelRound:
    """Runs the model rounds of one generation.

    Args:
        request: the client's request.
        profile: the model's profile.
        toolset: the request's tools.
        inference: sends the chat requests.
        servers: changes the chat requests as their model servers need it.
        queues: the queues of the model servers.
        check_json: checks answers against schemas that a model server does not enforce.
        context_fit: fits the conversation to the model's context.
        event_buffer: receives the events; while it is full, the stream is not read.
        idle_seconds: timeout for the model server's next data.
        output_bytes: maximum number of characters of the output of all rounds; the round that exceeds it ends there as
            incomplete.
        output: counts that output; a round that has no room for it ends as incomplete too.
        fair_yield: the initial value of the attribute.
        timer: has the timeouts of concurrent streams.
        new_objects: counts what it reads.
        instructions: the instructions before the conversation; None for none.
        read_reasoning: opens a reasoning item for the model.
        filters: the filters of the deltas, in order.
        timeline: the initial value of the attribute.

    Attributes:
        timeline: records the times of the response's rounds and tool calls, and the chat requests.
        accepted: a future that is done once the model server has accepted the first request.
        asked: whether a request was sent to the model server.
        fair_yield: schedules concurrent streams.
    """

    __slots__ = (
        "_check_json",
        "_context_fit",
        "_event_buffer",
        "_filters",
        "_idle_seconds",
        "_inference",
        "_instructions",
        "_left",
        "_max_characters",
        "_new_objects",
        "_output",
        "_own",
        "_profile",
        "_queues",
        "_read_reasoning",
        "_request",
        "_sent",
        "_servers",
        "_timer",
        "_toolset",
        "accepted",
        "asked",
        "fair_yield",
        "timeline",
    )

    def __init__(
        self,
        request: CreateRequest,
        *,
        profile: Profile,
        toolset: Toolset,
        inference: Inference,
        servers: ModelServers,
        queues: ModelServerQueues,
        check_json: CheckJson,
        context_fit: ContextFit,
        event_buffer: EventBuffer,
        idle_seconds: float,
        output_bytes: int,
        output: HeldOutput,
        fair_yield: FairYield,
        timer: SharedTimer,
        new_objects: NewObjects,
        instructions: str | None = None,
        read_reasoning: Callable[[Json], Sequence[ReasoningSegment]] = plain_reasoning,
        filters: Sequence[DeltaFilter] = (),
        timeline: Timeline | None = None,
    ) -> None:
        self.accepted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.asked = False
        self._request, self._profile = request, profile
        self._toolset = toolset
        self._inference = inference
        self._servers, self._queues, self._check_json = servers, queues, check_json
        self._own = OwnChanges()
        self._sent: AdaptedRequest | None = None  # what the model has not begun to answer
        self._context_fit = context_fit
        self._event_buffer, self._idle_seconds = event_buffer, idle_seconds
        self._max_characters = self._left = output_bytes
        self._output = output
        self.fair_yield, self._timer, self._new_objects = fair_yield, timer, new_objects
        self._instructions = instructions
        self._read_reasoning = read_reasoning
        self._filters = filters
        self.timeline = timeline or Timeline()

    async def run(
        self,
        chat: Json,
        take: Take,
        operation: RoundOperation,
        full: Callable[[], bool],
        assembler: Assembler,
        preparation: Preparation = nothing_to_prepare,
    ) -> RoundResult:
        """Run one round.

        Args:
            chat: its request, which `chat` returned.
            take: receives the deltas.
            operation: records the request and the first chunk.
            full: returns whether the response is as large as it may be, checked at intervals; if so, the round ends as
                incomplete.
            assembler: has the text that chunks may extend.
            preparation: returns the work on a large item that a delta may close; it is done in a thread.

        Raises:
            ApiError: the model server failed; `TooLongError` if the request is too long for it, `MalformedCallError` if
                the model has to be asked again. The deltas so far were taken.
        """
        request, spent = await self._servers.prepare(chat, self._own), Usage()
        del chat  # It would be held for as long as the model answers.
        while True:
            round_ = Round(
                ChunkReader(self._profile, self._left, summaries=self._request.reasoning_summary is not None),
                self._toolset.citation_extractor(),
                self._filters,
                take,
                operation,
                full,
                assembler,
                preparation,
                self._output,
                self._max_characters - self._left,
            )
            try:
                return await self._run_round(request, round_, "answer", spent)
            except UnfitAnswer as unfit:
                request.begun()  # The server took the request, whatever the model made of it.
                if not request.repair(unfit.text, unfit.problem):
                    raise no_repair(request.expectation, unfit) from unfit
                spent = unfit.spent

    async def prefill(self, items: Sequence[Json], operation: RoundOperation) -> RoundResult:
        """Have the model server read the prompt of the next round on `items`, so that its prompt cache has it.

        It is asked for one token, the least that a server accepts; what it writes is dropped.

        Args:
            items: the conversation.
            operation: records the request and the first chunk.

        Returns:
            A round that has stopped, with the usage of the prompt alone.

        Raises:
            ApiError: as in `run`.
        """
        reader = ChunkReader(self._profile, _PREFILL_CHARACTERS, only_words=True)
        chat = await self.chat(items, _PREFILL_TOKENS)
        request = await self._servers.prepare(chat, self._own)
        read = await self._run_round(request, Round(reader, None, (), _drop, operation, lambda: False))
        used = replace(read.finish.usage, output_tokens=0, reasoning_tokens=0)
        return RoundResult(Finish("stop", used), read.service_tier)

    async def summarise(
        self, items: Sequence[Json], max_tokens: int | None, begun: Callable[[], None], operation: RoundOperation
    ) -> Written:
        """Have the model write a summary of a conversation; the client does not see its text.

        The oldest turns are left out if the conversation is too long for the model.

        Args:
            items: the conversation.
            max_tokens: maximum number of tokens of the summary; None for no bound.
            begun: called when the first text arrives.
            operation: records the request and the first chunk.

        Raises:
            ApiError: the model server failed, or the model wrote nothing.
        """
        while True:
            bound = self._context_fit.answer_tokens(max_tokens)
            chat = await self._context_fit.fit(items, self._auto_compaction(bound), bound, to_answer=False)
            try:
                return await self._written(chat, begun, operation)
            except TooLongError as refusal:
                fit = self._context_fit
                if not (fit.shorten_answer(refusal, max_tokens) or await fit.shorten(refusal)):
                    raise

    async def passes(self, items: Sequence[Json], threshold: int | None, max_tokens: int | None) -> bool:
        """Return whether a request with these items has more tokens than the threshold or than the context allows."""
        room = await self._context_fit.room(max_tokens)
        bounds = [bound for bound in (threshold, room) if bound is not None]
        return bool(bounds) and await self._context_fit.exceeds(items, await self._chatting(max_tokens), min(bounds))

    async def chat(self, items: Sequence[Json], max_tokens: int | None) -> Json:
        """Return the chat request of the next round on `items`; with `truncation: auto`, it is cut to the context."""
        max_tokens = self._context_fit.answer_tokens(max_tokens)
        make = await self._chatting(max_tokens)
        if self._request.truncation == "auto":
            return await self._context_fit.fit(items, make, max_tokens)
        return await self._context_fit.whole(items, make)

    def shorten_answer(self, refusal: TooLongError, max_tokens: int | None) -> bool:
        """Return whether a request that was refused as too long may be sent again with a lower bound on its answer."""
        return self._context_fit.shorten_answer(refusal, max_tokens)

    async def shorten(self, refusal: TooLongError, *, otherwise: bool) -> bool:
        """Return whether a request that was refused as too long may be sent again, shorter.

        Args:
            refusal: the model server's error.
            otherwise: whether the caller will shorten the conversation itself.
        """
        shorter = await self._context_fit.shorten(refusal)
        return otherwise or (shorter and self._request.truncation == "auto")

    def accept(self) -> None:
        """Mark the first request as accepted."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def note_output(self) -> None:
        """Note that the model has written something: its request will not be sent again."""
        if self._sent is not None:
            self._sent.begun()
            self._sent = None
            self._context_fit.drop_request()

    async def _run_round(
        self, request: AdaptedRequest, round_: Round, kind: str = "answer", spent: Usage | None = None
    ) -> RoundResult:
        """Run a round. A request that fails before any output is changed if that may help, and sent again.

        Args:
            request: its request.
            round_: processes the chunks.
            kind: as for the timeline.
            spent: the tokens of answers that were dropped; None if the answer is not checked.

        Raises:
            UnfitAnswer: the answer lacks what the request demands.
        """
        self._sent, round_.operation.provider = request, request.provider
        async with self._queues.slot(self._precedence, round_.operation):
            return await self._until_taken(request, round_, kind, spent)

    async def _until_taken(self, request: AdaptedRequest, round_: Round, kind: str, spent: Usage | None) -> RoundResult:
        """Send a request, changed as each refusal asks; arguments and errors as above."""
        while True:
            assert request.chat is not None
            checked = round_
            if spent is not None and request.expectation:
                held = HeldAnswer(request.expectation, self._check_json, spent)
                checked = replace(round_, filters=(held, *round_.filters))
            try:
                result = await self._send(request.chat, checked, kind)
            except ApiError as error:
                if round_.reader.characters or round_.reader.is_finished or request.chat is None:
                    raise
                if not await request.recover(error):
                    _raise(error, request.chat)
            else:
                request.begun()
                if request.applied and round_.assembler:
                    request.tell(round_.assembler.response)
                    self.timeline.adapted(map(str, request.applied))
                return result

    @property
    def _precedence(self) -> Precedence:
        urgent = self._request.service_tier == "priority"
        if self._request.background:
            return Precedence.SOON if urgent else Precedence.LATER
        if self.accepted.done():
            return Precedence.BEGUN
        return Precedence.URGENT if urgent else Precedence.NEW

    async def _send(self, chat: Json, round_: Round, kind: str) -> RoundResult:
        self.asked = True
        tools = chat.get("tools") or []
        round_.operation.set_request(chat)
        await self.timeline.requested(chat, kind)
        try:
            with Watchdog(self._idle_seconds, self._timer) as watchdog:
                intake = Intake(round_, watchdog, self._event_buffer)
                stream = await self._inference.open_stream(chat, intake.take, intake)
                del chat  # It would be held for as long as the model answers.
                self.accept()
                end = await self._read(stream, round_, intake, watchdog)
        except OutputLimitReached:
            end = None
        except Exception as error:  # noqa: BLE001 - raised again as an error of the API
            await self._rescue(error, round_, tools)
            end = None
        finally:
            self._left -= round_.reader.characters
            round_.operation.extensions = round_.reader.extensions
        if end is None:
            rest = round_.reader.end()
            await self._context_fit.check_room(rest, round_.reader.characters)
            end = await round_.filter_and_take(round_.extract_citations(rest))
        assert end, "a round ends with its Finish"
        self._context_fit.note_usage(end.usage)
        return RoundResult(end, round_.reader.service_tier)

    async def _rescue(self, error: Exception, round_: Round, tools: Sequence[Json]) -> None:
        """Return if the answer is whole although its stream has failed.

        Raises:
            ApiError: it is not.
        """
        if isinstance(error, UnusableAnswerError):
            self.accept()  # The model has answered, even if its server passed nothing on.
        # The model server had begun to answer if this is no `ApiError`: `open_stream` raises nothing else.
        failure = error if isinstance(error, ApiError) else cut_off(self._inference.to_api_error(error))
        if isinstance(failure, ConnectionFailedError) and failure is not error and round_.reader.is_finished:
            return  # The connection broke behind the answer.
        if isinstance(failure, MalformedCallError) and failure.of_stream and round_.reader.has_whole_calls:
            return  # The server read the calls, but not what the model wrote behind them, such as its last bracket.
        if isinstance(failure, MalformedCallError) and failure.refusal and not tools:
            failure = failure.refusal
        if isinstance(failure, MalformedCallError) and not round_.reader.has_calls:
            calls = await in_thread(written_calls, failure.written)
            if calls and await are_valid(calls, tools, self._check_json):
                await round_.filter_and_take(round_.reader.end_with(calls))
                return
        if failure is error:
            raise error
        raise failure from error

    async def _read(
        self, stream: AsyncGenerator[Any], round_: Round, intake: Intake, watchdog: Watchdog
    ) -> Finish | None:
        """Do what the intake cannot do without waiting; return how the round ended, if it ended before the stream."""
        closing = ClosedStream(stream)
        async with closing as chunks:
            with intake:
                async for chunk in chunks:
                    self._new_objects.note_read()
                    intake.take_unless_pushed(chunk)
                    if intake.deltas:
                        if end := await self._take_in_batches(round_, watchdog, intake.deltas):
                            return end
                        intake.count_taken(chunk)
                    if intake.end:
                        return intake.end
                    if self._event_buffer.full:
                        with watchdog.paused():
                            await self._event_buffer.drained()
                    if intake.waits:
                        await self.fair_yield.wait_turn()
                        intake.begin_burst()
                    del chunk  # It would be held while others are pushed.
                closing.has_ended = True
        return None

    async def _take_in_batches(self, round_: Round, watchdog: Watchdog, deltas: Deltas) -> Finish | None:
        """Take deltas through the filters, or those of a large chunk; yield to other streams in between.

        This time does not count as silence of the model server.
        """
        with watchdog.paused():
            for number, some in enumerate(batched(deltas, _DELTAS_PER_BATCH)):
                if number:
                    await self._yield(round_)
                if end := await round_.filter_and_take(some) if round_.filters else await round_.prepare_and_take(some):
                    return end
        return None

    async def _yield(self, round_: Round) -> None:
        """Yield to other streams within a large chunk.

        Raises:
            OutputLimitReached: the response is full.
        """
        round_.reader.check_size()
        if round_.full():
            raise round_.reader.cut()
        await self._event_buffer.drained()
        await self.fair_yield.wait_turn()

    async def _written(self, chat: Json, begun: Callable[[], None], operation: RoundOperation) -> Written:
        texts: list[str] = []

        def take(delta: Delta) -> None:
            if isinstance(delta, Text):
                if not texts:
                    begun()
                texts.append(delta.text)

        reader = ChunkReader(self._profile, self._left, only_words=True)
        request, round_ = (
            await self._servers.prepare(chat, self._own),
            Round(reader, None, (), take, operation, lambda: False),
        )
        finish = (await self._run_round(request, round_, "compaction")).finish
        text = "".join(texts).strip()
        if not text or finish.reason == "content_filter":
            raise UnusableAnswerError(
                f"The model wrote no summary of the conversation: its finish reason is '{finish.reason}'."
            )
        return Written(text, finish)

    async def _chatting(self, max_tokens: int | None) -> Make:
        await self._toolset.refresh()
        offer = self._toolset.offer()
        return lambda items: chat_request(self._request, self._profile, self._messages(items), offer, max_tokens)

    def _auto_compaction(self, max_tokens: int | None) -> Make:
        return lambda items: compaction_request(self._request, self._profile, self._messages(items), max_tokens)

    def _messages(self, items: Sequence[Json]) -> list[Json]:
        return chat_messages(
            items,
            self._profile,
            instructions=self._instructions,
            all_reasoning=self._profile.replayed_reasoning(self._request.reasoning) == "all_turns",
            signed_reasoning=(self._request.reasoning or {}).get("context") != "current_turn",
            names=self._toolset.names,
            read_reasoning=self._read_reasoning,
        )
