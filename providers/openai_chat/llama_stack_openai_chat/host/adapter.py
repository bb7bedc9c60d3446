"""The provider interface that the host's routers call."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from ..chunks import chat_chunk, whole
from ..config import OWN_KEY, OpenAIChatConfig
from ..errors import why_unlisted
from ..json_encoding import loads
from ..pool import Pool
from ..ranking import best_first, ranking_body
from ..request_body import request_body
from ..tokens import count_tokens
from ..upstream import VECTORS_BYTES, Upstream
from .platform import (
    PROVIDER_DATA_VAR,
    HealthResponse,
    HealthStatus,
    InferenceProvider,
    Model,
    ModelType,
    NeedsRequestProviderData,
    OpenAIChatCompletionChunkWithReasoning,
    OpenAIChatCompletionRequestWithExtraBody,
    OpenAICompletionRequestWithExtraBody,
    OpenAIEmbeddingsRequestWithExtraBody,
    OpenAIEmbeddingsResponse,
    RerankRequest,
    RerankResponse,
    UnsupportedModelError,
)

logger = logging.getLogger(__name__)

_CHAT: Final = "/chat/completions"
_REASONING: Final = ("reasoning_content", "reasoning", "reasoning_text")
"""Members of a delta that may have the text of the reasoning."""
_ASKS_FOR_KEY: Final = "The model server requires a key, and the configuration has none: users have to send their own."


class OpenAIChatAdapter(NeedsRequestProviderData, InferenceProvider):  # type: ignore[misc]  # the host has no types
    """One OpenAI-compatible model server.

    Requests are forwarded with all their fields, and answers are the `openai` package's objects, as from the host's own
    providers.

    Args:
        config: the provider's configuration.
    """

    provider_data_api_key_field = OWN_KEY
    """OGX stores a user's `{provider_id}_api_key` under this name."""

    def __init__(self, config: OpenAIChatConfig) -> None:
        self._config = config
        self._upstream = Upstream(config, Pool(config))
        self._listed: dict[str, int | None] | None = None  # the list last returned for the configured key
        self._warned: str | None = None
        self.__provider_id__: str  # Set by the host, like `model_store`.
        self.model_store: Any = None

    # Requests

    async def openai_chat_completion(
        self, params: OpenAIChatCompletionRequestWithExtraBody
    ) -> ChatCompletion | AsyncIterator[ChatCompletionChunk]:
        """Return a chat completion, or the stream of its chunks once the server has accepted the request."""
        body, key = await self._body(params), self._own_key()
        if params.stream:
            return await self._upstream.open_stream(_CHAT, body, chat_chunk, key)
        answer: ChatCompletion = await self._upstream.post(_CHAT, body, key, partial(whole, ChatCompletion))
        return answer

    async def openai_chat_completions_with_reasoning(
        self, params: OpenAIChatCompletionRequestWithExtraBody
    ) -> AsyncIterator[OpenAIChatCompletionChunkWithReasoning]:
        """Return the same stream with the reasoning of each chunk, as the host's own Responses API requires."""
        if not params.stream:
            raise NotImplementedError("Reasoning is separated in streams only.")
        return _with_reasoning(
            await self._upstream.open_stream(_CHAT, await self._body(params), chat_chunk, self._own_key())
        )

    async def count_chat_tokens(self, params: OpenAIChatCompletionRequestWithExtraBody) -> int | None:
        """Count the tokens of a chat request's prompt; None if the server has no tokenizer endpoint."""
        return await count_tokens(self._upstream, loads(await self._body(params)), self._own_key())

    async def openai_completion(
        self, params: OpenAICompletionRequestWithExtraBody
    ) -> Completion | AsyncIterator[Completion]:
        """Return a text completion, or the stream of its chunks."""
        body, key = await self._body(params), self._own_key()
        if params.stream:
            return await self._upstream.open_stream("/completions", body, _piece, key)
        answer: Completion = await self._upstream.post("/completions", body, key, partial(whole, Completion))
        return answer

    async def openai_embeddings(self, params: OpenAIEmbeddingsRequestWithExtraBody) -> OpenAIEmbeddingsResponse:
        """Return the embeddings of texts."""
        build = OpenAIEmbeddingsResponse.model_validate
        return await self._upstream.post("/embeddings", await self._body(params), self._own_key(), build, VECTORS_BYTES)

    async def rerank(self, request: RerankRequest) -> RerankResponse:
        """Rank documents by their relevance to a query."""
        self._check_allowed(request.model)
        body = ranking_body(request.model, request.query, request.items, request.max_num_results)
        return await self._upstream.post(
            "/rerank", body, self._own_key(), lambda answer: RerankResponse(data=best_first(answer))
        )

    # Models

    async def list_models(self) -> list[Model]:
        """List the models that the server has and the configuration allows.

        The list is empty until the server has answered once in this run: the host's stored models of an earlier run may
        be those of another server.
        """
        allowed = self._config.allowed_models
        key = self._own_key()
        try:
            lengths = await self._upstream.models(key)
        except (openai.APIError, ValueError) as error:
            if key is not None or self._listed is not None:
                raise
            self._warn(why_unlisted(error))
            return []
        if key is None:
            self._listed = lengths
        return [self._model(name, length) for name, length in lengths.items() if allowed is None or name in allowed]

    def _warn(self, why: str) -> None:
        """Log why no models are listed, once for each reason: the server is asked again and again."""
        if why != self._warned:
            logger.warning("no models of a provider are listed: '%s'. %s", self.__provider_id__, why)
        self._warned = why

    async def should_refresh_models(self) -> bool:
        """Return whether the host should list the models again.

        A refresh is requested only after a change, because the host removes all models first, and a request at that
        moment finds none. It is also requested if the server does not answer, since the refresh then logs the reason.
        """
        if not self._config.refresh_models:
            return False
        if self._listed is None:
            return True
        try:
            return await self._upstream.models() != self._listed
        except (openai.APIError, ValueError):
            return True

    async def register_model(self, model: Model) -> Model:
        """Accept a model that the configuration or a client names. Without `model_validation`, it is not checked."""
        if model.model_validation and model.provider_model_id not in await self._upstream.models(self._own_key()):
            raise ValueError(f"The model server of '{self.__provider_id__}' has no model '{model.provider_model_id}'.")
        return model

    async def unregister_model(self, model_id: str) -> None:
        """Do nothing: models are not stored here."""

    async def health(self) -> HealthResponse:
        """Report whether the server answers with its models.

        Where only users have keys, it may ask for one: then nothing can be said without a user.
        """
        try:
            await self._upstream.models()
        except (openai.APIError, ValueError) as error:
            if self._config.api_key is None and isinstance(error, openai.AuthenticationError):
                return HealthResponse(status=HealthStatus.NOT_IMPLEMENTED, message=_ASKS_FOR_KEY)
            return HealthResponse(status=HealthStatus.ERROR, message=f"Health check failed: {error}")
        return HealthResponse(status=HealthStatus.OK)

    async def shutdown(self) -> None:
        """Close the connections."""
        await self._upstream.close()

    def _model(self, name: str, context_length: int | None) -> Model:
        dimension = self._config.embedding_models.get(name)
        kind = ModelType.llm
        if dimension is not None or "embed" in name.lower():
            kind = ModelType.embedding
        elif "rerank" in name.lower():
            kind = ModelType.rerank
        known = {"embedding_dimension": dimension, "context_length": context_length}
        return Model(
            identifier=name,
            provider_id=self.__provider_id__,
            provider_resource_id=name,
            model_type=kind,
            metadata={name: number for name, number in known.items() if number is not None},
        )

    async def _body(self, params: Any) -> bytes | bytearray:
        self._check_allowed(params.model)
        return await request_body(params, self._config.extra_body)

    def _check_allowed(self, model: str) -> None:
        allowed = self._config.allowed_models
        if allowed is not None and model not in allowed:
            raise UnsupportedModelError(model, allowed)

    def _own_key(self) -> str | None:
        """Return the key that the user sent for this provider."""
        brought = PROVIDER_DATA_VAR.get()
        if not brought:
            return None
        own = brought.get(OWN_KEY) or brought.get(f"{self.__provider_id__}_api_key")
        return str(own) if own else None


def _piece(raw: Any) -> Completion:
    return Completion.construct(**raw)


async def _with_reasoning(
    chunks: AsyncIterator[ChatCompletionChunk],
) -> AsyncIterator[OpenAIChatCompletionChunkWithReasoning]:
    async for chunk in chunks:
        reasoning = [
            next(filter(None, (getattr(choice.delta, name, None) for name in _REASONING)), None)
            for choice in chunk.choices
        ]
        yield OpenAIChatCompletionChunkWithReasoning(
            chunk=chunk, reasoning_content=reasoning[-1] if reasoning else None
        )
