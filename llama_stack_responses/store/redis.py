"""Records in one Redis or Valkey server, which any number of server processes may share.

Keys under the prefix: `r:KEY`, a string for each record, with its version and expiry before its value; `index`, a
sorted set of all keys in the order of their bytes; `expiry`, a sorted set of the expiring keys by expiry time; `made`,
which stays when a store has no records any more; and `c:ID`, for one minute, for each commit that was applied. Scripts
change them together, so a commit is atomic and takes one round trip. The script of a commit publishes its notifications
on `w:NAME`.
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, Final, NamedTuple

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.commands.core import AsyncScript
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError

from ..core.errors import ApiError
from .connection_slots import ConnectionSlots, NotSent
from .durability import REDIS_INFO, losses_of_redis
from .records import (
    Condition,
    Conflict,
    Delete,
    Ensure,
    Op,
    PubSub,
    Put,
    Record,
    Unanswered,
    VersionIs,
    Write,
    after_prefix,
    woken_by,
    writes_of,
)
from .redis_errors import NoAnswer, errors_as_503
from .redis_pubsub import PUBSUB_SILENCE_SECONDS, RedisPubSub
from .redis_sentinel import is_sentinel, sentinel_pool

# Common part of the scripts. A record is "VERSION EXPIRY VALUE", with an empty expiry if it has none. `live` returns
# the version of a record that has not expired, and the offset of its value. ARGV[1] is the prefix, ARGV[2] the time,
# empty for the server's clock.
_COMMON: Final = """
local prefix, now = ARGV[1], tonumber(ARGV[2])
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local function live(key)
  local head = redis.call('GETRANGE', prefix .. 'r:' .. key, 0, 63)
  local version, expiry, start = string.match(head, '^(%d+) (%S*) ()')
  if version and (expiry == '' or tonumber(expiry) > now) then
    return tonumber(version), start
  end
end
"""

# ARGV[3]: the number of bytes of values that ends the answer, empty for no limit; then the keys.
_GET_MANY: Final = (
    _COMMON
    + """
