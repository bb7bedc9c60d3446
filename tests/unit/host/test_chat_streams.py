"""The chat streams of the host's providers are read like those of this package's provider."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncGenerator
from typing import Any, Final

import httpx2
import openai
import orjson
import pytest
from llama_stack.providers.utils.inference.openai_mixin import OpenAIMixin
from llama_stack_api import ModelType
from llama_stack_api.inference.models import OpenAIChatCompletionRequestWithExtraBody as ChatRequest
from pydantic import BaseModel, PrivateAttr

from llama_stack_responses.host.chat_streams import ChatStreams

FRAMES: Final = (
    b'data: {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": '
    b'[{"index": 0, "delta": {"role": "assistant", "content": "", "reasoning_content": "hm"}, "finish_reason": null}]}\n\n',
    b": still here\n\n",
    b'data: {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": '
    b'[{"index": 0, "delta": {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": '
    b'{"name": "f", "arguments": "{}"}}]}, "finish_reason": "tool_calls"}]}\n\n',
    b'data: {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], '
    b'"usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}\n\n',
)
DONE: Final = b"data: [DONE]\n\n"
FAILS: Final = b'data: {"error": {"message": "The GPU is gone.", "code": 500}}\n\n'
WHOLE: Final = {
    "id": "c2",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
}


class Body(httpx2.AsyncByteStream):
    """The bytes of a stream, one at a time."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.sent = 0
        self.closed = asyncio.Event()

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        for byte in self._data:
            self.sent += 1
            yield bytes([byte])

    async def aclose(self) -> None:
        self.closed.set()


class Provider(OpenAIMixin):  # type: ignore[misc]  # the host has no types
    """A provider of the host that counts its requests."""

    config: Any = None
    answer: Any = None
    overwrite_completion_id: bool = False
    _requests: int = PrivateAttr(default=0)

    async def openai_chat_completion(self, params: Any) -> Any:
        self._requests += 1
        return await super().openai_chat_completion(params)

    async def _get_provider_model_id(self, model: str) -> str:
        return model

    def get_base_url(self) -> str:
        return "http://model-server/v1"

    def get_api_key(self) -> str:
        return "key"

    def get_extra_client_params(self) -> dict[str, Any]:
        transport = httpx2.MockTransport(lambda _: self.answer)
        return {"http_client": httpx2.AsyncClient(transport=transport), "max_retries": 0}


class LaterProvider(BaseModel):
    """A provider as in OGX, where the client's answers pass through a method of another name."""

    answer: Any

    @property
    def client(self) -> openai.AsyncOpenAI:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(lambda _: self.answer))
        return openai.AsyncOpenAI(api_key="key", base_url="http://model-server/v1", http_client=http, max_retries=0)

    async def openai_chat_completion(self, params: Any) -> Any:
        body = {"model": params.model, "messages": params.messages, "stream": params.stream}
        return await self._postprocess_chunk(await self.client.chat.completions.create(**body), params.stream)

    async def _postprocess_chunk(self, resp: Any, stream: bool | None) -> Any:
        return resp


class _Config:
    """The fields of a provider's configuration that the mixin reads."""

    network = None
    allowed_models = None


def of(answer: httpx2.Response, **more: Any) -> Any:
    return Provider.model_construct(config=_Config(), answer=answer, **more)


def of_later(answer: httpx2.Response) -> Any:
    return LaterProvider.model_construct(answer=answer)


def streamed(body: Body) -> httpx2.Response:
    headers = {"content-type": "text/event-stream", "transfer-encoding": "chunked"}
    return httpx2.Response(200, headers=headers, stream=body)


def request(*, stream: bool = True) -> ChatRequest:
    return ChatRequest.model_construct(model="m", messages=[{"role": "user", "content": "Hi"}], stream=stream)


async def read(provider: Any) -> list[Any]:
    return [chunk.model_dump() async for chunk in await provider.openai_chat_completion(request())]


@pytest.mark.parametrize("end", [DONE, b"", DONE + FRAMES[0]], ids=["done", "cut", "more after the end"])
@pytest.mark.parametrize("host", [of, of_later])
async def test_chunks_equal_those_of_openai_package(monkeypatch: pytest.MonkeyPatch, host: Any, end: bytes) -> None:
    data = b"".join(FRAMES) + end
    theirs = await read(host(streamed(Body(data))))
    body = Body(data)
    monkeypatch.delattr(openai.AsyncStream, "__anext__")
    monkeypatch.delattr(openai.AsyncStream, "__aiter__")
    assert await read(ChatStreams().of(host(streamed(body)))) == theirs
    assert len(theirs) == 3
    assert body.closed.is_set()


