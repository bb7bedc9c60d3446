"""The implementation as the host holds it."""

from __future__ import annotations

import gc
import sys
from typing import Any, Final

from llama_stack_responses.impl import OpenAIResponsesImpl

from .platform import Api

_SWITCH_SECONDS: Final = 0.0005
"""How long the event loop may keep a thread waiting that wants to run, a store's or the host's: each answer of theirs
takes several such waits, and Python's own bound is ten times that."""


class ProvidedResponses(OpenAIResponsesImpl):
    """The same, and known to the host by an id."""

    __provider_id__: str
    """The host sets it."""

    def start(self) -> bool:
        """As ever; the process is then one that serves.

        What is loaded by then, most of it the host's, is no longer looked at for garbage: a quarter of a million
        objects that stay to the end. To look at all of them holds every stream, for up to a second on a busy machine.
        """
        began = super().start()
        if began:
            gc.freeze()
            sys.setswitchinterval(_SWITCH_SECONDS)
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