local found, left = {}, tonumber(ARGV[3]) or math.huge
for i = 4, #ARGV do
  if left <= 0 then break end
  local version, start = live(ARGV[i])
  if version then
    local value = redis.call('GETRANGE', prefix .. 'r:' .. ARGV[i], start - 1, -1)
    found[#found + 1] = ARGV[i]
    found[#found + 1] = version
    found[#found + 1] = value
    left = left - #value
  end
end
return found
"""
)

# ARGV[3], ARGV[4]: start and end of the range; ARGV[5]: limit; ARGV[6]: 'REV' for descending order; ARGV[7]: as ARGV[3]
# above.
_RANGE: Final = (
    _COMMON
    + """
local from, to, limit, reverse = '[' .. ARGV[3], '(' .. ARGV[4], tonumber(ARGV[5]), ARGV[6] == 'REV'
local found, left = {}, tonumber(ARGV[7]) or math.huge
while #found < 3 * limit and left > 0 do
  local keys
  if reverse then
    keys = redis.call('ZRANGE', prefix .. 'index', to, from, 'BYLEX', 'REV', 'LIMIT', 0, limit)
  else
    keys = redis.call('ZRANGE', prefix .. 'index', from, to, 'BYLEX', 'LIMIT', 0, limit)
  end
  for _, key in ipairs(keys) do
    local version, start = live(key)
    if version and #found < 3 * limit and left > 0 then
      local value = redis.call('GETRANGE', prefix .. 'r:' .. key, start - 1, -1)
      found[#found + 1] = key
      found[#found + 1] = version
      found[#found + 1] = value
      left = left - #value
    end
  end
  if #keys < limit then break end
  if reverse then to = '(' .. keys[#keys] else from = '(' .. keys[#keys] end
end
return found
"""
)

# Defines `keep_old`, to be called before a row is written. While a snapshot is being read, the first write of a row
# that it has not reached keeps the row as it was: `o:KEY`, '' for none, listed in `old`. `backup` is the snapshot's id
# and the last key that it has read. Keys are compared by bytes: Lua's own comparison depends on the server's locale.
_KEEP_OLD: Final = """
local reached = string.match(redis.call('GET', prefix .. 'backup') or '', '^%S+ (.*)$')
local function is_ahead(key)
  for index = 1, math.min(#key, #reached) do
    local one, other = string.byte(key, index), string.byte(reached, index)
    if one ~= other then return one > other end
  end
  return #key > #reached
end
local function keep_old(key)
  if reached and is_ahead(key) and not redis.call('ZSCORE', prefix .. 'old', key) then
    redis.call('SET', prefix .. 'o:' .. key, redis.call('GET', prefix .. 'r:' .. key) or '', 'EX', 86400)
    redis.call('ZADD', prefix .. 'old', 0, key)
    redis.call('EXPIRE', prefix .. 'old', 86400)
  end
end
"""

# ARGV[3]: the snapshot's id. Begins it; returns 0 if another is being read.
_BEGIN_SNAPSHOT: Final = (
    _COMMON
    + """
if redis.call('EXISTS', prefix .. 'backup') == 1 then return 0 end
for _, key in ipairs(redis.call('ZRANGE', prefix .. 'old', 0, -1)) do redis.call('DEL', prefix .. 'o:' .. key) end
redis.call('DEL', prefix .. 'old')
redis.call('SET', prefix .. 'backup', ARGV[3] .. ' ', 'EX', 60)
return 1
"""
)

# ARGV[3]: the snapshot's id; ARGV[4]: row limit; ARGV[5]: bytes above which a page ends; ARGV[6]: the last key that the
# caller has read. Returns whether more rows follow, the last key that was read, then each key and its stored value;
# nothing if the snapshot is lost, or the answer to an earlier call was.
_NEXT_SNAPSHOT: Final = (
    _COMMON
    + """
local id, reached = string.match(redis.call('GET', prefix .. 'backup') or '', '^(%S+) (.*)$')
if id ~= ARGV[3] or reached ~= ARGV[6] then return {} end
local limit, max_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local from = reached == '' and '-' or '(' .. reached
local keys = redis.call('ZRANGE', prefix .. 'index', from, '+', 'BYLEX', 'LIMIT', 0, limit)
local taken, size = 0, 0
while taken < #keys and size < max_bytes do
  taken = taken + 1
  size = size + redis.call('STRLEN', prefix .. 'r:' .. keys[taken])
end
local more = taken < #keys or #keys == limit
local to = more and '[' .. keys[taken] or '+'
local found, was = {more and 1 or 0, keys[taken] or ''}, {}
for _, key in ipairs(redis.call('ZRANGE', prefix .. 'old', from, to, 'BYLEX')) do
  local value = redis.call('GET', prefix .. 'o:' .. key)
  if not value then return {} end
  was[key] = true
  if value ~= '' then
    found[#found + 1] = key
    found[#found + 1] = value
  end
  redis.call('DEL', prefix .. 'o:' .. key)
end
redis.call('ZREMRANGEBYLEX', prefix .. 'old', from, to)
for index = 1, taken do
  local value = not was[keys[index]] and redis.call('GET', prefix .. 'r:' .. keys[index])
  if value then
    found[#found + 1] = keys[index]
    found[#found + 1] = value
  end
end
if more then
  redis.call('SET', prefix .. 'backup', id .. ' ' .. keys[taken], 'EX', 60)
else
  redis.call('DEL', prefix .. 'backup')
end
return found
"""
)

# ARGV[3]: the commit's id; ARGV[4]: the number of conditions; then each condition as `version KEY VERSION` ('' is
# absent) or `empty PREFIX END BUT`, then each op as `put KEY VALUE EXPIRY`, `ensure KEY VALUE EXPIRY`, `delete KEY` or
# `wake NAME SENDER`. `wake` fails silently if the user may not publish: the writes count all the same. Returns the
# numbers of the conditions that do not hold.
_COMMIT: Final = (
    _COMMON
    + """
if redis.call('EXISTS', prefix .. 'c:' .. ARGV[3]) == 1 then return {} end
local at = 5
local function empty(start, stop, but)
  local from = '[' .. start
  while true do
    local keys = redis.call('ZRANGE', prefix .. 'index', from, '(' .. stop, 'BYLEX', 'LIMIT', 0, 16)
    for _, key in ipairs(keys) do
      if key ~= but and live(key) then return false end
    end
    if #keys < 16 then return true end
    from = '(' .. keys[#keys]
  end
end
local failed = {}
for number = 0, ARGV[4] - 1 do
  local holds
  if ARGV[at] == 'version' then
    holds = tostring(live(ARGV[at + 1]) or '') == ARGV[at + 2]
    at = at + 3
  else
    holds = empty(ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    at = at + 4
  end
  if not holds then failed[#failed + 1] = number end
end
if #failed > 0 then return failed end
"""
    + _KEEP_OLD
    + """
while at <= #ARGV do
  local op, key = ARGV[at], ARGV[at + 1]
  if op ~= 'wake' then keep_old(key) end
  if op == 'wake' then
    redis.pcall('PUBLISH', prefix .. 'w:' .. key, ARGV[at + 2])
    at = at + 3
  elseif op == 'delete' then
    redis.call('DEL', prefix .. 'r:' .. key)
    redis.call('ZREM', prefix .. 'index', key)
    redis.call('ZREM', prefix .. 'expiry', key)
    at = at + 2
  else
    local version = live(key)
    if op == 'put' or not version then
      local expiry = ARGV[at + 3]
      local head = string.format('%d %s ', (version or 0) + 1, expiry)
      redis.call('SET', prefix .. 'r:' .. key, head .. ARGV[at + 2])
      redis.call('ZADD', prefix .. 'index', 0, key)
      if expiry == '' then
        redis.call('ZREM', prefix .. 'expiry', key)
      else
        redis.call('ZADD', prefix .. 'expiry', expiry, key)
      end
    end
    at = at + 4
  end
end
redis.call('SET', prefix .. 'c:' .. ARGV[3], '', 'EX', 60)
if redis.call('EXISTS', prefix .. 'made') == 0 then redis.call('SET', prefix .. 'made', '') end
return {}
"""
)

_MADE: Final = "return redis.call('EXISTS', ARGV[1] .. 'c:' .. ARGV[2])"

_NOW: Final = _COMMON + "return string.format('%.6f', now)"

_SWEEP: Final = """
local prefix = ARGV[1]
local keys = redis.call('ZRANGE', prefix .. 'expiry', '-inf', ARGV[2], 'BYSCORE', 'LIMIT', 0, 1000)
for _, key in ipairs(keys) do
  redis.call('DEL', prefix .. 'r:' .. key)
  redis.call('ZREM', prefix .. 'index', key)
  redis.call('ZREM', prefix .. 'expiry', key)
end
return #keys
"""

_PAGE_ROWS: Final = 500
_PAGE_BYTES: Final = 4 * 2**20
"""Size of a page of a snapshot, which the server reads at once."""

_MAX_RETRIES: Final = 8
"""With the backoff below, a server may be unreachable for about three seconds before a call fails."""


class RedisRecords:
    """Records in Redis 6.2 or newer, or Valkey.

    A commit is as durable as the server's configuration: with `appendonly yes` and `appendfsync always` it survives a
    crash of the server; with `everysec` the last second may be lost.

    Args:
        url: `redis://` or, with TLS, `rediss://`, with user and database; its query holds further settings of the
            `redis` package, such as `ssl_ca_certs`. Or the address of Sentinels (`redis_sentinel.py`).
        password: the user's password, if it is not in the URL.
        prefix: the prefix of all keys, so that several stacks can share a server.
        connections: maximum number of connections of this process, without the one of a subscription.
        timeout: maximum seconds for connecting, for one answer, and for a free connection.
        clock: returns seconds since the epoch; None uses the server's clock, which all processes share.
        sentinel_password: the password of the Sentinels, if the URL names some and they need one.
    """

    transactional: Final = True

    def __init__(
        self,
        url: str,
        *,
        password: str | None = None,
        prefix: str = "responses:",
        connections: int = 16,
        timeout: float = 5.0,
        clock: Callable[[], float] | None = None,
        pubsub_silence: float = PUBSUB_SILENCE_SECONDS,
        sentinel_password: str | None = None,
    ) -> None:
        self._pubsub_silence = pubsub_silence
        self._server = _Server(url, password, sentinel_password, timeout)
        self._prefix = prefix
        self._connections = connections
        self._timeout = timeout
        self._clock = clock
        self._id = secrets.token_hex(8)
        self._scripts: _Scripts | None = None

    @property
    def has_own_clock(self) -> bool:
        """Whether `now` is the clock of the server."""
        return self._clock is None

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        if not keys:
            return {}
        arguments = [self._now(), "" if max_bytes is None else max_bytes, *dict.fromkeys(keys)]
        answer = await self._call(lambda scripts: scripts.get_many, arguments)
        return dict(_records(answer))

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        # The id makes a commit idempotent: a retry after a lost answer finds that it was applied.
        args: list[Any] = [self._now(), secrets.token_bytes(16), len(conditions)]
        for condition in conditions:
            args += _condition(condition)
        for op in writes_of(ops):
            args += _op(op)
        for name in woken_by(ops):
            args += ["wake", name, self._id]
        try:
            failed = await self._call(lambda scripts: scripts.commit, args)
        except NoAnswer as error:
            raise Unanswered(error.message) from error
        except ApiError as error:
            # The server refused the last try. An earlier one, whose answer was lost, may have been applied.
            if isinstance(error, NotSent) or not await self._commit_was_applied(args[1]):
                raise
            return
        if failed:
            raise Conflict([conditions[number] for number in failed])

    async def _commit_was_applied(self, commit_id: bytes) -> bool:
        """Return whether a commit was applied in the last minute.

        Raises:
            Unanswered: the server does not answer.
        """
        try:
            return bool(await self._call(lambda scripts: scripts.made, [commit_id]))
        except ApiError as error:
            raise Unanswered(error.message) from error

    async def range(
        self, start: str, end: str, *, limit: int, reverse: bool = False, max_bytes: int | None = None
    ) -> list[tuple[str, Record]]:
        if start >= end or limit < 1:
            return []
        args = [self._now(), start, end, limit, "REV" if reverse else "", "" if max_bytes is None else max_bytes]
        return _records(await self._call(lambda scripts: scripts.range, args))

    def pubsub(self) -> AbstractAsyncContextManager[PubSub]:
        return self._open_pubsub()

    @asynccontextmanager
    async def _open_pubsub(self) -> AsyncIterator[PubSub]:
        client = Redis.from_pool(self._server.pool(retry=Retry(NoBackoff(), 0)))
        pubsub = RedisPubSub(client, f"{self._prefix}w:", self._id, self._timeout, self._pubsub_silence)
        try:
            await pubsub.open()
            yield pubsub
        finally:
            await pubsub.close()

    async def now(self) -> float:
        return self._clock() if self._clock else float(await self._call(lambda scripts: scripts.now, [""]))

    async def sweep(self, now: float) -> int:
        swept: int = await self._call(lambda scripts: scripts.sweep, [now])
        return swept

    async def snapshot(self) -> AsyncGenerator[Sequence[Put]]:
        """Yield all rows, as `Snapshots` says. Writers keep the old rows, so all servers have to be of this version."""
        own_id, clock = secrets.token_hex(8), self._now()
        if not await self._call(lambda scripts: scripts.begin_snapshot, [clock, own_id]):
            raise ApiError(503, "Another backup of this store is running, or was interrupted within the last minute.")
        more, reached = True, b""
        while more:
            page = [clock, own_id, _PAGE_ROWS, _PAGE_BYTES, reached]
            answer = await self._call(lambda scripts: scripts.next_snapshot, page)
            if not answer:
                raise ApiError(503, "The backup was interrupted, or took too long between two reads: begin it again.")
            now, more, reached = await self.now(), bool(answer[0]), answer[1]
            rows = [_stored(key, value) for key, value in zip(answer[2::2], answer[3::2], strict=True)]
            yield [row for row in rows if row.expires_at is None or row.expires_at > now]

    async def size(self) -> int | None:
        """Return the memory of the whole server: it does not count that of some keys. None if this user may not ask."""
        scripts = self._ready()
        async with scripts.slots.taken():
            with errors_as_503():
                return await scripts.memory()

    async def free(self) -> int | None:
        scripts = self._ready()
        async with scripts.slots.taken():
            with errors_as_503():
                return await scripts.free()

    async def losses(self) -> Mapping[str, str] | None:
        scripts = self._ready()
        async with scripts.slots.taken():
            with errors_as_503():
                return await scripts.losses()

    async def exists(self) -> bool:
        scripts = self._ready()
        async with scripts.slots.taken():
            with errors_as_503():
                return await scripts.has_commits(self._prefix)

    async def close(self) -> None:
        scripts = self._scripts
        if scripts is None or scripts.loop is not asyncio.get_running_loop():
            self._scripts = None
            return
        if scripts.closing is None:
            scripts.closing = asyncio.create_task(self._close(scripts))
        # If the caller is cancelled, the connections are closed all the same, once their calls have ended.
        await asyncio.shield(scripts.closing)

    async def _close(self, scripts: _Scripts) -> None:
        try:
            await scripts.close()
        finally:
            # They stay until then, so that a task that still works with the store opens no further connections.
            if self._scripts is scripts:
                self._scripts = None

    def _now(self) -> str:
        return repr(self._clock()) if self._clock else ""

    async def _call(self, choose: Callable[[_Scripts], AsyncScript], args: Sequence[Any]) -> Any:
        scripts = self._ready()
        async with scripts.slots.taken():
            with errors_as_503():
                return await choose(scripts)(args=[self._prefix, *args])

    def _ready(self) -> _Scripts:
        """Return the scripts of the running loop; the connections of another, closed loop would never answer."""
        loop = asyncio.get_running_loop()
        if self._scripts is None or self._scripts.loop is not loop:
            self._scripts = _Scripts(loop, self._server, self._connections)
        return self._scripts


class _Server(NamedTuple):
    """Where the server is, and how to connect to it."""

    url: str
    password: str | None
    sentinel_password: str | None
    timeout: float

    def pool(self, **settings: Any) -> ConnectionPool:
        """Return connections with these further settings."""
        known = {"password": self.password} if self.password else {}
        settings |= {**known, "socket_timeout": self.timeout, "socket_connect_timeout": self.timeout}
        if is_sentinel(self.url):
            return sentinel_pool(self.url, self.sentinel_password, **settings)
        return BlockingConnectionPool.from_url(self.url, timeout=self.timeout, **settings)


class _Scripts:
    """The scripts, on the connections of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, server: _Server, connections: int) -> None:
        self.loop = loop
        self.closing: asyncio.Task[None] | None = None
        self.slots = ConnectionSlots(connections, server.timeout)
        pool = server.pool(
            max_connections=connections,
            # No retry after a timeout: the caller has waited long enough.
            retry=Retry(ExponentialWithJitterBackoff(cap=0.8, base=0.02), _MAX_RETRIES, (RedisConnectionError,)),
        )
        self._redis = Redis(connection_pool=pool)
        self.get_many = self._redis.register_script(_GET_MANY)
        self.range = self._redis.register_script(_RANGE)
        self.commit = self._redis.register_script(_COMMIT)
        self.made = self._redis.register_script(_MADE)
        self.now = self._redis.register_script(_NOW)
        self.sweep = self._redis.register_script(_SWEEP)
        self.begin_snapshot = self._redis.register_script(_BEGIN_SNAPSHOT)
        self.next_snapshot = self._redis.register_script(_NEXT_SNAPSHOT)

    async def memory(self) -> int | None:
        """Return the bytes of the server's data; None if this user may not ask."""
        try:
            return int((await self._redis.info("memory"))["used_memory"])
        except NoPermissionError:
            return None

    async def free(self) -> int | None:
        """Return what is left of the server's `maxmemory`; None without one, or if this user may not ask."""
        try:
            memory = await self._redis.info("memory")
        except NoPermissionError:
            return None
        return max(0, memory["maxmemory"] - memory["used_memory"]) if memory.get("maxmemory") else None

    async def losses(self) -> dict[str, str] | None:
        """Return how the server may lose records; None if this user may not ask, or the server does not say."""
        try:
            sections = [await self._redis.info(section) for section in REDIS_INFO]
        except NoPermissionError:
            return None
        return losses_of_redis({name: value for section in sections for name, value in section.items()})

    async def has_commits(self, prefix: str) -> bool:
        """Return whether there was a commit."""
        return bool(await self._redis.exists(f"{prefix}made"))

    async def close(self) -> None:
        # A connection that is closed during a call would be opened again for the call's next try.
        try:
            await self.slots.close()
        finally:
            with suppress(RedisError):
                await self._redis.aclose(close_connection_pool=True)


def _records(answer: Sequence[Any]) -> list[tuple[str, Record]]:
    rows = zip(answer[::3], answer[1::3], answer[2::3], strict=True)
    return [(key.decode("ascii"), Record(value, version)) for key, version, value in rows]


def _stored(key: bytes, value: bytes) -> Put:
    """Return the row of a stored value: `VERSION EXPIRY VALUE`."""
    _, expiry, rest = value.split(b" ", 2)
    return Put(key.decode("ascii"), rest, float(expiry) if expiry else None)


def _condition(condition: Condition) -> list[Any]:
    if isinstance(condition, VersionIs):
        return ["version", condition.key, "" if condition.version is None else condition.version]
    return ["empty", condition.prefix, after_prefix(condition.prefix), condition.but or ""]


def _op(op: Write) -> list[Any]:
    match op:
        case Put(key, value, expires_at):
            return ["put", key, value, _expiry(expires_at)]
        case Ensure(key, value, expires_at):
            return ["ensure", key, value, _expiry(expires_at)]
        case Delete(key):
            return ["delete", key]


def _expiry(expires_at: float | None) -> str:
    return "" if expires_at is None or math.isinf(expires_at) else repr(expires_at)