@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("rest", [b"", FRAMES[-1][:20]])
async def test_stream_that_may_be_cut_is_an_error_of_the_connection(framed: bool, rest: bytes) -> None:
    answer = streamed(Body(FRAMES[0] + rest))
    if not framed:
        del answer.headers["transfer-encoding"]
    chunks = await ChatStreams().of(of(answer)).openai_chat_completion(request())
    await anext(chunks)
    with pytest.raises(StopAsyncIteration if framed and not rest else openai.APIConnectionError):
        await anext(chunks)


async def test_provider_can_rewrite_chunks() -> None:
    chunks = await read(ChatStreams().of(of(streamed(Body(FRAMES[0])), overwrite_completion_id=True)))
    assert [each["id"].partition("-")[0] for each in chunks] == ["cltsd"]


async def test_error_in_stream_is_raised_as_api_error() -> None:
    chunks = await ChatStreams().of(of(streamed(Body(FRAMES[0] + FAILS)))).openai_chat_completion(request())
    assert (await anext(chunks)).choices[0].delta.reasoning_content == "hm"
    with pytest.raises(openai.APIError, match="GPU") as failed:
        await anext(chunks)
    assert failed.value.request.url.path == "/v1/chat/completions"


async def test_closing_stream_closes_connection() -> None:
    body = Body(b"".join(FRAMES))
    chunks = await ChatStreams().of(of(streamed(body))).openai_chat_completion(request())
    await anext(chunks)
    await chunks.aclose()
    async with asyncio.timeout(60):
        # The host's generator around ours is not closed explicitly; the event loop closes it.
        await body.closed.wait()
    assert body.sent == len(FRAMES[0])


async def test_unstreamed_answer_is_passed_on() -> None:
    answer = await ChatStreams().of(of(httpx2.Response(200, json=WHOLE))).openai_chat_completion(request(stream=False))
    assert answer.choices[0].message.content == "Hi"


async def test_refusal_is_error_of_openai_package() -> None:
    with pytest.raises(openai.RateLimitError):
        await read(ChatStreams().of(of(httpx2.Response(429, json={"error": {"message": "Slowly."}}))))


async def test_provider_keeps_its_state() -> None:
    provider = of(streamed(Body(DONE)))
    streams = ChatStreams()
    await read(streams.of(provider))
    provider.answer = streamed(Body(DONE))
    await read(streams.of(provider))
    assert provider._requests == 2
    assert type(streams.of(provider)) is type(streams.of(provider))


def test_other_providers_stay_unchanged() -> None:
    other = object()
    assert ChatStreams().of(other) is other
    model = ModelType.llm
    assert ChatStreams().of(model) is model


async def test_request_uses_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = ChatStreams().of(of(streamed(Body(b"".join(FRAMES)))))
    monkeypatch.delattr(asyncio, "to_thread")
    assert len(await read(provider)) == 3


class Flood(httpx2.AsyncByteStream):
    """The bytes of an unstreamed answer with an endless text."""

    def __init__(self) -> None:
        self.sent = 0
        self.closed = False

    async def __aiter__(self) -> AsyncGenerator[bytes]:
        yield orjson.dumps(WHOLE).partition(b"Hi")[0]
        for _ in range(160):
            self.sent += 1
            yield b"x" * (1 << 20)

    async def aclose(self) -> None:
        self.closed = True


async def test_endless_unstreamed_answer_is_refused_while_read() -> None:
    flood = Flood()
    provider = of(httpx2.Response(200, stream=flood, headers={"content-type": "application/json"}))
    with pytest.raises(openai.APIConnectionError):
        await ChatStreams().of(provider).openai_chat_completion(request(stream=False))
    assert flood.sent == 64
    assert flood.closed


async def test_compressed_unstreamed_answer_is_refused() -> None:
    body, headers = gzip.compress(orjson.dumps(WHOLE)), {"content-encoding": "gzip"}
    provider = of(httpx2.Response(200, stream=Body(body), headers=headers))
    with pytest.raises((openai.APIConnectionError, httpx2.DecodingError)):
        await ChatStreams().of(provider).openai_chat_completion(request(stream=False))
