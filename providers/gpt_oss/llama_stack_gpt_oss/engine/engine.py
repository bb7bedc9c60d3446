"""The engine's loop: it schedules and starts a step while the previous one runs, then reads the latter's tokens."""

import time
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Series
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from .cache import Cache, longest_sequence
from .drafts import Drafter
from .errors import RequestError
from .sampling_params import SamplingParams
from .scheduler import Limits, ScheduledTokens, Scheduler
from .sequence import Finish, Sampled, Sequence, TokenMask

RATE_SECONDS = 10.0  # averaging period of token rates


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt and the number of choices; choice n has the id `ids[n]` and the seed `params.seed + n`."""

    ids: tuple[str, ...]
    prompt: list[int]
    params: SamplingParams
    grammar: str | None = None


class Update(NamedTuple):
    """A new token of one sequence; a step may have several. `cached`: prompt tokens found in the KV cache."""

    id: str
    sampled: Sampled
    finish: Finish | None
    cached: int


@dataclass(frozen=True, slots=True)
class Metrics:
    """The engine's current state. Rates cover the last RATE_SECONDS, counters the time since the start.

    queue_age_seconds: how long the longest of the waiting sequences has waited. queue_seconds: how long the admitted
    ones waited in all. step_tokens: tokens that the steps computed. drafted_tokens, accepted_tokens: tokens that were
    drafted, and those of them that were accepted.
    """

    running: int
    waiting: int
    pages: int  # blocks of the KV cache; the name is that of the protocol
    pages_used: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    tokens_per_second: float
    preemptions: int
    steps: int
    queue_age_seconds: float = 0.0
    queue_seconds: float = 0.0
    admitted: int = 0
    step_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0


class Step(Protocol):
    """A started step."""

    def sample(self) -> None:
        """Start sampling the tokens that depend on earlier ones. All earlier steps have been read."""

    def sampled(self) -> list[Sampled]:
        """Wait for the step; return the sampled tokens in order: those of each sequence, and of each of its drafts."""


class Runner(Protocol):
    """Computes steps, one after the other."""

    def start(self, scheduled: Series[ScheduledTokens]) -> Step:
        """Start computing tokens, including those that the previous step has not sampled yet."""


@dataclass(frozen=True, slots=True)
class Started:
    """A started step whose tokens have not been read, the works that sample in it, and whether any of them drafts."""

    step: Step
    drawing: list[ScheduledTokens]
    has_drafts: bool


class Engine:
    """Owns the sequences. Not thread-safe: one thread must make all calls.

    The device computes steps in the order of their start. So a block can be freed while a step that uses it runs: its
    next user writes to it in a later step.
    """

    def __init__(
        self,
        runner: Runner,
        cache: Cache,
        limits: Limits,
        context: int,
        open_mask: Callable[[str], TokenMask],
        drafter: Drafter | None = None,
    ) -> None:
        """Create an engine. `context`: maximum length of a sequence; reduced if the KV cache is too small for it."""
        self.context = min(context, longest_sequence(cache.pool.count, cache.windows, limits.step_tokens))
        self._runner = runner
        self._cache = cache
        self._scheduler = Scheduler(cache, limits, drafter)
        self._drafter = drafter
        self._open_mask = open_mask
        self._sequences: dict[str, Sequence] = {}
        self._started: Started | None = None
        self._arrivals = 0
        self._generated = 0
        self._steps = 0
        self._step_tokens = 0
        self._drafted = self._accepted = 0
        self._recent: deque[tuple[float, int]] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._sequences)

    def add(self, request: Request) -> None:
        """Queue a request. RequestError: it can never run. QueueFullError: the queue is full."""
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
        """Cancel a sequence: no more updates, no more steps. Unknown ids are ignored, since they have finished."""
        sequence = self._sequences.pop(name, None)
        if sequence is not None:
            self._scheduler.remove(sequence)

    def step(self) -> list[Update]:
        """Start a step, and return the tokens of the previous one, which are processed while the device computes.

        So one extra token is sampled after a sequence's stop token; it is discarded. A grammar accepts the previous
        token and computes its mask meanwhile too. A step with drafts is read first: where its sequences go on depends
        on how many of them are accepted. So is each step if the drafter needs its tokens.
        """
        updates = self._read() if self._must_read() else []
        scheduled = self._scheduler.schedule()
        started = self._start(scheduled) if scheduled else None
        updates += self._read()
        if started is not None:
            started.step.sample()
        self._scheduler.computed(scheduled)
        self._started = started
        self._steps += len(scheduled) > 0
        self._count(len(updates))
        return updates

    def metrics(self) -> Metrics:
        pool = self._cache.pool
        return Metrics(
            running=len(self._scheduler.running),
            waiting=len(self._scheduler.waiting),
            pages=pool.count,
            pages_used=pool.used,
            prompt_tokens=self._scheduler.prompt_tokens,
            cached_tokens=self._scheduler.cached_tokens,
            generated_tokens=self._generated,
            tokens_per_second=self._rate(),
            preemptions=self._scheduler.preemptions,
            steps=self._steps,
            queue_age_seconds=self._scheduler.queue_age(),
            queue_seconds=self._scheduler.queue_seconds,
            admitted=self._scheduler.admitted,
            step_tokens=self._step_tokens,
            drafted_tokens=self._drafted,
            accepted_tokens=self._accepted,
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

    def _start(self, scheduled: Series[ScheduledTokens]) -> Started:
        drawing = [work for work in scheduled if work.last]
        has_drafts = self._drafter is not None and any(work.drafts for work in drawing)
        started = Started(self._runner.start(scheduled), drawing, has_drafts)
        self._step_tokens += sum([work.count for work in scheduled])
        if has_drafts:
            self._step_tokens += sum(len(work.drafts) for work in drawing)
        for work in drawing:
            work.sequence.unread += 1
        return started

    def _must_read(self) -> bool:
        if self._started is None:
            return False
        return self._started.has_drafts or (self._drafter is not None and self._drafter.waits)

    def _read(self) -> list[Update]:
        started, self._started = self._started, None
        if started is None:
            return []
        samples = started.step.sampled()
        if not started.has_drafts:
            pairs = zip(started.drawing, samples, strict=True)
            return [self._take(work.sequence, sampled) for work, sampled in pairs if not work.sequence.gone]
        updates: list[Update] = []
        row = 0
        for work in started.drawing:
            past = row + 1 + len(work.drafts)
            if not work.sequence.gone:
                updates += self._verify(work, samples[row:past])
            row = past
        return updates

    def _verify(self, work: ScheduledTokens, samples: Series[Sampled]) -> Iterator[Update]:
        """Yield the first update, and one more after each draft that is what was sampled before it."""
        sequence, accepted = work.sequence, 0
        yield self._take(sequence, samples[0])
        for draft, before, sampled in zip(work.drafts, samples, samples[1:], strict=False):
            if sequence.gone or draft != before.token:
                break
            accepted += 1
            sequence.computed += 1
            sequence.unread += 1
            yield self._take(sequence, sampled)
        if self._drafter is not None and not sequence.gone and work.drafts:
            self._drafter.verified(sequence, len(work.drafts), accepted)
        self._drafted += len(work.drafts)
        self._accepted += accepted

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
