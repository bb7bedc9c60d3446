"""The rows of batches.

    bt/o/<of>/<batch>       a batch of an owner; the ids of batches are ordered by their times
    bt/c/<of>               its version grows with each batch that the owner creates
    bt/u/<of>/<batch>       a batch of an owner that has not ended
    bt/q/<batch>            there is work to do for the batch; the value is `<of>`, the version 1 while it queues lines
    bt/p/<batch>            the lease of the server that does it; it expires if that server dies
    bt/r/<batch>/<line>     the line is queued or runs; the value is the number of the try
    bt/i/<batch>/<line>     the custom ids of this line and of those after it, up to the next such row, until the files
                            are written, for which the input file is not needed
    bt/t/<batch>/<line>     the line is tried again: which try it will be, and when
    bt/d/<batch>/<line>     what the line ended with, until the files are written
    bt/n/<batch>/<line>     the same, in numbers, until they are added to the batch
    bt/x/<second>/<batch>   the files of the batch are deleted then; in hexadecimal. In a store with several partitions,
                            these rows are in the first one, and all others in that of their batch, or of the owner

`<of>` is a hash of the owner; lines are hexadecimal, from 1. The commit that queues a line's job writes its `bt/r/` row
on the condition that it has none of the first three rows, and that the version of the batch's `bt/q/` row is 1; the
commit of the job's end replaces that row by the others. Once the version is another, any server cancels what runs.
So each line ends exactly once, whichever servers die. A line's response has an id that names batch, line and try.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Self

from ...core.ids import new_ordered_id
from ...core.owner import Owner
from ...core.types import Json
from ...store import codec
from ...store.records import Delete, Op, Put

BATCHES: Final = "bt/o/"
WORK: Final = "bt/q/"
EXPIRING: Final = "bt/x/"

type Status = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]
type End = Literal["completed", "expired", "cancelled", "failed"]

_RESPONSE: Final = re.compile(r"resp_((?:p[0-9a-f]{3})?[0-9a-f]{24})([0-9a-f]{6})([0-9a-f]{2})")
_NO_TOKENS: Final = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch.

    Attributes:
        created_at, expires_at: seconds since the epoch.
        output_seconds: seconds after which its files expire; None for the default of the file store.
        sealed: the owner's own credentials for providers, sealed; None without any.
        end: what it becomes when it has been finalized.
        times: when it got into other states, by the names of the fields of the API, in seconds since the epoch.
        total: the number of its lines.
        completed, failed: those that have ended so.
        usage: their tokens: input, cached, output, reasoning, total.
        model: the model of all lines; None if they name several.
        line: the number of the next line that is queued.
        offset: where it begins in the input file.
        errors: why it failed, as the API has it.
    """

    id: str
    owner: Owner
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: float
    expires_at: float
    status: Status = "validating"
    end: End = "completed"
    metadata: Mapping[str, str] | None = None
    output_seconds: int | None = None
    sealed: str | None = None
    times: Mapping[str, int] = field(default_factory=dict)
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Sequence[int] = _NO_TOKENS
    model: str | None = None
    line: int = 1
    offset: int = 0
    errors: Sequence[Json] = ()
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def open(self) -> bool:
        """Whether lines may be queued, now or later."""
        return self.status in ("validating", "in_progress")

    @staticmethod
    def new_id(at: float, tag: int = 0) -> str:
        """Return an id for a batch that is created at a time; `tag` is that of its owner."""
        return new_ordered_id("batch", int(at * 1000), tag)

    def encode(self) -> bytes:
        """Return the value of its row."""
        stored = {each.name: getattr(self, each.name) for each in fields(self)}
        return codec.encode({**stored, "owner": self.owner.encode()}, small=True)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the result of `encode`."""
        stored = codec.known(cls, codec.decode(value))
        return cls(**{**stored, "owner": Owner(*stored["owner"])})


class Line(NamedTuple):
    """A try of a line of a batch.

    Attributes:
        batch: the id of the batch.
        number: the number of the line, from 1.
        attempt: the number of the try, from 1.
    """

    batch: str
    number: int
    attempt: int = 1

    @property
    def response_id(self) -> str:
        """The id of the response of this try."""
        return f"resp_{self.batch.removeprefix('batch_')}{self.number:06x}{self.attempt:02x}"

    @property
    def request_id(self) -> str:
        """The id of the line in the output."""
        return f"batch_req_{self.batch.removeprefix('batch_')}{self.number:06x}"

    @staticmethod
    def of_response(response_id: str) -> Line | None:
        """Return the line that a response belongs to; None if it belongs to none."""
        if match := _RESPONSE.fullmatch(response_id):
            return Line(f"batch_{match[1]}", int(match[2], 16), int(match[3], 16))
        return None

    def key(self, kind: Literal["r", "t", "d", "n", "i"]) -> str:
        """Return the key of its row of a kind."""
        return f"{line_rows(kind, self.batch)}{self.number:06x}"


class Named(NamedTuple):
    """A line of an input file.

    Attributes:
        number: its number, from 1.
        custom_id: what the client calls it.
    """

    number: int
    custom_id: str

    @staticmethod
    def put(batch_id: str, some: Sequence[Named]) -> Put:
        """Return the op that stores the custom ids of lines of a batch that follow each other."""
        return Put(Line(batch_id, some[0].number).key("i"), codec.encode([list(each) for each in some]))

    @classmethod
    def decode(cls, value: bytes) -> list[Self]:
        """Decode the value that `put` writes."""
        return [cls(*each) for each in codec.decode(value)]


class Retry(NamedTuple):
    """That a line is tried again.

    Attributes:
        attempt: which try it will be.
        due: when, in seconds since the epoch.
    """

    attempt: int
    due: float

    def put(self, line: Line) -> Put:
        """Return the op that stores it."""
        return Put(line.key("t"), codec.encode_small(list(self)))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        return cls(*codec.decode(value))


class Result(NamedTuple):
    """What a line ended with.

    Attributes:
        response: the id of its response; None if it was refused before it had one, or has none.
        stored: whether the response stays stored after the batch.
        status: the HTTP status that its request would have got; 0 if it was cancelled.
        body: the answer that it would have got; None if it is the response.
    """

    response: str | None
    stored: bool
    status: int
    body: Any = None

    def put(self, line: Line) -> Put:
        """Return the op that stores it."""
        return Put(line.key("d"), codec.encode(list(self)))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        return cls(*codec.decode(value))


class Counted(NamedTuple):
    """A line that has ended, in numbers.

    Attributes:
        completed: whether its result goes to the output file.
        usage: its tokens, as those of `Batch`.
    """

    completed: bool
    usage: Sequence[int] = _NO_TOKENS

    def put(self, line: Line) -> Put:
        """Return the op that stores it."""
        return Put(line.key("n"), codec.encode_small([self.completed, list(self.usage)]))

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        return cls(*codec.decode(value))


class Expiring(NamedTuple):
    """The files of a batch that expire.

    Attributes:
        owner: the owner of the batch.
        files: their ids.
    """

    owner: Owner
    files: Sequence[str]

    def put(self, batch_id: str, at: float) -> Put:
        """Return the op that has them deleted at a time, in seconds since the epoch."""
        value = codec.encode_small([self.owner.encode(), list(self.files)])
        return Put(f"{EXPIRING}{int(at):08x}/{batch_id}", value)

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode the value that `put` writes."""
        owner, files = codec.decode(value)
        return cls(Owner(*owner), files)


