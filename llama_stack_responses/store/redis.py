"""Records in one Redis or Valkey server, or in one partition of a cluster, which any number of processes may share.

Keys under the prefix: `r:KEY`, a string for each record, with its version and expiry before its value; `index`, a
sorted set of all keys in the order of their bytes; `expiry`, a sorted set of the expiring keys by expiry time; `made`,
which stays when a store has no records any more, with the number of its partitions if it has several; `c:ID`, for one
minute, for each commit that was applied, or that is not to be applied any more; and, of a snapshot, `backup`, `old` and
`o:KEY`. Scripts (`redis_scripts.py`) change them together, so a commit is atomic and takes one round trip. The script
of a commit publishes its notifications on `w:NAME`.

In a cluster, the prefix has a hash tag: all keys and channels of a partition are in one slot, so on one primary.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Final

from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import NoPermissionError

from ..core.errors import ApiError
from .commit_deadline import APPLIED_SECONDS, TOO_LATE, TRIES, CommitDeadline, too_late
from .connection_slots import NotSent
from .durability import REDIS_INFO, losses_of_redis
from .records import (
    Condition,
    Conflict,
    Delete,
    Ensure,
    Occupancy,
    Op,
    PubSub,
    Put,
    Record,
    Unanswered,
    VersionIs,
    Write,
    after_prefix,
    begins_to_free,
    woken_by,
    writes_of,
)
from .redis_cluster import ClusterConnections
from .redis_connections import Access, LoopConnections, ServerConnections
from .redis_errors import NoAnswer
from .redis_occupancy import occupancy_of
from .redis_pubsub import PUBSUB_SILENCE_SECONDS, RedisPubSub
from .redis_scripts import IN_CLUSTER, ON_SERVER, Script
from .redis_sentinel import is_sentinel

_SETTLED: Final = b"settled"
"""Value of `c:ID` for a commit that is not to be applied any more."""
TIMEOUT: Final = 5.0
"""Maximum seconds for connecting, for one answer, and for a free connection."""

_ACKNOWLEDGED_SECONDS: Final = 1.0
"""Maximum seconds for replicas to acknowledge a commit."""
_TOO_FEW: Final = "The response store's server has too few replicas that acknowledge what it writes."

_PAGE_ROWS: Final = 500
_PAGE_BYTES: Final = 4 * 2**20
"""Size of a page of a snapshot, which the server reads at once."""


class RedisRecords:
    """Records in Redis 6.2 or newer, or Valkey; in a cluster, Redis 7.0 or newer, or Valkey.

    A commit is as durable as the server's configuration: with `appendonly yes` and `appendfsync always` it survives a
    crash of the server; with `everysec` the last second may be lost.

    Args:
        url: `redis://` or, with TLS, `rediss://`, with user and database; its query holds further settings of the
            `redis` package, such as `ssl_ca_certs`. Or the address of Sentinels (`redis_sentinel.py`). Of a cluster,
            some of its nodes, with commas, and no database.
        password: the user's password, if it is not in the URL.
        prefix: the prefix of all keys, so that several stacks can share a server.
        connections: maximum number of connections of this process, to each server, without the one of a subscription.
        timeout: maximum seconds for connecting, for one answer, and for a free connection.
        clock: returns seconds since the epoch; None uses the server's clock, which all processes share.
        sentinel_password: the password of the Sentinels, if the URL names some and they need one.
        partition: the number of the partition in a cluster; None for a server that is no cluster.
        applied_seconds: a commit is applied within these, or never.
        replicas: how many replicas have to have a commit before it counts as acknowledged. One that too few have is
            `Unanswered`: it is lost if the server dies before they have it. It can be read before: see `replicated`.
        shared: the connections, which other partitions use too; None for connections of its own.
    """

    transactional: Final = True

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "responses:",
        connections: int = 16,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] | None = None,
        pubsub_silence: float = PUBSUB_SILENCE_SECONDS,
        sentinel_password: str | None = None,
        partition: int | None = None,
        applied_seconds: float = APPLIED_SECONDS,
        replicas: int = 0,
        shared: LoopConnections | None = None,
    ) -> None:
        self._pubsub_silence = pubsub_silence
        self._timeout = timeout
        access = Access(url, password, sentinel_password, timeout)
        self._in_cluster = partition is not None
        self._has_replicas = self._in_cluster or is_sentinel(url)
        self._prefix = f"{{{prefix}{partition}}}:" if self._in_cluster else prefix
        self._index, self._expiry, self._made, self._backup, self._old = (
            f"{self._prefix}{name}" for name in ("index", "expiry", "made", "backup", "old")
        )
        self._scripts = IN_CLUSTER if self._in_cluster else ON_SERVER
        self._publish = "SPUBLISH" if self._in_cluster else "PUBLISH"
        self._clock, self._replicas = clock, replicas
        self._id = secrets.token_hex(8)
        self._applied_seconds, self._server = applied_seconds, ""
        kind = ClusterConnections if self._in_cluster else ServerConnections
        self._connections = shared or LoopConnections(kind, access, connections)

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of the server."""
        return self._clock is None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if not keys:
            return {}
        rows = [self._row(key) for key in dict.fromkeys(keys)]
        arguments = [self._now(), "" if max_bytes is None else max_bytes]
        return dict(_records(await self._run(self._scripts.get_many, rows, arguments)))

    async def get_or_floors(
        self, keys: Sequence[str], floors: Mapping[str, tuple[str, str]], *, max_bytes: int | None = None
    ) -> dict[str, Record]:
        """Return what `Floored` says."""
        if not keys:
            return {}
        different = dict.fromkeys(keys)
        bounds = [bound for key in different for bound in floors.get(key, ("", ""))]
        arguments = [self._now(), "" if max_bytes is None else max_bytes, *bounds]
        rows = [self._index, *map(self._row, different)]
        return dict(_records(await self._run(self._scripts.get_or_floors, rows, arguments)))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        writes = writes_of(ops)
        # The id makes a commit idempotent: a retry after a lost answer finds that it was applied.
        commit = f"{self._prefix}c:{secrets.token_urlsafe(16)}"
        keys = [self._index, self._expiry, self._made, self._backup, self._old, commit]
        keys += [self._row(each.key) for each in conditions if isinstance(each, VersionIs)]
        keys += [self._row(each.key) for each in writes]
        arguments: list[Any] = [len(conditions)]
        for condition in conditions:
            arguments += _condition(condition)
        for op in writes:
            arguments += _op(op)
        for name in woken_by(ops):
            arguments += [self._publish, name, self._id]
        script = self._scripts.freeing_commit if begins_to_free(writes) else self._scripts.commit
        for _ in range(TRIES):
            server = self.server_of()
            failed = await self._sent(script, commit, keys, arguments)
            # A commit that conflicts with what one server alone has would not if that server died.
            if failed != [TOO_LATE] and (not failed or await self.replicated(0, server)):
                break
        else:
            raise too_late()
        if failed:
            raise Conflict([conditions[number] for number in failed])
        if self._replicas and writes:
            await self._acknowledged(commit)

    async def _acknowledged(self, commit: str) -> None:
        """Wait until the replicas have a commit.

        Raises:
            Unanswered: not enough have it in time.
        """
        try:
            await self._commit_replicated(commit)
        except ApiError as error:
            raise Unanswered(error.message, partial(self._settle, commit)) from error

    def server_of(self, _tag: int = 0) -> str:
        """Return what `Replicated` says: all tags are on one server."""
        return self._connections.ready().known_address(self._made)

    async def replicated(self, _tag: int, server: str) -> bool:
        """Wait as `Replicated` says; return at once if no replicas have to have a commit."""
        if not self._replicas:
            return True
        await self._write_replicated("SET", f"{self._prefix}read", "", "EX", 60)
        # It is not known which one was asked just after the map of slots was read.
        return bool(server) and self.server_of() == server

    async def _commit_replicated(self, commit: str) -> None:
        """Wait until enough replicas have a commit.

        Raises:
            ApiError: 503, the server has it no more, or not enough replicas have it in time.
        """
        await self._write_replicated("EXPIRE", commit, 60)

    async def _write_replicated(self, command: str, key: str, *arguments: Any) -> None:
        """Write, and wait until enough replicas have that and all that was written before.

        Raises:
            ApiError: 503, nothing was written, or not enough replicas have it in time.
        """

        async def wait(client: Redis) -> bool:
            # Replicas acknowledge what a connection has written, and all that was written before. Repeated by the
            # client or at another node, all of it is repeated.
            async with client.pipeline(transaction=False) as pipe:
                if self._in_cluster:
                    pipe.execute_command("ASKING")
                pipe.execute_command(command, key, *arguments)
                pipe.execute_command("WAIT", self._replicas, int(_ACKNOWLEDGED_SECONDS * 1000))
                *_, is_written, replicas = await pipe.execute()
            return bool(is_written) and replicas >= self._replicas

        if not await self._connections.ready().call(key, wait):
            raise ApiError(503, _TOO_FEW, retry_after=1)

    async def _sent(self, script: Script, commit: str, keys: Sequence[str], arguments: Sequence[Any]) -> list[int]:
        """Send a commit, whose arguments begin with the number of conditions; return which of these do not hold."""
        if self.has_own_clock and not self._deadline.known:
            await self.now()
        deadline = self._deadline.next() if self.has_own_clock else None
        head = [self._now(), "" if deadline is None else deadline]
        try:
            answer: list[Any] = await self._run(script, keys, [*head, *arguments])
        except NoAnswer as error:
            raise Unanswered(error.message, partial(self._settle, commit)) from error
        except ApiError as error:
            # The server refused the last try. An earlier one, whose answer was lost, may have been applied.
            if isinstance(error, NotSent) or not await self._commit_was_applied(commit):
                raise
            return []
        self._deadline.told(float(answer[0]))
        return answer[1:]

    @property
    def _deadline(self) -> CommitDeadline:
        """What is known of the clock of the server with these records, which its other partitions have told too."""
        self._server = self._connections.ready().known_address(self._made) or self._server
        clocks = self._connections.clocks
        return clocks.get(self._server) or clocks.setdefault(self._server, CommitDeadline(self._applied_seconds))

    async def _settle(self, commit: str) -> bool:
        """Have the server take a commit for applied, so that it is not if it was not yet; return whether it was."""

        async def settle(client: Redis) -> bool:
            await client.set(commit, _SETTLED, ex=60, nx=True)
            return await client.get(commit) != _SETTLED

        was_applied = await self._connections.ready().call(commit, settle)
        if self._replicas:
            await self._commit_replicated(commit)
        return was_applied

    async def _commit_was_applied(self, commit: str) -> bool:
        """Return whether a commit was applied in the last minute.

        Raises:
            Unanswered: the server does not answer.
        """
        try:
            return bool(await self._run(self._scripts.committed, [commit], []))
        except ApiError as error:
            raise Unanswered(error.message, partial(self._settle, commit)) from error

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        if start >= end or limit < 1:
            return []
        args = [self._now(), start, end, limit, "REV" if reverse else "", "" if max_bytes is None else max_bytes]
        return _records(await self._run(self._scripts.range, [self._index], args))

    async def filled(self, ranges: Sequence[tuple[str, str]]) -> list[bool]:
        bounds = [bound for each in ranges for bound in each]
        return [bool(each) for each in await self._run(self._scripts.filled, [self._index], [self._now(), *bounds])]

    async def ranges(
        self, ranges: Sequence[tuple[str, str]], *, limit: int, reverse: bool = False
    ) -> list[list[tuple[str, Record]]]:
        bounds = [bound for each in ranges for bound in each]
        args = [self._now(), limit, "REV" if reverse else "", *bounds]
        answer, of_ranges = await self._run(self._scripts.ranges, [self._index], args)
        rows = _records(answer)
        return [[rows[number] for number in numbers] for numbers in of_ranges]

    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:
        return self._open_pubsub()

    @asynccontextmanager
    async def _open_pubsub(self) -> AsyncIterator[PubSub]:
        connections = self._connections.ready()
        client = await connections.listener(self._made)
        settings = (self._channels, self._id, self._timeout, self._pubsub_silence)
        address = partial(connections.known_address, self._made) if self._has_replicas else None
        pubsub = RedisPubSub(client, *settings, sharded=self._in_cluster, address=address)
        try:
            await pubsub.open()
            yield pubsub
        finally:
            await pubsub.close()

    async def pubsub_over(self, connection: PubSub) -> PubSub:
        """Receive the notifications of this partition over the connection of another one on the same server."""
        assert isinstance(connection, RedisPubSub)
        return await connection.joined(self._channels, self._id)

    @property
    def _channels(self) -> str:
        return f"{self._prefix}w:"

    async def now(self) -> float:
        if self._clock:
            return self._clock()
        now = float(await self._run(self._scripts.now, [self._made], [""]))
        self._deadline.told(now)
        return now

    async def sweep(self, now: float) -> int:
        swept: int = await self._run(self._scripts.sweep, [self._index, self._expiry], [now])
        return swept

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows, as `Snapshots` says. Writers keep the old rows, so all servers have to be of this version."""
        own_id, clock = secrets.token_hex(8), self._now()
        if not await self._run(self._scripts.begin_snapshot, [self._backup, self._old], [clock, own_id]):
            raise ApiError(503, "Another backup of this store is running, or was interrupted within the last minute.")
        more, reached = True, b""
        while more:
            page = [clock, own_id, _PAGE_ROWS, _PAGE_BYTES, reached]
            answer = await self._run(self._scripts.next_snapshot, [self._backup, self._old, self._index], page)
            if not answer:
                raise ApiError(503, "The backup was interrupted, or took too long between two reads: begin it again.")
            now, more, reached = await self.now(), bool(answer[0]), answer[1]
            rows = [_stored(key, value) for key, value in zip(answer[2::2], answer[3::2], strict=True)]
            yield [row for row in rows if row.expires_at is None or row.expires_at > now]

    async def size(self) -> int | None:
        """Return the memory of the whole server: it does not count that of some keys. None if this user may not ask."""
        memory = await self._info("memory")
        return None if memory is None else int(memory["used_memory"])

    async def free(self) -> int | None:
        """Return what is left of the server's `maxmemory`; None without one, or if this user may not ask."""
        memory = await self._info("memory")
        return max(0, memory["maxmemory"] - memory["used_memory"]) if memory and memory.get("maxmemory") else None

    async def losses(self) -> Mapping[str, str] | None:
        """Return how the server may lose records; None if this user may not ask, or the server does not say."""
        info = await self._info(*REDIS_INFO)
        return None if info is None else losses_of_redis(info)

    async def exists(self) -> bool:
        # A node of a cluster answers about one key as a single server does, and refuses two that may be on several.
        keys = [self._made] if self._in_cluster else [self._made, self._index]
        return bool(await self._connections.ready().call(self._made, lambda client: client.exists(*keys)))

    async def server(self) -> str:
        """Return the address of the server with this partition."""
        return await self._connections.ready().address(self._made)

    @property
    def hash_slot(self) -> int | None:
        """The slot of this partition; None on a server that is no cluster."""
        return key_slot(self._made.encode()) if self._in_cluster else None

    async def occupancy(self) -> Occupancy:
        """Return how many records there are, what they take, and who has copies; as `Occupied`."""
        keys = (self._index, [self._expiry], f"{self._prefix}r:")
        return await self._connections.ready().call(self._made, lambda client: occupancy_of(client, *keys))

    async def made_with(self, number: int, *, makes: bool) -> int | None:
        """Return with how many partitions the store was made, of which this is the first; as `Numbered`."""

        async def ask(client: Redis) -> bytes | None:
            if makes and number > 1:
                await client.set(self._made, str(number), nx=True)
            made = await client.get(self._made)
            return made if isinstance(made, bytes) else None

        made = await self._connections.ready().call(self._made, ask)
        return None if made is None else int(made or 1)

    async def close(self) -> None:
        await self._connections.close()

    def _now(self) -> str:
        return repr(self._clock()) if self._clock else ""

    def _row(self, key: str) -> str:
        """Return the key at the server of the record with this key."""
        return f"{self._prefix}r:{key}"

    async def _run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        call = partial(script.run, keys=keys, arguments=[self._prefix, *arguments])
        return await self._connections.ready().call(keys[0], call)

    async def _info(self, *sections: str) -> dict[str, Any] | None:
        """Return the fields of sections of `INFO` of the server with these records; None if this user may not ask."""

        async def ask(client: Redis) -> dict[str, Any] | None:
            # A former primary answers `INFO` like any other, and has no append-only file while it copies from another
            # one. A key has it say that the records are elsewhere.
            await client.exists(self._made)
            try:
                answers = [await client.info(section) for section in sections]
            except NoPermissionError:
                return None
            return {name: value for answer in answers for name, value in answer.items()}

        return await self._connections.ready().call(self._made, ask)


