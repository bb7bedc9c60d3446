"""The health of the provider in the host's list of providers."""

import asyncio
from typing import Any

from .adapter import GptOssAdapter
from .platform import Api, HealthResponse


class EnginesHealth:
    """What the list asks for the health of all inference providers, and hears of those that are ours."""

    def __init__(self) -> None:
        self.adapters: list[GptOssAdapter] = []

    @property
    def __provider_spec__(self) -> Any:
        """The list reads from it which API the answer is about."""
        return self.adapters[0].__provider_spec__

    async def health(self) -> dict[str, HealthResponse]:
        """By the providers' ids."""
        found = await asyncio.gather(*(adapter.health() for adapter in self.adapters))
        return {adapter.__provider_id__: health for adapter, health in zip(self.adapters, found, strict=True)}


def appear_in(providers: Any, adapter: GptOssAdapter) -> None:
    """Has the host's list of providers ask for the health of an adapter.

    The list asks all implementations that it was given; but it is made before there are any but the host's own.

    Args:
        providers: the host's implementation of its providers API, if it has one.
    """
    asked = getattr(providers, "deps", None)
    if isinstance(asked, dict):
        asked.setdefault(Api.inference, EnginesHealth()).adapters.append(adapter)
