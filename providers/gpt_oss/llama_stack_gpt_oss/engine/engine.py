"""The engine's loop: a step is scheduled and started while the one before it runs, whose tokens are then read."""

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


class Step(Protocol):
    """A step that was started."""

    def sampled(self) -> list[Sampled]:
        """Waits for it; the next token of each work that was its sequence's last, in their order."""


class Runner(Protocol):
    """What computes steps, one after the other."""

    def start(self, works: Series[Work]) -> Step:
        """Has the works' tokens computed, those included that the step before is only about to draw."""


@dataclass(frozen=True, slots=True)
class Started:
    """A step whose tokens nobody has read, and the sequences that draw one in it."""

    step: Step
    drawing: list[Sequence]


class Engine:
    """Owns the sequences. Not for threads: whoever steps it also adds and cancels.

    The device computes steps in the order in which they were started. So a page can be given back while a step that
    uses it runs: whoever gets it writes to it in a later one.
    """

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
        self._started: Started | None = None
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
        """No update comes of it any more, and no step; unknown names are those that have ended."""
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def step(self) -> list[Update]:
        """Starts a step, and tells what the one before it drew: it is heard of while the device is at work.

        That a sequence stops is thus seen when one token too many of it is being drawn, which nobody reads.
        """
        updates = self._read() if self._a_mask_waits() else []
        works = self._scheduler.schedule()
        started = self._start(works) if works else None
        updates += self._read()
        for work in works:
            if not work.sequence.gone:
                self._scheduler.computed(work)
        self._started = started
        self._steps += len(works) > 0
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

    def _start(self, works: Series[Work]) -> Started:
        drawing = [work.sequence for work in works if work.last]
        started = Started(self._runner.start(works), drawing)
        for sequence in drawing:
            sequence.unread += 1
        return started

    def _a_mask_waits(self) -> bool:
        """Whether a mask has to hear of a token before it can say which the next one may be."""
        return self._started is not None and any(each.mask is not None for each in self._started.drawing)

    def _read(self) -> list[Update]:
        started, self._started = self._started, None
        if started is None:
            return []
        found = zip(started.drawing, started.step.sampled(), strict=True)
        return [self._take(sequence, sampled) for sequence, sampled in found if not sequence.gone]

    def _take(self, sequence: Sequence, sampled: Sampled) -> Update:
        sequence.append(sampled.token)
        if sequence.finish is not None:
            del self._sequences[sequence.id]
            self._scheduler.remove(sequence)
        return Update(sequence.id, sampled, sequence.finish, sequence.cached or 0)

    def _count(self, tokens: int) -> None:
        now = time.monotonic()
        self._generated += tokens
        self._recent.append((now, tokens))
        self._forget(now)

    def _rate(self) -> float:
        self._forget(time.monotonic())
        return sum(tokens for _, tokens in self._recent) / RATE_SECONDS

    def _forget(self, now: float) -> None:
        while self._recent and self._recent[0][0] < now - RATE_SECONDS:
            self._recent.popleft()
