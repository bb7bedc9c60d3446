"""The implementation as the host holds it."""

from __future__ import annotations

import gc
from typing import Any

from llama_stack_responses.service.responses import OpenAIResponsesImpl

from .platform import Api


class ProvidedResponses(OpenAIResponsesImpl):
    """The same, and known to the host by an id."""

    __provider_id__: str
    """The host sets it."""

    def start(self) -> bool:
        """As ever; what is loaded by then, most of it the host's, is no longer looked at for garbage.

        It is a quarter of a million objects that stay to the end. To look at all of them holds every stream, for up to
        a second on a busy machine.
        """
        began = super().start()
        if began:
            gc.freeze()
        return began

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
