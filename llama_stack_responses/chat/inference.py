"""The interface of inference providers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.errors import ApiError

type Receive = Callable[[Any], bool]
"""Takes a chunk as soon as it has arrived; returns False to have it read, and nothing passed on until it was read."""


class Extender(Protocol):
    """Takes chunks that only extend the text of the last one, without an object for the chunk."""

    @property
    def waits(self) -> bool:
        """Whether nothing may be taken for now, after `extend` has returned True.

        Then a chunk without choices is read, and nothing is passed on until that was done.
        """
        ...

    def text_of(self, value: Any) -> str | None:
        """Return the text in the JSON of a chunk that only extends the last one; None for any other chunk."""
        ...

    def extend(self, text: str, *, alone: bool) -> bool:
        """Take the text of such a chunk; return False to have the chunk built and passed to `Receive`.

        Of a chunk that repeats the last one with another text, it is called without `text_of`; after a chunk that was
        passed to `Receive`, it returns False until `text_of` was called.

        Args:
            text: the text.
            alone: whether the chunk has arrived without others, so that waiting for more is of no use.
        """
        ...


@dataclass(frozen=True, slots=True)
class ModelServer:
    """The model server of a model, as the stack's configuration has it.

    Attributes:
        provider: the id of the inference provider.
        kind: the type of the provider, such as `remote::vllm`.
        address: the host and port of its URL, such as `api.example.com:443`; empty if it has none.
        version: a digest of the provider's configuration, without its secrets.
    """

    provider: str
    kind: str = ""
    address: str = ""
    version: str = ""


class Inference(Protocol):
    """Runs chat completions on the provider of the named model."""

    async def open_stream(
        self, request: dict[str, Any], receive: Receive | None = None, extender: Extender | None = None
    ) -> AsyncGenerator[Any]:
        """Send a chat request, and return its chunks once the provider has accepted it.

        A chunk has the attributes of `openai.types.chat.ChatCompletionChunk`. Cancelling a task that waits for the next
        chunk ends the generation. An answer that was requested without streaming is one chunk.

        While a task waits for the next chunk, a provider may pass chunks to `receive`, in the call that received them
        from the model server. It then returns those for which `receive` returned False, and those it did not pass on.
        It may ask `extender` first, and then need not build the chunks that it takes.

        Raises:
            ApiError: the provider was unreachable; `RefusedError` if it refused the request, `TooLongError` if the
                request is too long for the model.
        """
        ...

    async def check_model(self, model: str) -> None:
        """Refuse a model that is known not to exist, without a request to a server; other models may not exist either.

        Raises:
            ApiError: 404.
        """
        ...

    async def count_tokens(self, request: dict[str, Any]) -> int | None:
        """Return the prompt tokens of a chat request by the model server's tokenizer; None if it cannot count."""
        ...

    async def context_length(self, model: str) -> int | None:
        """Return the model's context in tokens, if the host knows it."""
        ...

    async def server_of(self, model: str) -> ModelServer | None:
        """Return the model server of a model; None if it is unknown."""
        ...

    async def health(self, seconds: float, /) -> Mapping[str, bool | None]:
        """Return by provider whether its model server answers within so many seconds; None if it does not report it."""
        ...

    def to_api_error(self, error: Exception) -> ApiError:
        """Return the client's error for an exception that the chunks raised."""
        ...
