"""What the host imports when a stack's configuration says `module: llama_stack_responses`."""

from __future__ import annotations

from .host.routes import enter_router
from .host.spec import get_provider_spec

__all__ = ["get_provider_spec"]

enter_router()
