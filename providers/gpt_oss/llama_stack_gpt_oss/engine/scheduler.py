"""The scheduler: decides which tokens of which sequences the next step computes."""

import bisect
import time
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Series
from dataclasses import dataclass
from itertools import takewhile

from .cache import Cache
from .drafts import Drafter
from .errors import QueueFullError
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Limits:
    """sequences: maximum number running. step_tokens: maximum number per step. waiting: maximum number queued.

    verified: maximum number of decoded tokens in a step with drafts, the drafts included.
    """

    sequences: int
    step_tokens: int
    waiting: int
    verified: int = 0


@dataclass(slots=True)  # not frozen: that would take twice as long to create, for each sequence in each step
class ScheduledTokens:
    """Tokens `start` to `start + count` of a sequence, and drafts after them.

    last, valid before the start: a token is sampled, and one after each draft.
    """

    sequence: Sequence
    start: int
    count: int
    drafts: Series[int] = ()

    @property
    def last(self) -> bool:
        return self.start + self.count == len(self.sequence.tokens) + self.sequence.unread


class Scheduler:
    """Continuous batching with chunked prefill: sequences join and leave at any step.

    When blocks run out, the lowest-ranked sequence is preempted: its blocks are freed and recomputed later.
    """

    def __init__(self, cache: Cache, limits: Limits, drafter: Drafter | None = None) -> None:
        self._cache = cache
        self._limits = limits
        self._drafter = drafter
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []  # by rank
        self.preemptions = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.queue_seconds = 0.0
        self.admitted = 0

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue all sequences, or raise QueueFullError and queue none."""
        new = list(sequences)
        free = self._limits.sequences - len(self.running) + self._limits.waiting - len(self.waiting)
        if len(new) > free:
            raise QueueFullError(
                f"{len(self.waiting)} requests are queued already, and the maximum is {self._limits.waiting}"
            )
        for sequence in new:
            self._queue(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence permanently, whether it waits or runs."""
        sequence.gone = True
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self._cache.close(sequence.blocks)
        if self._drafter is not None:
            self._drafter.forget(sequence)

    def queue_age(self) -> float:
        """Return how many seconds the longest of the waiting sequences has waited."""
        now = time.monotonic()
        return now - min((each.queued_at for each in self.waiting), default=now)

    def schedule(self) -> list[ScheduledTokens]:
        """Schedule the next step: decoding sequences first, then running prefills, then new sequences.

        It runs in each step for each sequence, so for most of them it calls nothing else.
        """
        budget, preemptions = self._limits.step_tokens, self.preemptions
        scheduled: list[ScheduledTokens] = []
        for sequence, missing in self._unfinished():
            if not budget:
                break
            if self.preemptions != preemptions and sequence not in self.running:
                continue  # it was preempted for one before it
            start, count = sequence.computed, missing if missing < budget else budget
            if start + count <= sequence.blocks.room or self._make_room(sequence, start + count, scheduled):
                scheduled.append(ScheduledTokens(sequence, start, count))
                budget -= count
        for work in self._admit(budget):
            scheduled.append(work)
            budget -= work.count
        if self._drafter is not None:
            self._draft(self._drafter, scheduled, budget)
        return scheduled

    def computed(self, scheduled: Iterable[ScheduledTokens]) -> None:
        """Record a started step whose input tokens have all been read: later steps find them in the KV cache."""
        for work in scheduled:
            sequence = work.sequence
            if sequence.gone:
                continue
            sequence.computed = work.start + work.count
            if sequence.computed >= sequence.blocks.due:
                self._cache.commit(sequence.blocks, sequence.tokens, sequence.computed)

    def _draft(self, drafter: Drafter, scheduled: list[ScheduledTokens], budget: int) -> None:
        """Add drafts to decodes, as far as the step and the free blocks have room."""
        decodes = list(takewhile(lambda work: work.count == 1 and work.last, scheduled))
        room = min(budget, self._limits.verified - len(decodes))
        if room < 1:
            return
        proposed = drafter.propose([work.sequence for work in decodes])
        for work, drafts in zip(decodes, proposed, strict=True):
            chosen = drafts[:room]
            if chosen and self._cache.grow(work.sequence.blocks, work.start + 1 + len(chosen)):
                work.drafts = chosen
                room -= len(chosen)

    def _unfinished(self) -> list[tuple[Sequence, int]]:
        """Return the running sequences that are not complete, with how many tokens are to compute: decodes first.

        It runs in each step for each sequence, so it calls nothing.
        """
        decodes: list[tuple[Sequence, int]] = []
        prefills: list[tuple[Sequence, int]] = []
        for sequence in self.running:
            length = len(sequence.tokens) + sequence.unread
            if length - sequence.prompt_tokens < sequence.params.max_tokens:
                missing = length - sequence.computed
                (prefills if missing > 1 else decodes).append((sequence, missing))
        return decodes + prefills

    def _admit(self, budget: int) -> Iterator[ScheduledTokens]:
        for sequence in list(self.waiting):
            if not budget or len(self.running) >= self._limits.sequences:
                return
            if sequence.waits_for_leader:
                continue
            sequence.blocks, cached = self._cache.allocate(sequence.tokens, sequence.params.cache_salt)
            count = min(budget, sequence.length - cached)
            if not self._cache.grow(sequence.blocks, cached + count):
                self._cache.close(sequence.blocks)
                return
            self.waiting.remove(sequence)
            bisect.insort(self.running, sequence, key=lambda each: each.rank)
            sequence.computed = cached
            self.queue_seconds += time.monotonic() - sequence.queued_at
            if sequence.cached is None:
                sequence.cached = cached
                self.admitted += 1
                self.prompt_tokens += sequence.prompt_tokens
                self.cached_tokens += cached
            yield ScheduledTokens(sequence, cached, count)
            budget -= count

    def _make_room(self, sequence: Sequence, tokens: int, scheduled: list[ScheduledTokens]) -> bool:
        """Grow a running sequence; preempt those ranked after it if needed. False if it was preempted itself."""
        while not self._cache.grow(sequence.blocks, tokens):
            planned = {id(work.sequence) for work in scheduled}
            victim = max((each for each in self.running if id(each) not in planned), key=lambda each: each.rank)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence) -> None:
        self.preemptions += 1
        self.running.remove(victim)
        self._cache.close(victim.blocks)
        victim.computed = 0
        self._queue(victim)

    def _queue(self, sequence: Sequence) -> None:
        sequence.queued_at = time.monotonic()
        bisect.insort(self.waiting, sequence, key=lambda each: each.rank)
