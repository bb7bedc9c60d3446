"""The times of the rounds, tool calls and events of one response, and the chat requests that it sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from time import perf_counter
from typing import Any, Final, Self

from ..concurrency.offloading import in_thread_if_large
from ..core.json_blocks import dumps
from ..core.json_values import is_large
from ..core.owner import ANONYMOUS, Owner
from ..core.types import Json
from ..store import codec
from ..store.saving import Recording
from ..stream.usage import UNKNOWN, Usage
from ..telemetry.instrumentation import RoundOperation, ToolOperation
from .activity import Activity, Counts, Running, RunningEntry
from .event_times import EventTimes

_MAX_ROUNDS: Final = 256
_MAX_TOOL_CALLS: Final = 1000
_MAX_ADAPTATIONS: Final = 64
_MAX_OMITTED: Final = 16
_NAME_CHARACTERS: Final = 200

_STRING_CHARACTERS: Final = 20_000
"""Maximum characters of a string of a recorded chat request; longer ones are cut."""

_HEAD_CHARACTERS: Final = 1000
_MAX_DEPTH: Final = 64
_RECORDED_BYTES: Final = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Earlier:
    """The earlier tries at a response, as far as they are known.

    Attributes:
        began: seconds from the response's creation until the first try.
        tries: how many tries began, the present one included.
        requests: the number of their chat requests that are stored.
        events: the number of their events that are kept.
    """

    began: float
    tries: int
    requests: int
    events: int


@dataclass(slots=True)
class ToolRecord:
    """The result of a running call, as the call reports it.

    Attributes:
        failed: whether what it ran failed, although the call itself did not raise.
    """

    failed: bool = False


class RunningRecord(RunningEntry):
    """Shows and counts a response that runs within a block.

    Attributes:
        status: how the response ended; the block sets it.
    """

    __slots__ = ("_counts", "status")

    def __init__(self, activity: Activity, owner: Owner, running: Running, counts: Counts) -> None:
        super().__init__(activity, owner, running)
        self._counts = counts
        self.status = "failed"

    def __enter__(self) -> Self:
        self._counts.requests += 1
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        super().__exit__(kind)
        cancelled = kind is not None and issubclass(kind, asyncio.CancelledError)
        # Whether an error fails the response or refuses it is decided later, and then counted.
        status = "cancelled" if cancelled else self.status if kind is None else None
        self._counts.ended(status, self._running.assembler.numbered)


def round_fields(recorded: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of a recorded round: its times in milliseconds, its tokens and its kind.

    A round of which no tokens were reported, such as one that was cut off after the model had begun, has estimates.
    """
    names = ("start_ms", "first_token_ms", "end_ms", "input_tokens", "output_tokens", "cached_tokens", "kind")
    estimates = ("estimated_input_tokens", "estimated_output_tokens")
    return dict(zip((*names, *estimates), recorded, strict=False))


class RoundRecord:
    """Records a model round that runs within a block."""

    __slots__ = ("_kind", "_operation", "_timeline")

    def __init__(self, timeline: Timeline, operation: RoundOperation, kind: str) -> None:
        self._timeline = timeline
        self._operation = operation
        self._kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(self, *_: object) -> None:
        self._timeline.round_ended(self._operation, self._kind)


