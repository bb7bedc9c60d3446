"""The host's inference store, in which its router writes down every chat that goes through it.

What is asked of the host's own routes goes on being stored: these are copies.
"""

from __future__ import annotations

import copy
from typing import Any


def unstored(router: Any) -> Any:
    """The inference router without its store."""
    if getattr(router, "store", None) is None:
        return router
    router = copy.copy(router)
    router.store = None
    return router


def unstored_guards(router: Any) -> Any:
    """The safety router with providers that ask their models through an inference router without its store."""
    router, table = copy.copy(router), copy.copy(router.routing_table)
    table.impls_by_provider_id = {name: _guard(each) for name, each in table.impls_by_provider_id.items()}
    router.routing_table = table
    return router


def _guard(provider: Any) -> Any:
    if not hasattr(provider, "inference_api"):
        return provider
    provider = copy.copy(provider)
    provider.inference_api = unstored(provider.inference_api)
    return provider
