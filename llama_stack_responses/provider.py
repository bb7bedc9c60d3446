"""The module that the host imports for `module: llama_stack_responses` in a stack's configuration."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .installed_host import LLAMA_STACK, OGX, wrong_mcp

if wrong := wrong_mcp(OGX if OGX.package in sys.modules else LLAMA_STACK):
    # This check precedes the imports below, which would fail with a less helpful ImportError.
    raise RuntimeError(wrong)


@contextmanager
def _kept_from_collections() -> Iterator[None]:
    """Keep all that is imported by now out of garbage collections, and from those that the imports would cause.

    A collection of all generations visits the host's objects too: that takes a tenth of the CPU time of a start.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
        # Only what came since: each dataclass with slots leaves a class behind.
        gc.collect(0)
        gc.freeze()
    finally:
        if was_enabled:
            gc.enable()


with _kept_from_collections():
    from .host.configuration import RunningStack
    from .host.platform import InlineProviderSpec, RemoteProviderSpec
    from .host.provider_specs import provider_specs
    from .host.replaced_routes import enter_router
    from .host.start_errors import sentence_last
    from .lifecycle.memory_return import keep_one_heap

__all__ = ["get_provider_spec"]

_STACK: Final = RunningStack()

enter_router()
# The host has hardly started threads by now.
keep_one_heap()


def get_provider_spec() -> list[InlineProviderSpec | RemoteProviderSpec]:
    """Return all providers of this package. The host calls this before it builds the first provider.

    Raises:
        WrongConfiguration: settings in the host's configuration are wrong.
    """
    with sentence_last():
        _STACK.check()
    return provider_specs()
