"""Lists the models of providers between the host's own refreshes, which are five minutes apart."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

from ..concurrency.tasks import LoopTask
from ..logs import get_logger

logger = get_logger(__name__)

_PAUSES: Final = (2.0, 10.0)
"""Seconds between two looks at providers that list no models: at first, and at most. Each is twice the one before."""
_SPARED_SECONDS: Final = 3.0
"""Seconds after a refresh in which requests for unknown models start no other one."""
_LISTING_SECONDS: Final = 5.0
"""Time limit of one provider's list."""


class ModelRefresh:
    """Asks providers for their models, and registers them with the host.

    A provider whose model server was not there when the stack started is asked until it lists models. All providers are
    asked when a request names a model that the host does not know.

    Args:
        table: the host's routing table of models.
        clock: returns seconds.
    """

    def __init__(self, table: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._table = table
        self._clock = clock
        self._ended = float("-inf")
        self._running: asyncio.Task[None] | None = None
        self._task = LoopTask(self._run)

    def start(self) -> None:
        """Start to ask the providers that list no models, in the running event loop."""
        self._task.start()

    async def close(self) -> None:
        """End the tasks."""
        await self._task.stop()
        if self._running:
            self._running.cancel()

    async def refresh(self) -> bool:
        """Ask all providers for their models; return False if that was done moments ago.

        Requests that come together wait for one refresh. It runs without the user of a request, whose keys and
        permissions do not matter to it.
        """
        if self._running is None or self._running.done():
            if self._clock() - self._ended < _SPARED_SECONDS:
                return False
            self._running = asyncio.create_task(self._refresh_all(), context=Context())
        await asyncio.wait([self._running])
        return True

    async def _refresh_all(self) -> None:
        try:
            await self._ask(list(self._table.impls_by_provider_id))
        finally:
            self._ended = self._clock()

    async def _run(self) -> None:
        pause, longest = _PAUSES
        while True:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
            try:
                listed = {model.provider_id for model in await self._table.get_all_with_type("model")}
                await self._ask([each for each in self._table.impls_by_provider_id if each not in listed])
            except Exception:
                logger.exception("could not list models")

    async def _ask(self, provider_ids: list[str]) -> None:
        """Ask these providers at the same time. One after the other is registered: the host's table has no lock."""
        lists = await asyncio.gather(*map(self._models, provider_ids))
        for provider_id, models in zip(provider_ids, lists, strict=True):
            if models and await self._is_new(provider_id, models):
                await self._table.update_registered_models(provider_id, models)
                logger.info("models of '%s' are listed: %d", provider_id, len(models))

    async def _models(self, provider_id: str) -> list[Any]:
        """Return the models of a provider; none if it does not answer, or is not to be asked again."""
        provider = self._table.impls_by_provider_id[provider_id]
        try:
            async with asyncio.timeout(_LISTING_SECONDS):
                return await provider.list_models() or [] if await provider.should_refresh_models() else []
        except Exception as error:  # noqa: BLE001 - the model server may be down, and the host's own refresh says so
            logger.debug("models of '%s' are not listed: %s", provider_id, error)
            return []

    async def _is_new(self, provider_id: str, models: list[Any]) -> bool:
        """Return whether a list differs from the registered one. The host removes all models before it adds them."""
        registered = await self._table.get_all_with_type("model")
        names = {model.provider_resource_id for model in registered if model.provider_id == provider_id}
        return not {model.provider_resource_id for model in models} <= names
