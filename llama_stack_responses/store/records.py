"""Records: the key-value store that everything durable stands on.

A backend offers four things: many keys read in one round trip, a commit that
happens whole or not at all and only if its conditions hold, an ordered range,
and expiry. Everything else (responses, histories, references between them) is
built above it, so a new backend is one small class that passes
`tests/contract/test_records.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, Protocol

from ..core.errors import ApiError

AWAY: Final = 503
"""The status of a call's error while the store cannot be reached or does not answer, is full or locked."""


@dataclass(frozen=True, slots=True)
class Record:
    """A stored value. `version` is 1 for a fresh key and one more after each `Put`."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Put:
    """Write `key`, whether it is there or not. `expires_at` is in seconds since the epoch; None is never."""

    key: str
    value: bytes
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Ensure:
    """Write `key` if it is absent; if it is there, leave value, version and expiry as they are."""

    key: str
    value: bytes
    expires_at: float | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove `key`; nothing happens if it is absent."""

    key: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Tell whoever watches for `name`, in any other process, once the commit is made. It may get lost."""

    name: str


@dataclass(frozen=True, slots=True)
class VersionIs:
    """`key` has exactly this version; None says that it is absent.

    Versions tell writes to one life of a key apart: a key that was deleted and written again starts at 1 again.
    """

    key: str
    version: int | None


@dataclass(frozen=True, slots=True)
class Empty:
    """No key begins with `prefix` (at least one character), other than the key `but`.

    With it, shared content can be dropped without a race: who drops it commits `Delete(content)` on condition
    `Empty("references of content")`; who uses it commits `Put(reference)` on condition `VersionIs(content, ...)`.
    """

    prefix: str
    but: str | None = None


type Write = Put | Ensure | Delete
type Op = Write | Wake
type Condition = VersionIs | Empty


class Conflict(Exception):  # noqa: N818 - a condition that did not hold is an answer, not an error
    """A commit was not made, because of `failed`: all of its conditions that did not hold."""

    def __init__(self, failed: Sequence[Condition]) -> None:
        super().__init__(f"the store changed: {', '.join(map(repr, failed))}")
        self.failed = tuple(failed)


class Unanswered(ApiError):  # noqa: N818 - a kind of 503
    """No answer came to a commit: nobody may take it for made, nor for not made."""

    def __init__(self, message: str) -> None:
        super().__init__(AWAY, message, retry_after=1)


class Watch(Protocol):
    """Hears what other processes wake, over a connection of its own, which is lost with the first error."""

    async def listen(self, names: Collection[str]) -> None:
        """Hears what wakes these names too, as soon as `heard` has each for the first time.

        Raises:
            ApiError: 503, the connection is lost.
        """

    async def leave(self, names: Collection[str]) -> None:
        """Hears no longer what wakes these names.

        Raises:
            ApiError: 503, the connection is lost.
        """

    async def heard(self) -> str:
        """The next name: one that was woken, or is listened for from now on.

        Raises:
            ApiError: 503, the connection is lost.
        """


class Records(Protocol):
    """A transactional key-value store.

    Keys are ASCII and ordered by their bytes. A key whose `expires_at` has passed is absent for every call and every
    condition. A call that the store cannot serve (locked, full, damaged, unreachable) raises `ApiError` 503. Then a
    commit has written nothing, unless the error is `Unanswered`. Instances may be made in one event
    loop and used in another, and after `close` in yet another.
    """

    @property
    def transactional(self) -> bool:
        """Whether commits are one step for all processes on the store: only then can work be handed out by them."""

    async def get_many(self, keys: Sequence[str]) -> dict[str, Record]:
        """The records of those `keys` that are there, read in one round trip."""

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        """Do `ops` in order, all or nothing, if each of `conditions` holds in the state before them.

        What a returned commit wrote survives the death of the process. A call that is cancelled may have been made.

        Raises:
            Conflict: at least one condition does not hold; nothing was written.
            Unanswered: the answer was lost; the commit was made, or is still on its way, or was not made.
        """

    async def range(self, start: str, end: str, *, limit: int, reverse: bool = False) -> list[tuple[str, Record]]:
        """At most `limit` records with start <= key < end, in the order of their keys, or from the last backwards."""

    def watch(self) -> AbstractAsyncContextManager[Watch] | None:
        """Hears each `Wake` of other processes; None if they cannot be heard on this store.

        Entering it raises `ApiError` 503 if they cannot be heard now.
        """

    async def now(self) -> float:
        """The time, in seconds since the epoch, on the one clock by which keys expire."""

    async def sweep(self, now: float) -> int:
        """Remove records that expired by `now` (seconds since the epoch): a bounded number, which is returned."""

    async def close(self) -> None:
        """Give back threads, files and connections. The next call opens them again."""


async def committed(records: Records, ops: Sequence[Op], conditions: Sequence[Condition]) -> bool:
    """Makes a commit if its conditions hold; whether they did."""
    try:
        await records.commit(ops, conditions)
    except Conflict:
        return False
    return True


UNTRUSTED: Final = (
    "The response store's server shows a certificate that is not trusted, or not its own: check the name of its host, "
    "and the authority that the store's url trusts."
)
"""What a server is refused with that does not prove who it is."""


def after_prefix(prefix: str) -> str:
    """The first key behind all keys that begin with `prefix`: the `end` of their range."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


async def pages_of(records: Records, prefix: str, size: int = 500) -> AsyncIterator[list[tuple[str, Record]]]:
    """All rows below a prefix in the order of their keys, at most `size` at a time."""
    start = prefix
    while rows := await records.range(start, after_prefix(prefix), limit=size):
        yield list(rows)
        start = rows[-1][0] + "\0"


def writes_of(ops: Sequence[Op]) -> list[Write]:
    """Those of a commit's ops that write, in their order."""
    return [op for op in ops if not isinstance(op, Wake)]


def woken_by(ops: Sequence[Op]) -> list[str]:
    """The names that a commit wakes, each once."""
    return list(dict.fromkeys(op.name for op in ops if isinstance(op, Wake)))