def ended_ops(line: Line, result: Result, counted: Counted) -> list[Op]:
    """Return the ops that end a line that is queued or runs."""
    return [result.put(line), counted.put(line), Delete(line.key("r"))]


def retry_ops(line: Line, due: float) -> list[Op]:
    """Return the ops with which a line that is queued or runs is tried again, from this time on."""
    return [Retry(line.attempt + 1, due).put(line), Delete(line.key("r"))]


def batch_key(of: str, batch_id: str) -> str:
    """Return the key of a batch of an owner."""
    return f"{BATCHES}{of}/{batch_id}"


def open_key(of: str, batch_id: str) -> str:
    """Return the key of the row that a batch of an owner has until it ends."""
    return f"bt/u/{of}/{batch_id}"


def line_rows(kind: str, batch_id: str) -> str:
    """Return the prefix of the rows of a kind that a batch has for its lines."""
    return f"bt/{kind}/{batch_id}/"


def line_of(key: str, attempt: int = 1) -> Line:
    """Return a try of the line of the key of a row."""
    _, _, batch, number = key.split("/")
    return Line(batch, int(number, 16), attempt)


def lease_key(batch_id: str) -> str:
    """Return the key of the lease of the server that works for a batch."""
    return f"bt/p/{batch_id}"


def counter_key(of: str) -> str:
    """Return the key of what counts the batches that an owner has created."""
    return f"bt/c/{of}"