def cluster_parts(
    url: str, partitions: int, *, password: str | None = None, prefix: str, connections: int = 16, **more: Any
) -> list[RedisRecords]:
    """Return the partitions of a store in a cluster, which share their connections.

    Args:
        more: further arguments of `RedisRecords`.
    """
    access = Access(url, password, None, more.get("timeout", TIMEOUT))
    shared = LoopConnections(ClusterConnections, access, connections)
    return [
        RedisRecords(url, password=password, prefix=prefix, partition=number, shared=shared, **more)
        for number in range(partitions)
    ]


def _records(answer: Sequence[Any]) -> list[tuple[str, Record]]:
    rows = zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    return [(key.decode("ascii"), Record(value, version)) for key, version, value in rows]


def _stored(key: bytes, value: bytes) -> Put:
    """Return the row of a stored value: `VERSION EXPIRY VALUE`."""
    _, expiry, rest = value.split(b" ", 2)
    return Put(key.decode("ascii"), rest, float(expiry) if expiry else None)


def _condition(condition: Condition) -> list[Any]:
    if isinstance(condition, VersionIs):
        return ["version", "" if condition.version is None else condition.version]
    return ["empty", condition.prefix, after_prefix(condition.prefix), condition.but or ""]


def _op(op: Write) -> list[Any]:
    match op:
        case Put():
            return ["put", op.value, _expiry(op.expires_at)]
        case Ensure():
            return ["ensure", op.value, _expiry(op.expires_at)]
        case Delete():
            return ["delete"]


def _expiry(expires_at: float | None) -> str:
    return "" if expires_at is None or math.isinf(expires_at) else repr(expires_at)
