"""The scripts of a store in Redis or Valkey.

A script declares the keys that it is known to touch before it runs, so a cluster refuses or redirects it before it has
written anything, also while the slot of its keys moves. It may also touch the rows that it finds in the index, and the
old rows of a snapshot. Those are in the same slot; a row that has moved already is an error, so they are touched before
the first write, or where each step leaves the store whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha1
from typing import Any, Final, NamedTuple

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

# Common part of the scripts. A row has the key `r:KEY` below the prefix; its value is "VERSION EXPIRY VALUE", with an
# empty expiry if it has none. `live` returns the version of a row that has not expired, and the offset of its value.
# `listed` does for a key that is in the index, KEYS[1]. While a slot moves key by key, its index may be here before its
# rows: a command with two keys of which one is missing is refused then. Without that, rows would seem to be deleted.
# ARGV[1] is the prefix, ARGV[2] the time, empty for the server's clock.
_COMMON: Final = """
local prefix, now = ARGV[1], tonumber(ARGV[2])
local rows = prefix .. 'r:'
if not now then
  local time = redis.call('TIME')
  now = time[1] + time[2] / 1000000
end
local function key_of(row) return string.sub(row, #rows + 1) end
local function live(row)
  local head = redis.call('GETRANGE', row, 0, 63)
  local version, expiry, start = string.match(head, '^(%d+) (%S*) ()')
  if version and (expiry == '' or tonumber(expiry) > now) then
    return tonumber(version), start
  end
end
local function listed(key)
  local version, start = live(rows .. key)
  if not version then redis.call('EXISTS', KEYS[1], rows .. key) end
  return version, start
end
"""

# `keys_in` returns keys of a range of the index, KEYS[1], from `from` to `to`, or in descending order from `to`.
_KEYS_IN: Final = """
local function keys_in(from, to, reverse, limit)
  if reverse then return redis.call('ZRANGE', KEYS[1], to, from, 'BYLEX', 'REV', 'LIMIT', 0, limit) end
  return redis.call('ZRANGE', KEYS[1], from, to, 'BYLEX', 'LIMIT', 0, limit)
end
"""

# KEYS: the rows. ARGV[3]: the number of bytes of values that ends the answer, empty for no limit.
_GET_MANY: Final = (
    _COMMON
    + """
local found, left = {}, tonumber(ARGV[3]) or math.huge
for _, row in ipairs(KEYS) do
  if left <= 0 then break end
  local version, start = live(row)
  if version then
    local value = redis.call('GETRANGE', row, start - 1, -1)
    found[#found + 1] = key_of(row)
    found[#found + 1] = version
    found[#found + 1] = value
    left = left - #value
  end
end
return found
"""
)

# KEYS[1]: the index; then the rows. ARGV[3]: as above. ARGV[4], ARGV[5]; ARGV[6], ARGV[7] ...: start and end of a range
# for each row, empty for none. The last row of the range takes the place of a missing row; its value does not count.
_GET_OR_FLOORS: Final = (
    _COMMON
    + """
local found, seen, left = {}, {}, tonumber(ARGV[3]) or math.huge
local function add(key, version, start)
  if version then
    found[#found + 1] = key
    found[#found + 1] = version
    found[#found + 1] = redis.call('GETRANGE', rows .. key, start - 1, -1)
  end
  return version
end
for number = 2, #KEYS do
  if left <= 0 then break end
  local from, to = '[' .. ARGV[2 * number], '(' .. ARGV[2 * number + 1]
  if add(key_of(KEYS[number]), live(KEYS[number])) then
    left = left - #found[#found]
  elseif to ~= '(' then
    repeat
      local key = redis.call('ZRANGE', KEYS[1], to, from, 'BYLEX', 'REV', 'LIMIT', 0, 1)[1]
      local is_last = not key or seen[key] or add(key, listed(key))
      if key then
        seen[key], to = is_last, '(' .. key
      end
    until is_last
  end
end
return found
"""
)

# KEYS[1]: the index. ARGV[3], ARGV[4]: start and end of the range; ARGV[5]: limit; ARGV[6]: 'REV' for descending order;
# ARGV[7]: as ARGV[3] above.
_RANGE: Final = (
    _COMMON
    + _KEYS_IN
    + """
local from, to, limit, reverse = '[' .. ARGV[3], '(' .. ARGV[4], tonumber(ARGV[5]), ARGV[6] == 'REV'
local found, left = {}, tonumber(ARGV[7]) or math.huge
while #found < 3 * limit and left > 0 do
  local keys = keys_in(from, to, reverse, limit)
  for _, key in ipairs(keys) do
    local version, start = listed(key)
    if version and #found < 3 * limit and left > 0 then
      local value = redis.call('GETRANGE', rows .. key, start - 1, -1)
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

# KEYS[1]: the index. ARGV[3]: limit of each range; ARGV[4]: as ARGV[6] above; ARGV[5], ARGV[6]; ARGV[7], ARGV[8] ...:
# starts and ends. Returns the rows of all ranges, each once, and for each range the numbers of its rows.
_RANGES: Final = (
    _COMMON
    + _KEYS_IN
    + """
local limit, reverse = tonumber(ARGV[3]), ARGV[4] == 'REV'
local found, spans, numbers = {}, {}, {}
local function number_of(key)
  if not numbers[key] then
    local version, start = listed(key)
    if not version then return end
    found[#found + 1] = key
    found[#found + 1] = version
    found[#found + 1] = redis.call('GETRANGE', rows .. key, start - 1, -1)
    numbers[key] = #found / 3 - 1
  end
  return numbers[key]
end
for at = 5, #ARGV, 2 do
  local from, to, span, more = '[' .. ARGV[at], '(' .. ARGV[at + 1], {}, true
  while more and #span < limit do
    local keys = keys_in(from, to, reverse, limit)
    for _, key in ipairs(keys) do
      local number = #span < limit and number_of(key)
      if number then span[#span + 1] = number end
    end
    more = #keys == limit
    if reverse then to = '(' .. (keys[#keys] or '') else from = '(' .. (keys[#keys] or '') end
  end
  spans[#spans + 1] = span
end
return {found, spans}
"""
)

# KEYS[1]: the index. ARGV[3], ARGV[4]; ARGV[5], ARGV[6] ...: starts and ends of ranges. Returns for each whether it has
# keys, of which some may have expired.
_FILLED: Final = """
local found = {}
for at = 3, #ARGV, 2 do
  local keys = redis.call('ZRANGE', KEYS[1], '[' .. ARGV[at], '(' .. ARGV[at + 1], 'BYLEX', 'LIMIT', 0, 1)
  found[#found + 1] = #keys
end
return found
"""

# Keeps each of the rows KEYS[`first`] and following that a snapshot has not reached as it was before its first write:
# `o:KEY`, '' for none, listed in `old`. `backup` is the snapshot's id and the last key that it has read. Keys are
# compared by bytes: Lua's own comparison depends on the server's locale. If a commit ends here, because a row is
# elsewhere, the kept ones are still what the snapshot has to read.
_KEEP_OLD: Final = """
local reached = string.match(redis.call('GET', backup) or '', '^%S+ (.*)$')
local function is_ahead(key)
  for index = 1, math.min(#key, #reached) do
    local one, other = string.byte(key, index), string.byte(reached, index)
    if one ~= other then return one > other end
  end
  return #key > #reached
end
for index = first, reached and #KEYS or 0 do
  local key = key_of(KEYS[index])
  if is_ahead(key) and not redis.call('ZSCORE', old, key) then
    redis.call('SET', prefix .. 'o:' .. key, redis.call('GET', KEYS[index]) or '', 'EX', 86400)
    redis.call('ZADD', old, 0, key)
    redis.call('EXPIRE', old, 86400)
  end
end
"""

# KEYS: `backup`, `old`. ARGV[3]: the snapshot's id. Begins it; returns 0 if another is being read.
_BEGIN_SNAPSHOT: Final = (
    _COMMON
    + """
local backup, old = KEYS[1], KEYS[2]
if redis.call('EXISTS', backup) == 1 then return 0 end
for _, key in ipairs(redis.call('ZRANGE', old, 0, -1)) do redis.call('DEL', prefix .. 'o:' .. key) end
redis.call('DEL', old)
redis.call('SET', backup, ARGV[3] .. ' ', 'EX', 60)
return 1
"""
)

# KEYS: `backup`, `old`, the index. ARGV[3]: the snapshot's id; ARGV[4]: row limit; ARGV[5]: bytes above which a page
# ends; ARGV[6]: the last key that the caller has read. Returns whether more rows follow, the last key that was read,
# then each key and its stored value; nothing if the snapshot is lost, or the answer to an earlier call was.
_NEXT_SNAPSHOT: Final = (
    _COMMON
    + """
local backup, old, index = KEYS[1], KEYS[2], KEYS[3]
local id, reached = string.match(redis.call('GET', backup) or '', '^(%S+) (.*)$')
if id ~= ARGV[3] or reached ~= ARGV[6] then return {} end
local limit, max_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local from = reached == '' and '-' or '(' .. reached
local keys = redis.call('ZRANGE', index, from, '+', 'BYLEX', 'LIMIT', 0, limit)
local taken, size = 0, 0
while taken < #keys and size < max_bytes do
  taken = taken + 1
  size = size + redis.call('STRLEN', rows .. keys[taken])
  redis.call('EXISTS', index, rows .. keys[taken])  -- as `listed`
end
local more = taken < #keys or #keys == limit
local to = more and '[' .. keys[taken] or '+'
local found, was = {more and 1 or 0, keys[taken] or ''}, {}
for _, key in ipairs(redis.call('ZRANGE', old, from, to, 'BYLEX')) do
  local value = redis.call('GET', prefix .. 'o:' .. key)
  if not value then return {} end
  was[key] = true
  if value ~= '' then
    found[#found + 1] = key
    found[#found + 1] = value
  end
  redis.call('DEL', prefix .. 'o:' .. key)
end
redis.call('ZREMRANGEBYLEX', old, from, to)
for position = 1, taken do
  local value = not was[keys[position]] and redis.call('GET', rows .. keys[position])
  if value then
    found[#found + 1] = keys[position]
    found[#found + 1] = value
  end
end
if more then
  redis.call('SET', backup, id .. ' ' .. keys[taken], 'EX', 60)
else
  redis.call('DEL', backup)
end
return found
"""
)

# KEYS: the index, `expiry`, `made`, `backup`, `old`, `c:ID` of the commit; then the row of each condition on a version,
# and of each write, in order. ARGV[3]: the commit's deadline, empty for none; ARGV[4]: the number of conditions; then
# each as `version VERSION` ('' is absent) or `empty PREFIX END BUT`, then each op as `put VALUE EXPIRY`,
# `ensure VALUE EXPIRY` or `delete`; then, for each notification, the command that publishes, its name and its sender.
# It fails silently if the user may not publish: the writes count all the same. Returns the time, then the numbers of
# the conditions that do not hold, or -1 if the deadline has passed.
_CHECKED: Final = (
    _COMMON
    + """
local index, expiring, made, backup, old, commit = unpack(KEYS, 1, 6)
local told = string.format('%.6f', now)
if redis.call('EXISTS', commit) == 1 then return {told} end
if now > (tonumber(ARGV[3]) or math.huge) then return {told, -1} end
local at, first = 5, 7
local function empty(start, stop, but)
  local from = '[' .. start
  while true do
    local keys = redis.call('ZRANGE', index, from, '(' .. stop, 'BYLEX', 'LIMIT', 0, 16)
    for _, key in ipairs(keys) do
      if key ~= but and listed(key) then return false end
    end
    if #keys < 16 then return true end
    from = '(' .. keys[#keys]
  end
end
local failed = {told}
for number = 0, ARGV[4] - 1 do
  local holds
  if ARGV[at] == 'version' then
    holds = tostring(live(KEYS[first]) or '') == ARGV[at + 1]
    at, first = at + 2, first + 1
  else
    holds = empty(ARGV[at + 1], ARGV[at + 2], ARGV[at + 3])
    at = at + 4
  end
  if not holds then failed[#failed + 1] = number end
end
if #failed > 1 then return failed end
"""
)
_WRITTEN: Final = (
    _KEEP_OLD
    + """
for number = first, #KEYS do
  local op, row = ARGV[at], KEYS[number]
  local key = key_of(row)
  if op == 'delete' then
    redis.call('DEL', row)
    redis.call('ZREM', index, key)
    redis.call('ZREM', expiring, key)
    at = at + 1
  else
    local version = live(row)
    if op == 'put' or not version then
      local expiry = ARGV[at + 2]
      local head = string.format('%d %s ', (version or 0) + 1, expiry)
      redis.call('SET', row, head .. ARGV[at + 1])
      redis.call('ZADD', index, 0, key)
      if expiry == '' then
        redis.call('ZREM', expiring, key)
      else
        redis.call('ZADD', expiring, expiry, key)
      end
    end
    at = at + 3
  end
end
while at <= #ARGV do
  redis.pcall(ARGV[at], prefix .. 'w:' .. ARGV[at + 1], ARGV[at + 2])
  at = at + 3
end
redis.call('SET', commit, '', 'EX', 60)
if redis.call('EXISTS', made) == 0 then redis.call('SET', made, '') end
return {told}
"""
)
_COMMIT: Final = _CHECKED + _WRITTEN

# A full server takes all writes of a script that has no flags and has deleted first, even what is not there.
_FREEING_COMMIT: Final = _CHECKED + "redis.call('DEL', commit)" + _WRITTEN

# KEYS[1]: `c:ID` of a commit.
_COMMITTED: Final = "return redis.call('EXISTS', KEYS[1])"

_NOW: Final = _COMMON + "return string.format('%.6f', now)"

# KEYS: the index, `expiry`. ARGV[2]: the time by which rows have expired.
_SWEEP: Final = """
local index, expiring = KEYS[1], KEYS[2]
local keys = redis.call('ZRANGE', expiring, '-inf', ARGV[2], 'BYSCORE', 'LIMIT', 0, 1000)
for _, key in ipairs(keys) do
  redis.call('EXISTS', index, ARGV[1] .. 'r:' .. key)  -- as `listed`
  redis.call('DEL', ARGV[1] .. 'r:' .. key)
  redis.call('ZREM', index, key)
  redis.call('ZREM', expiring, key)
end
return #keys
"""


@dataclass(frozen=True)
class Script:
    """A script that servers keep by its hash."""

    text: str = field(repr=False)

    @cached_property
    def _hash(self) -> str:
        return sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Redis, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run it on the server of this client, which gets its text if it does not have it."""
        try:
            return await client.evalsha(self._hash, len(keys), *keys, *arguments)
        except NoScriptError:
            # Not `eval`: a node that is about to get a slot redirects it, and would never learn the script.
            await client.script_load(self.text)
        return await client.evalsha(self._hash, len(keys), *keys, *arguments)


class Scripts(NamedTuple):
    """The scripts of a store."""

    get_many: Script
    get_or_floors: Script
    range: Script
    ranges: Script
    filled: Script
    commit: Script
    freeing_commit: Script
    committed: Script
    now: Script
    sweep: Script
    begin_snapshot: Script
    next_snapshot: Script


def _of_cluster(text: str, flags: str = "") -> Script:
    """Return a script of a cluster.

    Its first line has the server refuse each access to a key of another slot. Such a script is refused while memory is
    full unless its flags say that it reads, or may take some; one without that line is refused at its first write that
    takes memory.
    """
    return Script(f"#!lua{flags and f' flags={flags}'}\n{text}")


ON_SERVER: Final = Scripts(
    get_many=Script(_GET_MANY),
    get_or_floors=Script(_GET_OR_FLOORS),
    range=Script(_RANGE),
    ranges=Script(_RANGES),
    filled=Script(_FILLED),
    commit=Script(_COMMIT),
    freeing_commit=Script(_FREEING_COMMIT),
    committed=Script(_COMMITTED),
    now=Script(_NOW),
    sweep=Script(_SWEEP),
    begin_snapshot=Script(_BEGIN_SNAPSHOT),
    next_snapshot=Script(_NEXT_SNAPSHOT),
)
"""Those for a single server. Redis 6.2 does not know the first line of the others."""

IN_CLUSTER: Final = Scripts(
    get_many=_of_cluster(_GET_MANY, "no-writes"),
    get_or_floors=_of_cluster(_GET_OR_FLOORS, "no-writes"),
    range=_of_cluster(_RANGE, "no-writes"),
    ranges=_of_cluster(_RANGES, "no-writes"),
    filled=_of_cluster(_FILLED, "no-writes"),
    commit=_of_cluster(_COMMIT),
    freeing_commit=_of_cluster(_COMMIT, "allow-oom"),
    committed=_of_cluster(_COMMITTED, "no-writes"),
    now=_of_cluster(_NOW, "no-writes"),
    sweep=_of_cluster(_SWEEP, "allow-oom"),
    begin_snapshot=_of_cluster(_BEGIN_SNAPSHOT, "allow-oom"),
    next_snapshot=_of_cluster(_NEXT_SNAPSHOT, "allow-oom"),
)
"""Those for a cluster: Redis 7, or Valkey."""
