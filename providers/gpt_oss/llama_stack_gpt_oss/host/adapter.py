"""The provider interface that the host's routers call."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import date
from typing import Any

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from opentelemetry import metrics

from ..checkpoint import local_folder
from ..completions import ChatFold, chat_chunks, fold_text, text_chunks
from ..config import GptOssConfig
from ..engine.config import GenerationDefaults, read_generation_defaults
from ..engine.errors import EngineError
from ..errors import InvalidRequest
from ..grammar_checks import GrammarChecks
from ..process.client import ASKED_AFTER, EngineClient
from ..requests import ParsedRequest, RequestParser
from ..telemetry import EngineTelemetry
from ..vocabulary import Vocabulary, read_vocabulary
from ..word_lengths import prepare_words
from .errors import status_error
from .platform import (
    HealthResponse,
    HealthStatus,
    InferenceProvider,
    Model,
    ModelType,
    OpenAIChatCompletionChunkWithReasoning,
    OpenAIChatCompletionRequestWithExtraBody,
    OpenAIChatCompletionWithReasoning,
    OpenAICompletionRequestWithExtraBody,
    OpenAIEmbeddingsRequestWithExtraBody,
    OpenAIEmbeddingsResponse,
)

_HEALTH_SECONDS = 0.9  # the host's own limit is one second
Json = dict[str, Any]


class GptOssAdapter(InferenceProvider):  # type: ignore[misc]  # the host has no types
    """One gpt-oss model on one device.

    Args:
        config: the provider's configuration.
        health_seconds: time limit for the engine's answer to a health request.
    """

    def __init__(self, config: GptOssConfig, health_seconds: float = _HEALTH_SECONDS) -> None:
        self._config = config
        self._health_seconds = health_seconds
        self._vocabulary: Vocabulary
        self._defaults: GenerationDefaults
        self._parser: RequestParser | None = None
        self._checks = GrammarChecks()
        self._listed: int | None = None  # the context in the last list of models
        self._client: EngineClient
        self.__provider_id__: str  # Set by the host, like the next two.
        self.__provider_spec__: Any
        self.model_store: Any = None

    async def start(self) -> None:
        """Return when the engine loads the weights; raise an error with one sentence if it fails before.

        It goes on loading while the host serves.
        """
        folder = await asyncio.to_thread(local_folder, self._config.checkpoint)
        head = self._config.draft_head
        draft_head = await asyncio.to_thread(local_folder, head) if head else None
        settings = self._config.engine(folder, draft_head)
        self._client = EngineClient(settings, self._config.stall_seconds)
        launching = asyncio.create_task(asyncio.to_thread(self._client.launch))
        try:
            self._vocabulary = await asyncio.to_thread(_vocabulary, self._config.checkpoint)
        finally:
            await launching
        self._defaults = read_generation_defaults(folder)
        EngineTelemetry(metrics.get_meter("llama_stack_gpt_oss"), settings.socket, self._config.model)

    # Requests

    async def openai_chat_completion(
        self, params: OpenAIChatCompletionRequestWithExtraBody
    ) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]:
        """Return a chat completion, or the stream of its chunks once the engine has sent its first token."""
        if params.stream:
            return _each(await _begun(await self._chat(params)), ChatCompletionChunk)
        return ChatCompletion.construct(**await self._whole(params))

    async def openai_chat_completions_with_reasoning(
        self, params: OpenAIChatCompletionRequestWithExtraBody
    ) -> OpenAIChatCompletionWithReasoning | AsyncIterator[OpenAIChatCompletionChunkWithReasoning]:
        """Return the same with the reasoning, as the host's own Responses API requires."""
        if params.stream:
            return _with_reasoning(await _begun(await self._chat(params)))
        whole = await self._whole(params)
        reasoning = whole["choices"][0]["message"].get("reasoning_content")
        return OpenAIChatCompletionWithReasoning(
            completion=ChatCompletion.construct(**whole), reasoning_content=reasoning
        )

    async def openai_completion(
        self, params: OpenAICompletionRequestWithExtraBody
    ) -> Completion | AsyncIterator[Completion]:
        """Return a text completion, or the stream of its chunks."""
        parsed = await self._parse(RequestParser.completion, params, whole=not params.stream)
        chunks = text_chunks(self._client, parsed, self._vocabulary, self._config.model)
        if params.stream:
            return _each(await _begun(chunks), Completion)
        return Completion.construct(**fold_text([chunk async for chunk in _with_statuses(chunks)]))

    async def openai_embeddings(self, params: OpenAIEmbeddingsRequestWithExtraBody) -> OpenAIEmbeddingsResponse:
        """Raise NotImplementedError: gpt-oss has no embeddings."""
        raise NotImplementedError("gpt-oss is not an embedding model.")

    # Models

    async def list_models(self) -> list[Model]:
        """Return the checkpoint's model, with the context of a request once the engine is ready."""
        name, context = self._config.model, self._client.context
        self._listed = context
        return [
            Model(
                identifier=name,
                provider_id=self.__provider_id__,
                provider_resource_id=name,
                model_type=ModelType.llm,
                metadata={"context_length": context} if context else {},
            )
        ]

    async def should_refresh_models(self) -> bool:
        """Return whether the context has become known, or has changed with a restart of the engine."""
        return self._listed != self._client.context

    async def register_model(self, model: Model) -> Model:
        """Accept other names of the model."""
        if model.provider_model_id != self._config.model:
            raise ValueError(f"'{self.__provider_id__}' serves only '{self._config.model}'.")
        return model

    async def unregister_model(self, model_id: str) -> None:
        """Do nothing: names are not stored here."""

    async def health(self) -> HealthResponse:
        """Report whether the engine answers and computes, and while it is starting how far it is."""
        if (starting := self._client.starting()) is not None:
            return HealthResponse(status=HealthStatus.ERROR, message=starting)
        try:
            async with asyncio.timeout(self._health_seconds):
                await self._client.metrics()
        except TimeoutError:
            silent = f"The gpt-oss engine has not answered for {self._health_seconds} seconds"
            return HealthResponse(status=HealthStatus.ERROR, message=self._client.starting() or silent)
        except EngineError as error:
            return HealthResponse(status=HealthStatus.ERROR, message=str(error))
        if (seconds := self._client.stalled_seconds()) > self._config.stall_seconds * ASKED_AFTER:
            stalled = f"The gpt-oss engine has computed nothing for its requests for {seconds:.0f} seconds"
            return HealthResponse(status=HealthStatus.ERROR, message=stalled)
        return HealthResponse(status=HealthStatus.OK)

    async def shutdown(self) -> None:
        """Disconnect from the engine."""
        await self._client.close()

    async def _ready_parser(self) -> RequestParser:
        """Return the parser for the context of the current engine, which may have been restarted with less memory."""
        context = (await self._client.ready()).context
        if self._parser is None or self._parser.context != context:
            self._parser = RequestParser(self._vocabulary, self._defaults, context)
        return self._parser

    async def _parse(self, parse: Any, params: Any, whole: bool) -> ParsedRequest:
        """Parse and render the request in a thread, since long prompts take time, and check its grammar."""
        try:
            parsed: ParsedRequest = await asyncio.to_thread(parse, await self._ready_parser(), params)
            if parsed.grammar:
                await self._checks.check(parsed.grammar)
        except (InvalidRequest, EngineError) as error:
            raise status_error(error) from error
        return parsed.with_usage() if whole else parsed

    async def _chat(self, params: Any) -> AsyncGenerator[Json]:
        def parse(parser: RequestParser, given: Any) -> ParsedRequest:
            return parser.chat(given, date.today())

        parsed = await self._parse(parse, params, whole=not params.stream)
        return chat_chunks(self._client, parsed, self._vocabulary, self._config.model)

    async def _whole(self, params: Any) -> Json:
        fold = ChatFold()
        async for chunk in _with_statuses(await self._chat(params)):
            fold.add(chunk)
        return fold.whole()


