"""What the host imports when a stack's configuration says `module: llama_stack_responses`."""

from __future__ import annotations

import sys

from .installed import LLAMA_STACK, OGX, wrong_mcp

if wrong := wrong_mcp(OGX if OGX.package in sys.modules else LLAMA_STACK):
    # Before anything is imported that would fail with a sentence about names.
    raise RuntimeError(wrong)

from .host.routes import enter_router
from .host.spec import get_provider_spec

__all__ = ["get_provider_spec"]

enter_router()
