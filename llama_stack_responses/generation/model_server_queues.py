"""Slots of model servers, which limit the model rounds that run at a time; users take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from time import perf_counter
from types import MappingProxyType
from typing import Final

from ..concurrency.fair_budget import FairBudget, QueueFull
from ..concurrency.share import Share
from ..concurrency.waiting_work import Precedence
from ..config.limits import ModelServerLimits
from ..core.errors import ApiError
from ..logs import get_logger
from ..telemetry.instrumentation import RoundOperation, Telemetry
from ..telemetry.metrics import Metric

logger = get_logger(__name__)

WAITED: Final = Metric(
    "llama_stack_responses.model_server.wait",
    "s",
    "Time that a model round waited for a slot of its model server",
    (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0),
)

_LONG_SECONDS: Final = 5.0
"""A wait that is logged."""
_RETRY_AFTER_SECONDS: Final = 5
_PATIENT: Final = (Precedence.SOON, Precedence.LATER)
_REFUSED: Final = (Precedence.URGENT, Precedence.NEW)
"""Rounds that wait without an end, and those that are refused if too many of the user's wait."""
_UNLIMITED: Final = nullcontext()


class ModelServerQueues:
    """The queues of this process, one for each model server with a limit.

    A round holds its slot while the model server answers, and releases it before tools run. So no response waits for a
    slot while it holds one. A round of a response that has begun goes before the new responses of the same user, and
    those before their background responses. This order does not affect other users: one who runs much gets no more than
    others.

    Args:
        limits: by the ids of inference providers.
        telemetry: measures the waits.
    """

    def __init__(
        self, limits: Mapping[str, ModelServerLimits] = MappingProxyType({}), telemetry: Telemetry | None = None
    ) -> None:
        telemetry = telemetry or Telemetry()
        self._queues = {name: _Queue(name, each, telemetry) for name, each in limits.items()}

    def slot(self, precedence: Precedence, operation: RoundOperation) -> AbstractAsyncContextManager[None]:
        """Return a context manager that waits for a slot of the round's model server, and holds it during the block.

        Args:
            precedence: `BEGUN` for a round of a response of which the client has seen something, `URGENT` or `NEW` for
                one that the client waits for, with the service tier `priority` or without it; `SOON` or `LATER`
                for one of a background response. Only the last two wait without an end.
            operation: the round, which names the provider, and to which the wait does not count.

        Raises:
            ApiError: when the block begins: 429, too many new responses of the user wait; 503, it waited for too long.
        """
        queue = self._queues.get(operation.provider)
        return _Slot(queue, precedence, operation) if queue else _UNLIMITED

    def beyond(self, provider: str) -> AbstractAsyncContextManager[None]:
        """Return a slot for a block within a round that holds one: it never waits, and may exceed the limit."""
        queue = self._queues.get(provider)
        return _Beyond(queue) if queue else _UNLIMITED

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return by provider how many rounds run and how many wait; callable in any thread."""
        return {
            name: (each.budget.total - each.budget.left, each.budget.waiting) for name, each in self._queues.items()
        }


class _Queue:
    """The queue of one model server."""

    def __init__(self, provider: str, limits: ModelServerLimits, telemetry: Telemetry) -> None:
        self.budget = FairBudget(limits.concurrency, limits.of_one_user, limits.waiting_per_user)
        self._provider, self._limits, self._telemetry = provider, limits, telemetry

    async def enter(self, precedence: Precedence, operation: RoundOperation) -> Share:
        """Wait for a slot."""
        if share := self.budget.enter_at_once():
            return share
        began, refused = perf_counter(), False
        try:
            async with asyncio.timeout(None if precedence in _PATIENT else self._limits.wait_seconds):
                share = await self.budget.enter(precedence=precedence, may_refuse=precedence in _REFUSED)
        except QueueFull:
            refused = True
            raise self._full() from None
        except TimeoutError:
            raise self._busy() from None
        finally:
            if not refused:  # that was no wait; the alert on waits takes their median
                self._note(perf_counter() - began, operation)
        return share

    def _note(self, seconds: float, operation: RoundOperation) -> None:
        operation.waited(seconds)
        self._telemetry.record(WAITED, seconds, {"gen_ai.provider.name": self._provider})
        if seconds >= _LONG_SECONDS:
            logger.info("a model round waited %.1f s for a slot of the model server: %s", seconds, self._provider)

    def _full(self) -> ApiError:
        message = (
            f"More than {self._limits.waiting_per_user} of your requests wait for the model server of "
            f"'{self._provider}' (setting 'model_servers.{self._provider}.waiting_per_user'). Try again later."
        )
        return ApiError(429, message, code="rate_limit_exceeded", retry_after=_RETRY_AFTER_SECONDS)

    def _busy(self) -> ApiError:
        message = (
            f"The model server of '{self._provider}' had no free slot for this request within "
            f"{self._limits.wait_seconds:g} seconds (settings 'concurrency' and 'wait_seconds' of "
            f"'model_servers.{self._provider}'). Try again later."
        )
        return ApiError(503, message, code="server_overloaded", retry_after=_RETRY_AFTER_SECONDS)


class _Slot(AbstractAsyncContextManager[None]):
    """A slot that a round waits for."""

    __slots__ = ("_operation", "_precedence", "_queue", "_share")

    def __init__(self, queue: _Queue, precedence: Precedence, operation: RoundOperation) -> None:
        self._queue, self._precedence, self._operation = queue, precedence, operation

    async def __aenter__(self) -> None:
        self._share = await self._queue.enter(self._precedence, self._operation)

    async def __aexit__(self, *_: object) -> None:
        self._queue.budget.leave(self._share)


class _Beyond(AbstractAsyncContextManager[None]):
    """A slot beyond the limit."""

    __slots__ = ("_queue", "_share")

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    async def __aenter__(self) -> None:
        self._share = self._queue.budget.enter_beyond()

    async def __aexit__(self, *_: object) -> None:
        self._queue.budget.leave(self._share)
