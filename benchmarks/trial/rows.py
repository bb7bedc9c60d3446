"""The rows of the trial, and the stores for which each makes sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from benchmarks.trial.clock import wrong_clock
from benchmarks.trial.damage import damage
from benchmarks.trial.eviction import eviction
from benchmarks.trial.failover import failover
from benchmarks.trial.full_store import full_store
from benchmarks.trial.outages import cut_connections, paused_store, stopped_store
from benchmarks.trial.outcome import Outcome
from benchmarks.trial.restarts import kill, replacement
from benchmarks.trial.site import TEMPLATES, Trial

STORES: Final = tuple(TEMPLATES)
WITH_SERVER: Final = ("redis", "postgres")

ROWS: Final[Mapping[str, tuple[Callable[[Trial], Outcome], tuple[str, ...]]]] = {
    "replacement": (replacement, STORES),
    "kill": (kill, STORES),
    "stopped-store": (stopped_store, WITH_SERVER),
    "paused-store": (paused_store, STORES),
    "cut-connections": (cut_connections, WITH_SERVER),
    "failover": (failover, WITH_SERVER),
    "full-store": (full_store, STORES),
    "wrong-clock": (wrong_clock, STORES),
    "eviction": (eviction, ("redis",)),
    "damage": (damage, ("sqlite",)),
}
"""For each name, the function and its stores."""
