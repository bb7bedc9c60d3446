"""The implementation, as a provider of the host."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.types import Scope

from ..config import ResponsesConfig
from ..core.access import Access, Authenticate
from ..core.errors import ApiError
from ..generation.dependencies import Dependencies
from ..lifecycle.garbage import THRESHOLDS
from ..lifecycle.memory_return import return_memory
from ..sealing.sealer import Sealer
from ..service.responses import OpenAIResponsesImpl
from ..store.records import Records
from ..wire.response_routes import Routed
from .identity import owner_of
from .platform import Api, user_from_scope


class ResponsesProvider(OpenAIResponsesImpl):
    """The implementation with the attributes and methods that the host expects of a provider.

    Args:
        features: have routes beside those of the implementation.
        authenticate: knows the keys of the store, if it has some.
    """

    __provider_id__: str
    """The id of the provider; the host sets it."""
    router: APIRouter | None = None
    """Its routes, once the host has asked for them."""

    def __init__(
        self,
        config: ResponsesConfig,
        records: Records,
        sealer: Sealer,
        dependencies: Dependencies,
        access: Access,
        features: Sequence[Routed] = (),
        authenticate: Authenticate | None = None,
    ) -> None:
        super().__init__(config, records, sealer, dependencies, access)
        self.features, self.authenticate = features, authenticate

    def start(self) -> bool:
        """Start the implementation, and exclude all objects loaded by then from garbage collection.

        They are about 250,000 objects, most of them the host's, that live until the end. A collection of them blocks
        every stream, for up to a second on a busy machine. What loading them has freed, 2 MB, is returned.
        """
        began = super().start()
        if began:
            gc.freeze()
            return_memory()
            if self.config.host_shortcuts:
                gc.set_threshold(*THRESHOLDS)
        return began

    async def health(self) -> dict[str, Any]:
        """Return the health by provider id, as the host's list of providers expects it."""
        return {self.__provider_id__: await super().health()}

    def note_refused(self, error: ApiError, scope: Scope) -> None:
        """Note a request for a response that was refused before the host has set its user."""
        self.refusals.note(error, owner=owner_of(user_from_scope(scope)))

    def appear_in(self, providers: Any) -> None:
        """Register this provider's health with the host's list of providers.

        The list reports the health of the implementations passed to it, but it is created before all but the host's
        own.

        Args:
            providers: the host's implementation of its providers API.
        """
        dependencies = getattr(providers, "deps", None)
        if isinstance(dependencies, dict):
            dependencies[Api.responses] = self
