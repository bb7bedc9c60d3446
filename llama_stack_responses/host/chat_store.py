"""Copies of the host's routers without the inference store, in which the host records every chat completion.

The originals are unchanged, so requests to the host's own routes are still stored.
"""

from __future__ import annotations

import copy
from typing import Any


def unstored(router: Any) -> Any:
    """Return the inference router without its store."""
    if getattr(router, "store", None) is None:
        return router
    router = copy.copy(router)
    router.store = None
    return router


def unstored_guards(router: Any) -> Any:
    """Return the safety router with providers whose model calls are not stored."""
    router, table = copy.copy(router), copy.copy(router.routing_table)
    table.impls_by_provider_id = {name: _unstored_guard(each) for name, each in table.impls_by_provider_id.items()}
    router.routing_table = table
    return router


def _unstored_guard(provider: Any) -> Any:
    if not hasattr(provider, "inference_api"):
        return provider
    provider = copy.copy(provider)
    provider.inference_api = unstored(provider.inference_api)
    return provider
