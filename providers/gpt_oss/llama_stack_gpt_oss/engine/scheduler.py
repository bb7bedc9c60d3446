"""Which tokens of which sequences the next step computes."""

import bisect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .cache import Cache
from .errors import QueueFullError
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """sequences: how many run at once. step_tokens: how many tokens one step computes. waiting: how many may queue."""

    sequences: int
    step_tokens: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens `start` to `start + count` of a sequence. `last` says, before it is started, that it draws a token."""

    sequence: Sequence
    start: int
    count: int

    @property
    def last(self) -> bool:
        return self.start + self.count == self.sequence.length


class Scheduler:
    """Continuous batching: sequences join and leave at any step, long prompts are computed in pieces beside others.

    When pages run out, whoever would go last gives its pages back and computes again later.
    """

    def __init__(self, cache: Cache, limits: Limits) -> None:
        self._cache = cache
        self._limits = limits
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queues them all, or raises QueueFullError and queues none."""
        new = list(sequences)
        free = self._limits.sequences - len(self.running) + self._limits.waiting - len(self.waiting)
        if len(new) > free:
            raise QueueFullError(
                f"{len(self.waiting)} requests wait already, and no more than {self._limits.waiting} may"
            )
        for sequence in new:
            bisect.insort(self.waiting, sequence, key=lambda each: each.rank)

    def remove(self, sequence: Sequence) -> None:
        """Takes a sequence out for good, wherever it is."""
        sequence.gone = True
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._cache.close(sequence.holding)

    def schedule(self) -> list[Work]:
        """The next step. Sequences that sample go before prompts that are computed, and those before new ones."""
        budget = self._limits.step_tokens
        works: list[Work] = []
        unfinished = [sequence for sequence in self.running if not sequence.complete]
        for sequence in sorted(unfinished, key=lambda each: (each.length - each.computed > 1, each.rank)):
            if sequence not in self.running or not budget:
                continue  # it gave its pages to one before it
            count = min(budget, sequence.length - sequence.computed)
            if self._make_room(sequence, sequence.computed + count, works):
                works.append(Work(sequence, sequence.computed, count))
                budget -= count
        works.extend(self._admit(budget))
        return works

    def computed(self, work: Work) -> None:
        """The step was started: its tokens are in the store for every step after it. All of them have been read."""
        sequence = work.sequence
        sequence.computed = work.start + work.count
        self._cache.commit(sequence.holding, sequence.tokens, sequence.computed)

    def _admit(self, budget: int) -> Iterator[Work]:
        for sequence in list(self.waiting):
            if not budget or len(self.running) >= self._limits.sequences:
                return
            if sequence.waits_for_leader:
                continue
            sequence.holding, found = self._cache.open(sequence.tokens, sequence.params.cache_salt)
            count = min(budget, sequence.length - found)
            if not self._cache.grow(sequence.holding, found + count):
                self._cache.close(sequence.holding)
                return
            self.waiting.remove(sequence)
            self.running.append(sequence)
            sequence.computed = found
            if sequence.cached is None:
                sequence.cached = found
                self.prompt_tokens += sequence.prompt_tokens
                self.cached_tokens += found
            yield Work(sequence, found, count)
            budget -= count

    def _make_room(self, sequence: Sequence, tokens: int, works: list[Work]) -> bool:
        """Grows a running sequence, at the cost of those that go after it; False if it had to give way itself."""
        while not self._cache.grow(sequence.holding, tokens):
            planned = {id(work.sequence) for work in works}
            victim = max((each for each in self.running if id(each) not in planned), key=lambda each: each.rank)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(victim)
        self._cache.close(victim.holding)
        victim.computed = 0
        bisect.insort(self.waiting, victim, key=lambda each: each.rank)
