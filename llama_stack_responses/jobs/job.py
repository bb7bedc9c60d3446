"""A job of a background response: its state, how far it is, and the fence of its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from typing import Final, Literal, NamedTuple, Self

from ..concurrency.offloading import in_thread_if_large
from ..core.owner import Owner
from ..core.types import Json
from ..store import codec
from ..store.content_names import Hasher
from ..store.decoder import Decoder
from ..store.records import Condition, Delete, Notify, Op, Record, VersionIs

type Verdict = Literal["cancelled", "failed"]

QUEUED_EVENTS: Final = 2
"""The number of events that a queued response has: those of `Assembler.enqueue`."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job's state, as its `j/` row stores it.

    Attributes:
        owner: principal, attributes and tenant of the owner.
        order: its position in the queue.
        worker: the worker that holds it; None while it waits.
        tries: how often it was started, less the tries that do not count.
        verdict: how to end the job without running it any further; None to run it.
        lost: the workers whose lease expired while they held the job, one entry per try. Such a try counts until the
            worker is seen alive again: the lease of a living worker expires during an outage of the store.
        starts: how often it was started.
        began: when it was first started, in seconds since the epoch on the store's clock; None if it never was.
        model: the model of its request; empty if that names none.
    """

    owner: Owner
    order: str
    worker: str | None = None
    tries: int = 0
    verdict: Verdict | None = None
    lost: Sequence[str] = ()
    starts: int = 0
    began: float | None = None
    model: str = ""

    @property
    def unbegun(self) -> bool:
        """Whether the job waits and was never started."""
        return self.worker is None and not self.starts

    def encode(self) -> bytes:
        """Return the record's value."""
        return codec.encode(asdict(self) | {"owner": self.owner.encode()})

    @staticmethod
    def decode(record: Record) -> JobState:
        """Return the job of a record that `encode` wrote."""
        stored = codec.decode(record.value)
        return JobState(**codec.known(JobState, {**stored, "owner": Owner(*stored["owner"])}))


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The data with which a worker starts a job, or continues it after its last finished step.

    Attributes:
        body: the request's JSON without its input, which is stored with the response.
        said: the items that the finished rounds added to the conversation.
        output: the response's output after the finished rounds.
        usage: the tokens of the finished rounds: input, output, cached, cache writes, reasoning.
        usage_is_partial: whether tokens are missing there that are not known.
        image_usage: the tokens of generated images: input, input of images, output, output of images.
        rounds: number of finished rounds.
        waiting: the calls of the last round that are not answered yet, as fields of `ServerCall`.
        ends: whether the client has to act once these calls are answered.
        numbered: number of events sent up to this checkpoint; at first those of `Assembler.enqueue`, or 0 if the
            response was never queued.
        held_events: later events, held until the first of the calls is answered.
        sealed: the request's secrets, sealed for this job; None if it has none.
        tries: `JobState.tries` at this checkpoint: tries before it do not count towards `queue.MAX_TRIES`, since the
            job progressed.
        trace: the trace context headers of the request (W3C Trace Context).
        queued_at: when the job was queued, in seconds since the epoch; None if it never was.
        request_id: the id of the request, for log lines; None if it had none.
        repeated: the output indices of items of rounds that were cut off before this checkpoint and then repeated.
        timing: the times of its rounds and tool calls up to this checkpoint; None if there were none.
        version: the version of the row that it was read from; it is not stored.
    """

    body: Json
    said: Sequence[Json] = ()
    output: Sequence[Json] = ()
    usage: Sequence[int] = (0, 0, 0, 0, 0)
    rounds: int = 0
    waiting: Sequence[Json] = ()
    ends: bool = False
    numbered: int = QUEUED_EVENTS
    sealed: str | None = None
    tries: int = 0
    trace: Mapping[str, str] = field(default_factory=dict)
    queued_at: float | None = None
    held_events: Sequence[Json] = ()
    timing: Json | None = None
    request_id: str | None = None
    image_usage: Sequence[int] = ()
    repeated: Sequence[int] = ()
    usage_is_partial: bool = False
    version: int = field(default=0, compare=False)

    async def encode(self) -> bytes:
        """Return the record's value."""
        value = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "version"}
        return await in_thread_if_large(partial(codec.encode, value), value)

    @staticmethod
    async def decode(record: Record, decoder: Decoder) -> Checkpoint:
        """Return the checkpoint of a record that `encode` wrote."""
        [stored] = await decoder.decode([record.value])
        return Checkpoint(**{**codec.known(Checkpoint, stored), "version": record.version})


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was read or claimed, with its fence.

    Attributes:
        response_id: the id of its response.
        state: its state.
        version: the version of its `j/` row, which is the fencing token: after any change of the row, commits with this
            fence fail.
    """

    response_id: str
    state: JobState
    version: int

    @staticmethod
    def find(response_id: str, records: Mapping[str, Record]) -> Job | None:
        """Return the response's job, if its row is among the records, by key."""
        record = records.get(f"j/{response_id}")
        return Job(response_id, JobState.decode(record), record.version) if record else None

    @property
    def fence(self) -> Condition:
        """The condition that the job's row has not changed."""
        return VersionIs(f"j/{self.response_id}", self.version)

    def delete_ops(self) -> list[Op]:
        """Return the ops that delete the job."""
        state = self.state
        place = f"h/{state.worker}" if state.worker else f"q/{state.order}"
        rows = [f"j/{self.response_id}", f"k/{self.response_id}", f"{place}/{self.response_id}"]
        if not state.owner.is_anonymous:
            rows.append(f"{owner_prefix(state.owner)}{self.response_id}")
        return [*map(Delete, rows), Notify(self.response_id)]


class InQueue(NamedTuple):
    """What the row of a waiting job says.

    Attributes:
        owner: the name of the owner.
        model: the model of the request; empty if it names none.
    """

    owner: str
    model: str

    def encode(self) -> bytes:
        """Return the row's value."""
        return f"{self.owner} {self.model}".encode("utf-8", "surrogatepass")

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the result of `encode`."""
        owner, _, model = value.decode("utf-8", "surrogatepass").partition(" ")
        return cls(owner, model)


def name_of(owner: Owner) -> str:
    """Return the owner's name in keys, which does not depend on the owner's groups."""
    return Hasher(owner).owner


def owner_prefix(owner: Owner) -> str:
    """Return the prefix of the rows of this owner's background responses that have not ended."""
    return f"d/{name_of(owner)}/"
