"""A scripted inference provider in this process.

inference = FakeInference([text("Hel"), gate, text("lo"), finish()])
inference = FakeInference(ApiError(429, "Slow down."))
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from copy import deepcopy
from typing import Any

from openai.types.chat import ChatCompletionChunk

from llama_stack_responses.chat.inference import Extender, ModelServer, Receive
from llama_stack_responses.concurrency.share import Share, current_share
from llama_stack_responses.core.errors import ApiError

type Json = dict[str, Any]
type Step = ChatCompletionChunk | asyncio.Event | Exception
type Round = Sequence[Step] | Exception


def chunk(delta: Json, **choice: Any) -> ChatCompletionChunk:
    """Build a chunk as the `openai` client does."""
    usage, tier = choice.pop("usage", None), choice.pop("service_tier", None)
    choices = [{"index": 0, "delta": delta, **choice}]
    created: ChatCompletionChunk = ChatCompletionChunk.construct(
        id="c", created=1, model="m", object="chat.completion.chunk", choices=choices, usage=usage, service_tier=tier
    )
    return created


def text(value: str) -> ChatCompletionChunk:
    """Return a fragment of the answer."""
    return chunk({"content": value})


def reasoning(value: str) -> ChatCompletionChunk:
    """Return a fragment of reasoning."""
    return chunk({"reasoning_content": value})


def call(name: str, call_id: str, arguments: str = "{}", index: int = 0) -> ChatCompletionChunk:
    """Return a whole tool call."""
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]})


def finish(reason: str = "stop", tokens: int = 0, read: int = 1, **more: Any) -> ChatCompletionChunk:
    """Return the last chunk: the finish reason, and the numbers of tokens that were written and read."""
    return chunk({}, finish_reason=reason, usage={"prompt_tokens": read, "completion_tokens": tokens}, **more)


class FakeInference:
    """Answers each request with its next round, a list of steps: send a chunk, wait for an event, or raise an error.

    A round that is an error refuses the request. Each step, and closing, yields to the event loop.

    Args:
        rounds: the rounds, in order.
        accept: an event that must be set before a request is accepted.
        pushes: returns whether the chunk with this number is pushed, as by `remote::openai-chat`, or only read.
        extends: returns whether a chunk that is pushed is first offered as JSON.

    Attributes:
        extended: number of chunks that were taken as JSON.
        requests: copies of the requests.
        shares: whose work each request was.
        sent: number of chunks read.
        streaming: number of open streams.
        closed: number of ended streams.
        server: the model server of all models.
        length: context length of its models, in tokens.
        count: counts the tokens of a request.
    """

    def __init__(
        self,
        *rounds: Round,
        accept: asyncio.Event | None = None,
        pushes: Callable[[int], bool] = bool,
        extends: Callable[[int], bool] = bool,
    ) -> None:
        self.requests: list[Json] = []
        self.shares: list[Share] = []
        self.length: int | None = None
        self.count: Callable[[Json], int] | None = None
        self.server: ModelServer | None = ModelServer("fake")
        self.sent = 0
        self.streaming = 0
        self.closed = 0
        self._rounds = list(rounds)
        self._accept = accept
        self._pushes = pushes
        self._extends = extends
        self.extended = 0

    async def open_stream(
        self, request: Json, receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Take the next round."""
        self.shares.append(current_share())
        self.requests.append(deepcopy(request))
        await asyncio.sleep(0)
        if self._accept:
            await self._accept.wait()
        this = self._rounds.pop(0)
        if isinstance(this, Exception):
            raise this
        return self._stream(this, receive, extender)

    async def check_model(self, model: str) -> None:
        """Accept every model."""

    async def count_tokens(self, request: Json) -> int | None:
        """Return the result of `count`."""
        return self.count(request) if self.count else None

    async def context_length(self, model: str) -> int | None:
        """Return the configured length."""
        return self.length

    async def server_of(self, model: str) -> ModelServer | None:
        """Return the same server for all models."""
        return self.server

    async def health(self, seconds: float) -> dict[str, bool | None]:
        """Return that of one provider."""
        return {"local": True}

    def to_api_error(self, error: Exception) -> ApiError:
        """Return an error that shows it was explained."""
        return ApiError(502, f"explained: {error}")

    async def _stream(
        self, steps: Sequence[Step], receive: Receive | None, extender: Extender | None
    ) -> AsyncGenerator[Any]:
        self.streaming += 1
        try:
            for step in steps:
                await asyncio.sleep(0)
                if isinstance(step, asyncio.Event):
                    await step.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    self.sent += 1
                    if receive is None or not self._pushes(self.sent):
                        yield step
                    elif extender and self._extends(self.sent) and _extends(extender, step):
                        self.extended += 1
                        if extender.waits:
                            yield ChatCompletionChunk(
                                id="", choices=[], created=0, model="m", object="chat.completion.chunk"
                            )
                    elif not receive(step):
                        yield step
        finally:
            self.streaming -= 1
            self.closed += 1
            await asyncio.sleep(0)


def _extends(extender: Extender, step: ChatCompletionChunk) -> bool:
    text = extender.text_of(step.model_dump(exclude_unset=True, warnings=False))
    return text is not None and extender.extend(text, alone=True)
