"""The only folder that imports the host: llama-stack, or its successor OGX."""

from typing import Any

from ..config import GptOssConfig
from .adapter import GptOssAdapter
from .listing import appear_in
from .platform import Api

__all__ = ["get_provider_impl"]


async def get_provider_impl(config: GptOssConfig, deps: dict[Any, Any]) -> GptOssAdapter:
    """Build the provider and wait until its engine loads, so that a broken checkpoint stops the stack at startup.

    The host calls this in an event loop that does not serve requests, and ends before the engine is ready.
    """
    adapter = GptOssAdapter(config)
    await adapter.start()
    appear_in(deps.get(Api.providers), adapter)
    return adapter
