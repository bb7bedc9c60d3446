"""The module that the host imports for `module: llama_stack_responses` in a stack's configuration."""

from __future__ import annotations

import sys

from .installed_host import LLAMA_STACK, OGX, wrong_mcp

if wrong := wrong_mcp(OGX if OGX.package in sys.modules else LLAMA_STACK):
    # This check precedes the imports below, which would fail with a less helpful ImportError.
    raise RuntimeError(wrong)

from .host.provider_specs import get_provider_spec
from .host.replaced_routes import enter_router

__all__ = ["get_provider_spec"]

enter_router()
