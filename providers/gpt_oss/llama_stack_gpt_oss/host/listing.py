"""The provider's health in the host's list of providers."""

import asyncio
from typing import Any

from .adapter import GptOssAdapter
from .platform import Api, HealthResponse


class EnginesHealth:
    """The health of all inference providers, as the list requests it. It covers only this package's."""

    def __init__(self) -> None:
        self.adapters: list[GptOssAdapter] = []

    @property
    def __provider_spec__(self) -> Any:
        """The specification from which the list reads the API of this answer."""
        return self.adapters[0].__provider_spec__

    async def health(self) -> dict[str, HealthResponse]:
        """Return the health by provider id."""
        answers = await asyncio.gather(*(adapter.health() for adapter in self.adapters))
        return {adapter.__provider_id__: health for adapter, health in zip(self.adapters, answers, strict=True)}


def appear_in(providers: Any, adapter: GptOssAdapter) -> None:
    """Register an adapter's health with the host's list of providers.

    The list queries all implementations that it was given, but it is created before any provider exists.

    Args:
        providers: the host's implementation of its providers API, if it has one.
    """
    asked = getattr(providers, "deps", None)
    if isinstance(asked, dict):
        asked.setdefault(Api.inference, EnginesHealth()).adapters.append(adapter)
