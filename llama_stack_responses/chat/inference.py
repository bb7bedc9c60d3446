"""What the loop needs of an inference provider."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from llama_stack_responses.core.errors import ApiError


class Inference(Protocol):
    """Runs chat completions on whatever provider the model's name leads to."""

    async def open(self, request: dict[str, Any]) -> AsyncGenerator[Any]:
        """Sends a chat request and returns its chunks once the provider has accepted it.

        A chunk has the attributes of `openai.types.chat.ChatCompletionChunk`. A task that is
        cancelled while it waits for the next one ends the generation. An answer that was asked for
        unstreamed is one chunk.

        Raises:
            ApiError: the provider refused the request or could not be reached; `TooLongError` if it is too long for the
                model.
        """
        ...

    async def check_model(self, model: str) -> None:
        """Refuses a model of which is known, without asking anybody, that there is none; others may not exist either.

        Raises:
            ApiError: 404.
        """
        ...

    async def count_tokens(self, request: dict[str, Any]) -> int | None:
        """The tokens that a chat request's prompt has, by the model server's own tokenizer; None if it has no say."""
        ...

    async def context_length(self, model: str) -> int | None:
        """The tokens that the model's context has, as far as the host knows."""
        ...

    def explain(self, error: Exception) -> ApiError:
        """What to tell the client about an error that the chunks raised."""
        ...
