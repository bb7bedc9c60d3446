"""The backends that the contract holds for. A new one joins by a line in `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Records
from llama_stack_responses.store.sqlite import SqliteRecords


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class Backend:
    """How to open a backend in a folder of its own; `persistent` ones have in a second opening what the first wrote."""

    name: str
    open: Callable[[Path, Clock], Records]
    persistent: bool


BACKENDS = [
    Backend("memory", lambda _, clock: MemoryRecords(clock=clock), persistent=False),
    Backend("sqlite", lambda folder, clock: SqliteRecords(folder / "records.db", clock=clock), persistent=True),
]
