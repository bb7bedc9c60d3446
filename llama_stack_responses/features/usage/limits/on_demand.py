"""The limits of a stack. What enforces them is imported and runs only where there are some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ....core.owner import Owner
from ....core.types import Json
from ....feature import CreateRequest, Ended, Permit, PlainRequest, Stack
from ....generation.owner_names import name_owner
from ....store.records import Op
from ..settings import Usage

if TYPE_CHECKING:
    from .limiter import Limiter
    from .recount import Recount


@dataclass(frozen=True, slots=True)
class _Unlimited:
    """The permit of a request without limits.

    Attributes:
        counts: whether what it uses is counted.
    """

    counts: bool

    @property
    def headers(self) -> Mapping[str, str]:
        """No headers."""
        return {}

    def ops(self, _: str) -> Sequence[Op]:
        """Return nothing."""
        return ()

    def release(self) -> None:
        """Do nothing: nothing is held."""


class LimitsOnDemand:
    """The limits of the configuration, and those of the keys of requests, which may come from any auth.

    Args:
        stack: the stack.
        settings: the settings of usage; None if there are none.
    """

    def __init__(self, stack: Stack, settings: Usage | None) -> None:
        self._stack, self._settings = stack, settings or Usage()
        self._unlimited = _Unlimited(settings is not None)
        self._limiter: Limiter | None = None
        self._recount: Recount | None = None

    def start(self) -> None:
        """Start what enforces the limits of the configuration, in the running event loop."""
        if self._settings.limits:
            self._enforced()
        if any(each.stored_bytes is not None for each in self._settings.limits):
            self._count_stored()

    async def stop(self) -> None:
        """Settle, and give back what is not used."""
        if self._limiter:
            await self._limiter.stop()
        if self._recount:
            await self._recount.stop()

    async def admit(self, owner: Owner, request: CreateRequest | PlainRequest) -> Permit:
        """Admit a request.

        Raises:
            ApiError: 429, a limit is reached. 403, the limits of the key cannot be enforced.
        """
        limiter = self._limiter_of(owner)
        return await limiter.admit(owner, request) if limiter else self._unlimited

    async def admit_items(self, owner: Owner, items: Sequence[Json]) -> None:
        """Admit items that a user stores in a conversation.

        Raises:
            ApiError: 429, a limit is reached. 403, the limits of the key cannot be enforced.
        """
        if limiter := self._limiter_of(owner):
            await limiter.admit_items(owner, items)

    def count(self, ended: Ended) -> None:
        """Count what a response has used."""
        if limiter := self._limiter_of(ended.owner):
            limiter.count(ended)

    def ended_ops(self, ended: Ended) -> Sequence[Op]:
        """Return what the commit of a response's end writes."""
        limiter = self._limiter_of(ended.owner)
        return limiter.ended_ops(ended) if limiter else ()

    def _limiter_of(self, owner: Owner) -> Limiter | None:
        """Return what enforces the limits of a request, and start what these need."""
        if not (limits := owner.limits):
            return self._limiter
        if self._recount is None and any(each.startswith("stored_bytes=") for each in limits):
            self._count_stored()
        return self._enforced()

    def _enforced(self) -> Limiter:
        if self._limiter is None:
            from ..prices import Prices
            from .limiter import Limiter
            from .reports import Reports

            stack, settings = self._stack, self._settings
            prices = Prices(settings.prices, settings.currency)
            reports = Reports(stack.telemetry, name_owner(stack.config.log_owner))
            self._limiter = Limiter(stack.records, settings.limits, prices, reports, stack.activity)
            self._limiter.start()
        return self._limiter

    def _count_stored(self) -> None:
        """Start what counts stored bytes, in the running event loop."""
        from ....store.decoder import Decoder
        from .recount import Recount

        self._recount = Recount(self._stack.records, Decoder(self._stack.config.limits.decoding_bytes))
        self._recount.start()
