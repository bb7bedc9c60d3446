"""The stack's own key-value backends, by their configured names."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .platform import KVStoreReference, kvstore_impl


def backend(name: str) -> Callable[[], Awaitable[Any]]:
    """Return a function that connects to the backend called `name`."""

    async def connect() -> Any:
        # No namespace, because not all backends respect it.
        opened = await kvstore_impl(KVStoreReference(backend=name, namespace=""))
        # The host caches opened backends, even after a shutdown or for another event loop, so initialize it again.
        await opened.initialize()
        return opened

    return connect
