"""Gauges of a server's open and queued work, read only when an exporter collects metrics.

Exporters call from their own threads. Counts are read there. The store is read in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_PREFIX: Final = "llama_stack_responses"
_WAIT_SECONDS: Final = 2.0
"""Seconds for which an exporter's thread waits for the event loop and the store; then the gauges have no value."""

_CACHE_SECONDS: Final = 1.0
"""Seconds for which the answer of the store holds, so that all gauges of one collection share it."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """The numbers that the store knows.

    Attributes:
        queued: number of background responses that wait for a worker of any server, without those that can wait.
        age: seconds for which the longest has waited; 0 without any.
        deferred: the same two of each class of those that can wait, by its name.
        size: bytes that the store takes; None if it does not report it.
        free: bytes that it can still take; None if it does not report it.
        volatile: 1 if the store may lose acknowledged responses, else 0.
        damaged: 1 if the store's file was found damaged, else 0.
        held_back: number of expired responses and conversations whose deletion waits for a person.
    """

    queued: int
    age: float
    deferred: Mapping[str, tuple[int, float]]
    size: int | None
    free: int | None
    volatile: int
    damaged: int
    held_back: int


@dataclass(frozen=True, slots=True)
class GaugeSources:
    """The sources of the gauges.

    Attributes:
        counts: return the gauges that this process knows, by name and the value of their attribute `kind`; callable in
            any thread.
        store: returns what the store knows; called in the event loop.
        providers: returns by provider whether its model server answers, 1 or 0; callable in any thread.
        certificates: returns by name the seconds until each certificate ends; callable in any thread.
        clock_difference: returns the seconds by which this machine's clock is ahead of the store's; callable in any
            thread.
        model_rounds: returns by provider with a limit how many model rounds run, and how many wait; callable in any
            thread.
    """

    counts: Callable[[], Mapping[tuple[str, str], int]]
    store: Callable[[], Awaitable[StoreState]]
    providers: Callable[[], Mapping[str, int]]
    certificates: Callable[[], Mapping[str, float]]
    clock_difference: Callable[[], float]
    model_rounds: Callable[[], Mapping[str, tuple[int, int]]]


_COUNTED: Final = (
    ("responses.running", "{response}", "Running responses of this server"),
    ("connections.open", "{connection}", "Open event streams and WebSockets"),
)
_STORED: Final[Sequence[tuple[str, str, str, Callable[[StoreState], float | None]]]] = (
    ("queue.length", "{response}", "Background responses that wait for a worker", lambda state: state.queued),
    ("queue.age", "s", "Time that the oldest of them has waited", lambda state: state.age),
    ("store.size", "By", "Size of the store", lambda state: state.size),
    ("store.free", "By", "Bytes that the store can still take", lambda state: state.free),
    ("store.volatile", "{store}", "Whether the store may lose acknowledged responses", lambda state: state.volatile),
    ("store.damaged", "{store}", "Whether the store's file was found damaged", lambda state: state.damaged),
    ("store.held_back", "{object}", "Expired objects whose deletion is held back", lambda state: state.held_back),
)
"""Name, unit and description of each gauge, and its value."""
_DEFERRED: Final = (
    ("queue.deferred.length", "{response}", "Background responses that wait and can wait, by their class", 0),
    ("queue.deferred.age", "s", "Time that the oldest of them has waited", 1),
)
"""Name, unit and description of each gauge by class, and which of two numbers it is."""


class Gauges:
    """The gauges of one server.

    Args:
        meter: creates them.
        sources: return what they show.
        loop: the event loop in which the server runs.
    """

    def __init__(self, meter: Meter, sources: GaugeSources, loop: asyncio.AbstractEventLoop) -> None:
        self._sources = sources
        self._loop = loop
        self._loop_thread = threading.get_ident()
        self._lock = threading.Lock()
        self._cached: StoreState | None = None
        self._cached_until = 0.0
        for name, unit, what in _COUNTED:
            meter.create_observable_gauge(f"{_PREFIX}.{name}", [self._counted(name)], unit, what)
        for name, unit, what, observe in (
            ("model_server.up", "{server}", "Whether the model server of a provider answers", self._up),
            ("certificate.remaining", "s", "Time until a certificate ends", self._certificates),
            ("model_server.running", "{round}", "Model rounds that run, of a provider with a limit", self._rounds(0)),
            ("model_server.waiting", "{round}", "Model rounds that wait for a slot of it", self._rounds(1)),
            ("clock.difference", "s", "Time by which this machine's clock is ahead of the store's", self._clock),
        ):
            meter.create_observable_gauge(f"{_PREFIX}.{name}", [observe], unit, what)
        for name, unit, what, part in _DEFERRED:
            meter.create_observable_gauge(f"{_PREFIX}.{name}", [self._deferred(part)], unit, what)
        for name, unit, what, value in _STORED:
            meter.create_observable_gauge(f"{_PREFIX}.{name}", [self._stored(value)], unit, what)

    def _counted(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            counts = self._sources.counts()
            return [Observation(count, {"kind": kind}) for (of, kind), count in counts.items() if of == name]

        return observe

    def _rounds(self, part: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            counts = self._sources.model_rounds()
            return [Observation(of[part], {"gen_ai.provider.name": name}) for name, of in counts.items()]

        return observe

    def _up(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(up, {"gen_ai.provider.name": name}) for name, up in self._sources.providers().items()]

    def _certificates(self, _: CallbackOptions) -> Iterable[Observation]:
        remaining = self._sources.certificates()
        return [Observation(seconds, {f"{_PREFIX}.certificate": name}) for name, seconds in remaining.items()]

    def _clock(self, _: CallbackOptions) -> Iterable[Observation]:
        return [Observation(self._sources.clock_difference())]

    def _stored(
        self, value: Callable[[StoreState], float | None]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            state = self._sample()
            number = value(state) if state else None
            return [] if number is None else [Observation(number)]

        return observe

    def _deferred(self, part: int) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            state = self._sample()
            found = state.deferred.items() if state else ()
            return [Observation(of[part], {f"{_PREFIX}.work": name}) for name, of in found]

        return observe

    def _sample(self) -> StoreState | None:
        """Return the store's numbers; None if it does not answer in time."""
        if threading.get_ident() == self._loop_thread or self._loop.is_closed() or not self._loop.is_running():
            # The last collection at the end of the process; waiting here would wait for this thread.
            return None
        with self._lock:
            if monotonic() >= self._cached_until:
                self._cached = None
                pending = asyncio.run_coroutine_threadsafe(_within_time(self._sources.store), self._loop)
                with suppress(Exception):
                    self._cached = pending.result(_WAIT_SECONDS)
                self._cached_until = monotonic() + _CACHE_SECONDS
            return self._cached


async def _within_time(ask: Callable[[], Awaitable[StoreState]]) -> StoreState:
    async with asyncio.timeout(_WAIT_SECONDS):
        return await ask()
