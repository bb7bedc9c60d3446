"""Ends running responses when a limit with `cut_running` is used up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import batched
from typing import Final

from ....core.lru_cache import LruCache
from ....core.owner import Owner
from ....generation.activity import Activity, Running
from ..counted import Counts
from ..prices import Prices
from ..settings import Limit
from .reports import Reports
from .scopes import Scope

_TOGETHER: Final = 50
"""Responses that are checked before the event loop runs other work."""
_REMEMBERED: Final = 10_000
"""Ended responses whose use is remembered until it is counted."""

type Cutting = Callable[[Owner, str], Iterable[tuple[Limit, Scope]]]
"""Returns the limits that end responses of a user and a model."""


class Cuts:
    """Ends responses of this server.

    Args:
        activity: has the responses that run.
        limits_of: returns the limits that end them.
        prices: what usage costs.
        reports: reports what is ended.
    """

    def __init__(self, activity: Activity, limits_of: Cutting, prices: Prices, reports: Reports) -> None:
        self._activity, self._limits_of = activity, limits_of
        self._prices, self._reports = prices, reports
        self._cut: LruCache[str, Counts] = LruCache(_REMEMBERED)

    async def make(self, *, look: bool) -> None:
        """End the responses whose limits are used up, by what they have used so far as well.

        Args:
            look: whether to read from the store what other servers have used.

        Raises:
            ApiError: 503, the store does not answer.
        """
        for scope, those in (await self._by_scope()).items():
            if look:
                await scope.meter.look()
            used = sum(scope.measure.used(_counts(each), _model(each), self._prices) for _, each in those)
            if scope.meter.unused <= used:
                for limit, each in those:
                    self._end(limit, scope, each)

    def used(self, response_id: str, counts: Counts) -> Counts:
        """Return what a response has used, at least what it had used when it was ended."""
        cut = self._cut.get(response_id) or {}
        return counts | {name: max(count, counts.get(name, 0)) for name, count in cut.items()}

    async def _by_scope(self) -> dict[Scope, list[tuple[Limit, Running]]]:
        found: dict[Scope, list[tuple[Limit, Running]]] = {}
        running = [each for own in self._activity.running.values() for each in own.values()]
        for some in batched(running, _TOGETHER):
            for each in some:
                for limit, scope in self._limits_of(each.owner, _model(each)):
                    found.setdefault(scope, []).append((limit, each))
            # There may be thousands, and others wait for the event loop.
            await asyncio.sleep(0)
        return found

    def _end(self, limit: Limit, scope: Scope, running: Running) -> None:
        response_id = running.assembler.response["id"]
        if self._cut.get(response_id) is None:
            self._cut.set(response_id, _counts(running))
            running.end(scope.measure.refusal(limit.by, scope.meter))
            self._reports.cut(limit, scope.measure.amount, running.owner)


def _model(running: Running) -> str:
    model: str = running.assembler.response["model"]
    return model


def _counts(running: Running) -> Counts:
    used = running.used
    return {
        "requests": 1,
        "input_tokens": used.input_tokens,
        "cached_tokens": used.cached_tokens,
        "output_tokens": used.output_tokens,
    }