def _vocabulary(checkpoint: str) -> Vocabulary:
    """Load the vocabulary and use it once, so that the first request need not wait for it."""
    vocabulary = read_vocabulary(local_folder(checkpoint))
    vocabulary.load()
    prepare_words()
    return vocabulary


async def _begun(chunks: AsyncGenerator[Json]) -> AsyncGenerator[Json]:
    """Wait for the first chunk, so that an error before it is the status of the answer."""
    try:
        first = await anext(chunks)
    except EngineError as error:
        raise status_error(error) from error
    return _with_statuses(chunks, first)


async def _with_statuses(chunks: AsyncGenerator[Json], *begun: Json) -> AsyncGenerator[Json]:
    """Yield the chunks after those that were read already; convert an error of the engine."""
    try:
        for chunk in begun:
            yield chunk
        async for chunk in chunks:
            yield chunk
    except EngineError as error:
        raise status_error(error) from error
    finally:
        await chunks.aclose()


async def _each(chunks: AsyncGenerator[Json], kind: Any) -> AsyncGenerator[Any]:
    """Convert chunks to the `openai` package's objects, without validation."""
    try:
        async for chunk in chunks:
            yield kind.construct(**chunk)
    finally:
        await chunks.aclose()


async def _with_reasoning(chunks: AsyncGenerator[Json]) -> AsyncGenerator[OpenAIChatCompletionChunkWithReasoning]:
    try:
        async for chunk in chunks:
            reasoning = [choice["delta"].get("reasoning_content") for choice in chunk["choices"]]
            yield OpenAIChatCompletionChunkWithReasoning(
                chunk=ChatCompletionChunk.construct(**chunk), reasoning_content=reasoning[0] if reasoning else None
            )
    finally:
        await chunks.aclose()