class Timeline:
    """The record of one response's course. It costs nothing per delta.

    Args:
        activity: counts what this server does; None to count nowhere.
        owner: the owner of the response.
        keeps_requests: whether the chat requests are recorded.

    Attributes:
        counts: the owner's counts.
        event_times: notes when events were ready.
        owner: as above.
    """

    __slots__ = (
        "_activity",
        "_adaptations",
        "_began",
        "_keeps_requests",
        "_left",
        "_omitted_tools",
        "_queue_ms",
        "_requests",
        "_rounds",
        "_running",
        "_stored_requests",
        "_tools",
        "_tries",
        "_truncated",
        "counts",
        "event_times",
        "owner",
    )

    def __init__(
        self, activity: Activity | None = None, owner: Owner = ANONYMOUS, *, keeps_requests: bool = False
    ) -> None:
        self._activity, self.owner = activity or Activity(), owner
        self.counts = self._activity.of(owner)
        self.event_times = EventTimes()
        self._keeps_requests = keeps_requests
        self._began = perf_counter()
        self._queue_ms = 0
        self._tries = 1
        self._running: Running | None = None
        self._rounds: list[Sequence[Any]] = []
        self._tools: list[Sequence[Any]] = []
        self._requests: list[bytes] = []
        self._stored_requests = 0
        self._left = _RECORDED_BYTES
        self._truncated = False
        self._adaptations = dict[str, None]()
        self._omitted_tools = list[str]()

    def resume(self, seconds: float, before: Mapping[str, Any] | None, earlier: Earlier | None = None) -> None:
        """Continue the recording of a response that was created this many seconds ago.

        Args:
            seconds: seconds from the response's creation until now.
            before: what an earlier worker recorded, as `progress` returned it; None for nothing.
            earlier: what is known of earlier tries; None if this is the first one.
        """
        self._began = perf_counter() - seconds
        self._queue_ms = round(seconds * 1000)
        if before:
            self._queue_ms = before["queue_ms"]
            self._rounds, self._tools = list(before["rounds"]), list(before["tools"])
            self._truncated, self._left = before["truncated"], before.get("left", _RECORDED_BYTES)
            self._adaptations = dict.fromkeys(before.get("adaptations", ()))
        self.event_times = EventTimes(seconds, before.get("events", ()) if before else ())
        if earlier:
            began, self._tries, self._stored_requests = round(earlier.began * 1000), earlier.tries, earlier.requests
            self.event_times.keep(earlier.events, self._cut_off(began))
            self._queue_ms = before["queue_ms"] if before else began

    def _cut_off(self, began: int) -> int:
        """Record the lost time, from the last recorded end until now; return its beginning."""
        ends = [mark[2] for mark in self._rounds] + [mark[1] for mark in self._tools]
        start: int = max([began, *(end for end in ends if end is not None)])
        self._add(self._rounds, (start, None, self._now(), None, None, None, "interrupted"), _MAX_ROUNDS)
        return start

    @property
    def rounds(self) -> Sequence[Sequence[Any]]:
        """The recorded rounds, each with the fields of `round_fields`."""
        return self._rounds

    def response(self, running: Running) -> RunningRecord:
        """Show and count the response that runs within the block."""
        self._running = running
        return RunningRecord(self._activity, self.owner, running, self.counts)

    def round(self, operation: RoundOperation, kind: str) -> RoundRecord:
        """Record the model round that runs within the block; `kind` is `answer` or `compaction`."""
        if self._running:
            self._running.model_round = operation
        return RoundRecord(self, operation, kind)

    def round_ended(self, operation: RoundOperation, kind: str) -> None:
        """Record a model round that has ended."""
        usage, seconds = operation.usage or Usage(), operation.seconds
        self.counts.round_ended(usage, operation.first_chunk)
        estimates = self._running.estimated_round if self._running and _is_unreported(operation) else ()
        if self._running:
            self._running.counted_events = self._running.assembler.numbered
            self._running.model_round = None
        end = self._now()
        start = end - round(seconds * 1000)
        first = None if operation.first_chunk is None else start + round(operation.first_chunk * 1000)
        tokens = (usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        self._add(self._rounds, (start, first, end, *tokens, kind, *estimates), _MAX_ROUNDS)

    @contextmanager
    def tool(self, operation: ToolOperation, item: Mapping[str, Any], name: str) -> Iterator[ToolRecord]:
        """Record the call of a tool that is run within the block, and that an item shows.

        A call whose block raises has failed; the block may set `failed` of one that does not raise.
        """
        record, raised = ToolRecord(), True
        try:
            yield record
            raised = False
        finally:
            failed = raised or record.failed
            self.counts.tool_ended(failed=failed)
            end = self._now()
            label = str(item.get("name") or name)[:_NAME_CHARACTERS]
            start = end - round(operation.seconds * 1000)
            self._add(self._tools, (start, end, item.get("id"), item["type"], label, failed), _MAX_TOOL_CALLS)

    async def requested(self, chat: Json, kind: str) -> None:
        """Record a chat request, if they are recorded; `kind` as for `round`."""
        number = self._stored_requests + len(self._requests)
        if not self._keeps_requests or number >= _MAX_ROUNDS:
            return
        head = {"round": number, "attempt": self._tries, "at_ms": self._now(), "kind": kind}
        encoded, size = await in_thread_if_large(partial(_encoded, chat, head, self._left), chat)
        self._left -= size
        self._requests.append(encoded)

    def adapted(self, changes: Iterable[str]) -> None:
        """Record how a chat request was changed for its model server, in words."""
        self._adaptations |= dict.fromkeys(islice(changes, _MAX_ADAPTATIONS - len(self._adaptations)))

    def left_out(self, tools: Iterable[str]) -> None:
        """Record the types of the request's tools that this stack has not, and that were left out."""
        self._omitted_tools = list(islice(tools, _MAX_OMITTED))

    def marks(self) -> Json:
        """Return the record without the chat requests."""
        return {
            "queue_ms": self._queue_ms,
            "tries": self._tries,
            "rounds": self._rounds,
            "tools": self._tools,
            "truncated": self._truncated,
            **({"adaptations": list(self._adaptations)} if self._adaptations else {}),
            **({"omitted_tools": self._omitted_tools} if self._omitted_tools else {}),
        }

    def progress(self) -> Json:
        """Return what the next worker needs to continue the recording."""
        return {**self.marks(), "events": self.event_times.copied(), "left": self._left}

    def take_requests(self) -> tuple[int, list[bytes]]:
        """Return the chat requests that are not stored yet, and the number of the first; they count as stored."""
        requests, first = self._requests, self._stored_requests
        self._requests, self._stored_requests = [], first + len(requests)
        return first, requests

    def recording(self) -> Recording:
        """Return the data that is stored with the response."""
        timing = {**self.marks(), "total_ms": self._now(), "events": self.event_times.ticks()}
        return Recording(timing, self._requests, self._stored_requests)

    def _now(self) -> int:
        return round((perf_counter() - self._began) * 1000)

    def _add(self, to: list[Sequence[Any]], mark: Sequence[Any], limit: int) -> None:
        if len(to) < limit:
            to.append(mark)
        else:
            self._truncated = True


def _is_unreported(operation: RoundOperation) -> bool:
    """Return whether the model had begun with an answer of which its server did not report the tokens."""
    usage = operation.usage or UNKNOWN
    return operation.first_chunk is not None and usage.is_partial and not usage.output_tokens


def _encoded(chat: Json, head: Json, left: int) -> tuple[bytes, int]:
    """Return the record of a chat request, without the request if that has more than `left` bytes, and its size.

    The size is that of the JSON: what is stored is compressed, and decompressed to be shown.
    """
    request = _cut(chat, _MAX_DEPTH)
    text = dumps(request)
    fits = len(text) <= left
    record = {
        **head,
        "bytes": len(text),
        "truncated": not fits or is_large(chat, len(text) + _STRING_CHARACTERS),
        "request": request if fits else None,
    }
    return codec.encode(record), len(text) if fits else 0


def _cut(value: Any, depth: int) -> Any:
    """Return a JSON value with long strings cut."""
    if isinstance(value, str):
        return value if len(value) <= _STRING_CHARACTERS else f"{value[:_HEAD_CHARACTERS]}... ({len(value)} characters)"
    if not depth:
        return "..."
    if isinstance(value, dict):
        return {name: _cut(each, depth - 1) for name, each in value.items()}
    return [_cut(each, depth - 1) for each in value] if isinstance(value, list | tuple) else value
