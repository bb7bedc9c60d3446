"""The token counting endpoint: counts the tokens of a request's input."""

from __future__ import annotations

from typing import Final

from ..core.errors import bad_request
from ..core.types import Json
from ..generation.factory import GenerationFactory
from ..inputs.history import Hold
from ..inputs.request_parser import RequestParser
from ..inputs.resolver import RequestResolver

NOT_COUNTED: Final = frozenset(
    {
        "background",
        "background_options",
        "guardrails",
        "include",
        "max_output_tokens",
        "metadata",
        "moderation",
        "store",
        "stream",
        "stream_options",
    }
)
"""Fields of a response's request that do not affect its input."""


class TokenCounting:
    """Counts the tokens that a model would read, without asking the model.

    Args:
        factory: builds generations.
        resolver: resolves the history and the input.
        parser: parses the body of a request.
    """

    def __init__(self, factory: GenerationFactory, resolver: RequestResolver, parser: RequestParser) -> None:
        self._factory = factory
        self._resolver = resolver
        self._parser = parser

    async def count(self, body: Json, hold: Hold | None = None) -> Json:
        """Return the count, in the form of `openai.types.responses.InputTokenCountResponse`.

        It comes from the model server's tokenizer, else from that of the model's profile, else from an estimate.

        Args:
            body: the request's decoded JSON.
            hold: called with the number of stored bytes that are about to be held; it may raise.

        Raises:
            ApiError: the request is invalid, or refers to something that does not exist.
        """
        if body.get("personality") is not None:
            message = "Unsupported parameter: 'personality' is not supported by this server."
            raise bad_request(message, "personality", "unsupported_parameter")
        request = await self._parser.parse({name: value for name, value in body.items() if name not in NOT_COUNTED})
        await self._factory.inference.check_model(request.model)
        start = await self._resolver.resolve(request, adds=False, hold=hold)
        context = self._factory.context(start.request, self._factory.begin(start.request), start.owner, start.opened)
        with context.held() as held:
            chat = await context.chat(start.items, held)
            return {"object": "response.input_tokens", "input_tokens": await self._factory.counts.of(chat)}
