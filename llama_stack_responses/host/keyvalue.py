"""The stack's own key-value backends, by the names that its configuration gives them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .platform import KVStoreReference, kvstore_impl


def backend(name: str) -> Callable[[], Awaitable[Any]]:
    """How to connect to the backend called `name`."""

    async def connect() -> Any:
        # Without a namespace, since not all backends keep to it.
        opened = await kvstore_impl(KVStoreReference(backend=name, namespace=""))
        # The host keeps what it opened, also what was shut down since, or belongs to another event loop.
        await opened.initialize()
        return opened

    return connect
