"""The engine's loop: schedule, run, postprocess."""

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass, replace
from typing import Protocol

from .cache import Cache, longest_sequence
from .errors import RequestError
from .scheduler import Limits, Scheduler, Work
from .sequence import Finish, Params, Sampled, Sequence, TokenMask

RATE_SECONDS = 10.0  # over which tokens a second are counted


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and how many answers to it; answer n has the id `ids[n]` and the seed `params.seed + n`."""

    ids: tuple[str, ...]
    prompt: list[int]
    params: Params
    grammar: str | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """News of one answer. `cached`: how many tokens of its prompt were found in the KV store."""

    id: str
    sampled: Sampled
    finish: Finish | None
    cached: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The engine now; rates over the last seconds, the rest since the start."""

    running: int
    waiting: int
    pages: int
    pages_used: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    tokens_per_second: float
    preemptions: int
    steps: int


class Runner(Protocol):
    """What computes a step."""

    def run(self, works: Series[Work]) -> list[Sampled]:
        """Computes the works' tokens; the next token of each work that is its sequence's last, in their order."""


class Engine:
    """Owns the sequences. Not for threads: whoever steps it also adds and cancels."""

    def __init__(
        self, runner: Runner, cache: Cache, limits: Limits, context: int, open_mask: Callable[[str], TokenMask]
    ) -> None:
        """`context`: the most tokens of a sequence, or as many as always fit into the cache."""
        self.context = min(context, longest_sequence(cache.pages.count, cache.windows, limits.step_tokens))
        self._runner = runner
        self._cache = cache
        self._scheduler = Scheduler(cache, limits)
        self._open_mask = open_mask
        self._sequences: dict[str, Sequence] = {}
        self._arrivals = 0
        self._generated = 0
        self._steps = 0
        self._recent: deque[tuple[float, int]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    def add(self, request: Request) -> None:
        """RequestError if it can never run, QueueFullError if it cannot be queued now; else its answers will come."""
        prompt = request.prompt
        if not prompt:
            raise RequestError("The prompt is empty")
        if len(prompt) >= self.context:
            raise RequestError(
                f"The prompt has {len(prompt):,} tokens, and the context of {self.context:,} tokens leaves no room"
                " for an answer"
            )
        sequences: list[Sequence] = []
        for number, name in enumerate(request.ids):
            sequences.append(self._sequence(request, number, name, sequences[0] if sequences else None))
        self._scheduler.add(sequences)
        self._sequences |= {sequence.id: sequence for sequence in sequences}

    def cancel(self, name: str) -> None:
        """The next step is without it; unknown names are those that have ended."""
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def step(self) -> list[Update]:
        """One token more for every sequence whose turn it is."""
        works = self._scheduler.schedule()
        if not works:
            return []
        sampled = iter(self._runner.run(works))
        updates = []
        for work in works:
            self._scheduler.computed(work)
            if work.last:
                updates.append(self._postprocess(work, next(sampled)))
        self._count(len(updates))
        return updates

    def metrics(self) -> Metrics:
        pages = self._cache.pages
        return Metrics(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            pages=pages.count,
            pages_used=pages.used,
            prompt_tokens=self._scheduler.prompt_tokens,
            cached_tokens=self._scheduler.cached_tokens,
            generated_tokens=self._generated,
            tokens_per_second=self._rate(),
            preemptions=self._scheduler.preemptions,
            steps=self._steps,
        )

    def _sequence(self, request: Request, number: int, name: str, leader: Sequence | None) -> Sequence:
        params = request.params
        self._arrivals += 1
        return Sequence(
            id=name,
            tokens=list(request.prompt),
            prompt_tokens=len(request.prompt),
            params=replace(
                params,
                max_tokens=min(params.max_tokens, self.context - len(request.prompt)),
                seed=params.seed + number,
            ),
            arrival=self._arrivals,
            mask=self._open_mask(request.grammar) if request.grammar is not None else None,
            leader=leader,
        )

    def _postprocess(self, work: Work, sampled: Sampled) -> Update:
        sequence = work.sequence
        sequence.append(sampled.token)
        if sequence.finish is not None:
            del self._sequences[sequence.id]
            self._scheduler.remove(sequence)
        return Update(sequence.id, sampled, sequence.finish, sequence.cached or 0)

    def _count(self, tokens: int) -> None:
        now = time.monotonic()
        self._steps += 1
        self._generated += tokens
        self._recent.append((now, tokens))
        self._forget(now)

    def _rate(self) -> float:
        self._forget(time.monotonic())
        return sum(tokens for _, tokens in self._recent) / RATE_SECONDS

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
