"""The only folder that imports the host: llama-stack, or OGX, which it became."""

from typing import Any

from llama_stack_gpt_oss.config import GptOssConfig

from .adapter import GptOssAdapter
from .listing import appear_in
from .platform import Api

__all__ = ["get_provider_impl"]


async def get_provider_impl(config: GptOssConfig, deps: dict[Any, Any]) -> GptOssAdapter:
    """Builds the provider and waits for its engine: a checkpoint that cannot be served stops the stack at its start.

    The host calls this in an event loop that does not serve requests.
    """
    adapter = GptOssAdapter(config)
    await adapter.start()
    appear_in(deps.get(Api.providers), adapter)
    return adapter
