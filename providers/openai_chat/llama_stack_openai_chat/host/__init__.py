"""The only folder that imports the host: llama-stack, or its successor OGX."""

from __future__ import annotations

from typing import Any

from ..config import OpenAIChatConfig
from .adapter import OpenAIChatAdapter

__all__ = ["get_adapter_impl"]


async def get_adapter_impl(config: OpenAIChatConfig, _deps: dict[Any, Any]) -> OpenAIChatAdapter:
    """Build the provider. The host calls this in an event loop that does not serve requests."""
    return OpenAIChatAdapter(config)
