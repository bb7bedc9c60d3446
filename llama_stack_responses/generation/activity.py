"""Counts of the work of this server, by user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Self

from ..chat.estimate import estimated_tokens_of_items
from ..core.errors import ApiError
from ..core.lru_cache import LruCache
from ..core.owner import Owner
from ..stream.assembler import Assembler
from ..stream.usage import Usage
from ..telemetry.instrumentation import RoundOperation

_MAX_OWNERS: Final = 1024
"""Maximum number of users whose counts are kept; those seen least recently are dropped."""

_FIELDS: Final = {"completed": "completed", "incomplete": "incomplete", "cancelled": "cancelled", "failed": "failed"}


@dataclass(slots=True)
class Counts:
    """The work of this server for one user since it started.

    Attributes:
        requests: responses begun.
        completed, incomplete, cancelled: responses that ended so.
        failed: those that failed, and requests that were refused.
        rounds: finished model rounds, with their tokens.
        tool_calls: finished calls of hosted tools, and those that failed.
        events: events of finished responses.
        first_tokens: rounds in which the model sent something, and the sum and the last of its delays in milliseconds.
    """

    requests: int = 0
    completed: int = 0
    incomplete: int = 0
    cancelled: int = 0
    failed: int = 0
    rounds: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    tool_calls: int = 0
    failed_tool_calls: int = 0
    events: int = 0
    first_tokens: int = 0
    first_tokens_ms: float = 0.0
    last_first_token_ms: float | None = None

    def round_ended(self, usage: Usage, first_chunk: float | None) -> None:
        """Count a model round; `first_chunk` is the delay of its first chunk in seconds, None if there was none."""
        self.rounds += 1
        self.input_tokens += usage.input_tokens
        self.output_tokens += usage.output_tokens
        if first_chunk is not None:
            self.first_tokens += 1
            self.last_first_token_ms = round(first_chunk * 1000, 1)
            self.first_tokens_ms += self.last_first_token_ms

    def tool_ended(self, *, failed: bool) -> None:
        """Count a call of a hosted tool."""
        self.tool_calls += 1
        self.failed_tool_calls += failed

    def ended(self, status: str | None, events: int) -> None:
        """Count the end of a response; its status is None if that is counted by itself."""
        if status:
            setattr(self, _FIELDS[status], getattr(self, _FIELDS[status]) + 1)
        self.events += events

    def as_json(self) -> dict[str, Any]:
        """Return the counts as the page reads them."""
        counts = asdict(self)
        first = {
            "count": counts.pop("first_tokens"),
            "sum": counts.pop("first_tokens_ms"),
            "last": counts.pop("last_first_token_ms"),
        }
        return {**counts, "first_token_ms": first}


@dataclass(slots=True)
class Running:
    """A response that this server generates.

    Attributes:
        assembler: builds it.
        items: the history and the input.
        stored: whether it is or will be stored.
        streamed: whether a client reads its stream.
        owner: its owner.
        end: ends it with an error, also while it waits for its model server or a tool.
        counted_events: its events up to the end of the last round whose tokens are counted.
        noticed_events: its events when they were counted last.
        quiet_since: when it was noticed that none has come since, in seconds since the epoch; None if one has.
        model_round: the model round that runs; None between rounds.
    """

    assembler: Assembler
    items: Sequence[Mapping[str, Any]]
    stored: bool
    streamed: bool
    owner: Owner
    end: Callable[[ApiError], None]
    counted_events: int = 0
    noticed_events: int = -1
    quiet_since: float | None = None
    model_round: RoundOperation | None = None

    def notice(self, now: float) -> None:
        """Notice whether an event has come since the last time."""
        if self.assembler.numbered != self.noticed_events:
            self.noticed_events, self.quiet_since = self.assembler.numbered, None
        elif self.quiet_since is None:
            self.quiet_since = round(now, 1)

    @property
    def used(self) -> Usage:
        """The tokens so far.

        The model server counts a round's tokens at its end. Until then, each event of the round stands for a token.
        """
        return self.assembler.used + Usage(output_tokens=self._uncounted_events)

    @property
    def estimated_round(self) -> tuple[int, int]:
        """The approximate input and output tokens of the round that runs, for which each event stands for a token."""
        read = estimated_tokens_of_items(self.items) + self.assembler.used.output_tokens
        return read, self._uncounted_events

    @property
    def _uncounted_events(self) -> int:
        return self.assembler.numbered - self.counted_events


class RunningEntry:
    """Shows a response as running within a block."""

    __slots__ = ("_activity", "_owner", "_running")

    def __init__(self, activity: Activity, owner: Owner, running: Running) -> None:
        self._activity = activity
        self._owner = owner
        self._running = running

    def __enter__(self) -> Self:
        own = self._activity.running.setdefault(self._owner.identity, {})
        own[self._running.assembler.response["id"]] = self._running
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        own = self._activity.running.get(self._owner.identity, {})
        own.pop(self._running.assembler.response["id"], None)
        if not own:
            self._activity.running.pop(self._owner.identity, None)


class Activity:
    """The counts of this server, and the responses that it generates now.

    Attributes:
        running: those responses by id, by the tenant and name of their owner.
    """

    def __init__(self) -> None:
        self.running: dict[tuple[str, str], dict[str, Running]] = {}
        self._by_owner: LruCache[tuple[str, str], Counts] = LruCache(_MAX_OWNERS)

    def runs(self, owner: Owner, running: Running) -> RunningEntry:
        """Show a response as running within the block."""
        return RunningEntry(self, owner, running)

    def now(self, owner: Owner) -> dict[str, Any]:
        """Return a user's counts, with what running responses have sent so far."""
        running = list(self.running.get(owner.identity, {}).values())
        return {"running": len(running), **_with_running(self.of(owner), running).as_json()}

    def owners(self) -> list[tuple[str, str]]:
        """Return the tenants and names of the users whose counts are kept."""
        return self._by_owner.keys()

    def totals(self, identity: tuple[str, str]) -> Counts:
        """Return what `now` counts of a user, by tenant and name."""
        counts = self._by_owner.peek(identity) or Counts()
        return _with_running(counts, list(self.running.get(identity, {}).values()))

    def of(self, owner: Owner) -> Counts:
        """Return the counts of a user."""
        counts = self._by_owner.get(owner.identity)
        if counts is None:
            counts = Counts()
            self._by_owner.set(owner.identity, counts)
        return counts


def _with_running(counts: Counts, running: Sequence[Running]) -> Counts:
    """Return counts with what running responses have sent so far."""
    events = counts.events + sum(one.assembler.numbered for one in running)
    tokens = counts.output_tokens + sum(one.assembler.numbered - one.counted_events for one in running)
    current = (one.model_round for one in running if one.model_round)
    delays = [round(each.first_chunk * 1000, 1) for each in current if each.first_chunk is not None]
    return replace(
        counts,
        events=events,
        output_tokens=tokens,
        first_tokens=counts.first_tokens + len(delays),
        first_tokens_ms=counts.first_tokens_ms + sum(delays),
        last_first_token_ms=delays[-1] if delays else counts.last_first_token_ms,
    )
