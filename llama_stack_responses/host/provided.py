"""The implementation as the host holds it."""

from __future__ import annotations

from typing import Any

from llama_stack_responses.impl import OpenAIResponsesImpl

from .platform import Api


class ProvidedResponses(OpenAIResponsesImpl):
    """The same, and known to the host by an id."""

    __provider_id__: str
    """The host sets it."""

    async def health(self) -> dict[str, Any]:
        """Whether all is well, by the provider's id, under which the host's list of providers looks for it."""
        return {self.__provider_id__: await super().health()}

    def appear_in(self, providers: Any) -> None:
        """Has the host's list of providers ask for the health of this one.

        It asks all implementations that it was given; but it is made before there are any but the host's own.

        Args:
            providers: the host's implementation of its providers API.
        """
        asked = getattr(providers, "deps", None)
        if isinstance(asked, dict):
            asked[Api.responses] = self
