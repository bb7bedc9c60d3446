"""The engine's metrics in OpenTelemetry, read only when an exporter collects metrics.

Exporters call from their own threads, which ask the engine over a connection of their own: no event loop waits.
"""

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from .engine.engine import Metrics
from .process.frames import unpack_metrics
from .process.status import read_metrics

PREFIX: Final = "llama_stack_gpt_oss"
WAIT_SECONDS: Final = 2.0
"""Seconds for which an exporter's thread waits for the engine; then the metrics have no value."""

CACHE_SECONDS: Final = 1.0
"""Seconds for which an answer holds, so that all metrics of one collection share it."""

# Name, unit, description, and field of `Metrics`.
COUNTERS: Final = (
    ("steps", "{step}", "Steps of the engine", "steps"),
    ("step.tokens", "{token}", "Tokens that the steps computed", "step_tokens"),
    ("tokens.generated", "{token}", "Tokens of answers", "generated_tokens"),
    ("tokens.prompt", "{token}", "Tokens of admitted prompts", "prompt_tokens"),
    ("tokens.cached", "{token}", "Tokens of admitted prompts found in the KV cache", "cached_tokens"),
    ("tokens.drafted", "{token}", "Tokens that were drafted", "drafted_tokens"),
    ("tokens.accepted", "{token}", "Drafted tokens that were accepted", "accepted_tokens"),
    ("admitted", "{sequence}", "Sequences that left the queue", "admitted"),
    ("queue.time", "s", "Total time that they waited", "queue_seconds"),
    ("preemptions", "{preemption}", "Sequences sent back to the queue", "preemptions"),
)
GAUGES: Final = (
    ("sequences.running", "{sequence}", "Sequences in the batch", "running"),
    ("queue.length", "{sequence}", "Sequences that wait", "waiting"),
    ("queue.age", "s", "Time that the oldest of them has waited", "queue_age_seconds"),
    ("kv.blocks", "{block}", "Blocks of the KV cache", "pages"),
    ("kv.blocks.used", "{block}", "Blocks in use by running sequences", "pages_used"),
)


class EngineTelemetry:
    """The instruments of one engine.

    Args:
        meter: creates them.
        socket: path of the engine's socket.
        model: their attribute `gen_ai.request.model`.
    """

    def __init__(self, meter: Meter, socket: Path, model: str) -> None:
        self._socket = socket
        self._labels = {"gen_ai.request.model": model}
        self._lock = threading.Lock()
        self._known: Metrics | None = None
        self._until = 0.0
        for name, unit, what, field in COUNTERS:
            meter.create_observable_counter(f"{PREFIX}.{name}", [self._observed(field)], unit, what)
        for name, unit, what, field in GAUGES:
            meter.create_observable_gauge(f"{PREFIX}.{name}", [self._observed(field)], unit, what)

    def _observed(self, field: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            now = self._sample()
            return [] if now is None else [Observation(getattr(now, field), self._labels)]

        return observe

    def _sample(self) -> Metrics | None:
        """Return the engine's metrics; None if it does not answer in time, or while none runs."""
        with self._lock:
            if monotonic() >= self._until:
                try:
                    self._known = unpack_metrics(read_metrics(self._socket, WAIT_SECONDS))
                except OSError:
                    self._known = None
                self._until = monotonic() + CACHE_SECONDS
            return self._known
