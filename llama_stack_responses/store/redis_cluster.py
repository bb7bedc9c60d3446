"""Connections to a Redis or Valkey Cluster: each call goes to the primary that has the slot of its key.

The cluster says which one that is: in its map of slots, which is read when it is needed, and in redirects. The `redis`
package has a client for clusters, but it sends `ASKING` and the call that it is for on different connections, cannot
follow a slot to a primary that has no other one yet, and closes the connections of all other calls if a slot is down.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, override
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    ClusterDownError,
    MovedError,
    RedisError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..concurrency.tasks import LoopTask, end_all
from .connection_slots import ConnectionSlots, NotSent
from .records import CLOSED
from .redis_connections import BACKOFF, MAX_RETRIES, Access, Command, Connections
from .redis_errors import errors_as_503, is_moving

_PORT: Final = 6379
_MAX_REDIRECTS: Final = 8
"""How often a call is redirected before it waits a moment: while slots move, nodes may disagree about their owners."""
_NEXT_SECONDS: Final = 0.2
"""Time for a node's map of slots, after which another node is asked too."""
_AWAY: Final = (ClusterDownError, RedisConnectionError, RedisTimeoutError)
"""Errors that say that a node is away, or that the map of slots is old."""


class _Node(NamedTuple):
    """The address of a node."""

    host: str
    port: int


class _Range(NamedTuple):
    """Slots from `first` to `last`, and the nodes that hold them: the primary, then its replicas."""

    first: int
    last: int
    nodes: Sequence[_Node]


@dataclass(slots=True)
class _Call:
    """A call, and what became of its tries.

    Attributes:
        slot: the slot of its key.
        node: the node that was tried last; None if none was known.
        asked: the node that alone has to be asked next, while the slot moves to it; None for the slot's primary.
        failure: why the last try failed that was not redirected.
        failures: how many tries failed.
        redirects: how often it was redirected since.
    """

    slot: int
    node: _Node | None = None
    asked: _Node | None = None
    failure: RedisError | None = None
    failures: int = 0
    redirects: int = 0


class ClusterConnections(Connections):
    """Connections to the primaries of a cluster.

    Args:
        access: its URL names one or more nodes, with commas, by which the cluster is found.
        connections: how many calls to each node are under way at a time. A call waits for its turn at each node that
            it tries, so that no pool has more calls than connections: pools do not keep the order.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, access: Access, connections: int) -> None:
        super().__init__(loop, access, sys.maxsize)
        self._timeout = access.timeout
        self._connections = connections
        self._seeds, self._settings = _parsed(access)
        self._clients: dict[_Node, Redis] = {}
        self._slots_by_node: dict[_Node, ConnectionSlots] = {}
        self._map: list[_Range] = []
        self._is_old = True
        self._owners: dict[int, _Node] = {}
        self._suspect: _Node | None = None
        self._silent: set[_Node] = set()
        self._failing: set[_Node | None] = set()
        self._unread: RedisError | None = None
        self._reading = LoopTask(self._read_map)

    def _slots_of(self, node: _Node) -> ConnectionSlots:
        """Return what admits calls to this node: the calls to a dead one hold up no others."""
        if node not in self._slots_by_node:
            if self.closing:
                raise NotSent(CLOSED)
            self._slots_by_node[node] = ConnectionSlots(self._connections, self._timeout)
        return self._slots_by_node[node]

    @override
    async def close(self) -> None:
        """Let waiting calls fail, wait until the others have ended, and disconnect."""
        await asyncio.gather(*(slots.close() for slots in self._slots_by_node.values()))
        await super().close()

    async def _call[Result](self, key: str, command: Command[Result]) -> Result:
        call = _Call(key_slot(key.encode()))
        while True:
            # A call that pauses after a failure has its turn until then.
            async with AsyncExitStack() as held:
                try:
                    return await self._tried(held, call, command)
                except RedisError as error:
                    await self._prepare_next_try(call, error)

    async def _tried[Result](self, held: AsyncExitStack, call: _Call, command: Command[Result]) -> Result:
        """Make a call once.

        Raises:
            RedisError: it failed.
            NotSent: it got no turn.
        """
        client = self._client(await self._take_turn(held, call))
        result = await (_asking(client, command) if call.asked else command(client))
        self._failing.discard(call.node)
        self._silent -= {call.node}
        return result

    async def _prepare_next_try(self, call: _Call, error: RedisError) -> None:
        """Follow a redirect, or pause after a failure.

        Raises:
            RedisError: there is no other try.
        """
        if isinstance(error, AskError) and call.node and call.redirects < _MAX_REDIRECTS:
            call.redirects += 1
            call.asked = self._redirected(call.slot, error, call.node)
            return
        call.failure = TryAgainError("redirected too often") if isinstance(error, AskError) else error
        # While a slot moves, each try may be redirected.
        call.redirects, call.failures, call.asked = 0, call.failures + 1, None
        self._doubt(call.node, call.failure)
        if self._gives_up(call.node, call.failure, call.failures):
            raise call.failure from None
        await asyncio.sleep(BACKOFF.compute(call.failures))

    def _gives_up(self, node: _Node | None, error: RedisError, failures: int) -> bool:
        """Return whether a call is not made again that has failed so often, this time at this node.

        Once a call to a node was given up, others are made again once, until one succeeds: a thousand of them, of which
        a few at a time wait for three seconds each, would take minutes.
        """
        is_away = isinstance(error, _AWAY)
        gives_up = not _passes(error) or failures > (1 if is_away and node in self._failing else MAX_RETRIES)
        if gives_up and is_away:
            self._failing.add(node)
        return gives_up

    async def _take_turn(self, held: AsyncExitStack, call: _Call) -> _Node:
        """Wait for a connection to the node that a call has to ask; it is the call's until `held` ends.

        Raises:
            RedisError: no node says which one it is.
            NotSent: no connection became free in time, or the connections are being closed.
        """
        taken = None
        # While the call waits, others may learn that the primary is another one.
        while taken != (node := call.asked or await self._owner(call.slot)):
            await held.aclose()
            taken = call.node = node
            try:
                await held.enter_async_context(self._slots_of(node).taken())
            except NotSent:
                if call.failure is None:
                    raise
                # An earlier try may have been applied.
                with errors_as_503():
                    raise call.failure from None
        return node

    async def listener(self, key: str) -> Redis:
        self._forget_map()
        with errors_as_503():
            owner = await self._owner(key_slot(key.encode()))
        return self._opened(owner)

    @override
    async def address(self, key: str) -> str:
        with errors_as_503():
            owner = await self._owner(key_slot(key.encode()))
        return f"{owner.host}:{owner.port}"

    @override
    def known_address(self, key: str) -> str:
        slot = key_slot(key.encode())
        owner = self._owners.get(slot) or (None if self._is_old else self._mapped(slot))
        return f"{owner.host}:{owner.port}" if owner else ""

    async def _disconnect(self) -> None:
        await self._reading.stop()
        await self._close([*self._clients])

    async def _owner(self, slot: int) -> _Node:
        """Return the primary that has the slot.

        Raises:
            RedisError: no node says so.
        """
        if slot not in self._owners:
            if self._is_old:
                self._reading.start()
                # Others may forget it before this call goes on, which takes it all the same.
                await self._reading.wait()
            primary = self._mapped(slot)
            if primary is None:
                raise self._unread or ClusterDownError("no primary has the slot")
            if self._is_old:
                return primary
            self._owners[slot] = primary
        return self._owners[slot]

    def _mapped(self, slot: int) -> _Node | None:
        """Return the primary that has the slot in the map."""
        return next((each.nodes[0] for each in self._map if each.first <= slot <= each.last), None)

    def _redirected(self, slot: int, error: AskError, by: _Node) -> _Node | None:
        """Return the node that this call alone has to ask; None if another one owns the slot from now on."""
        target = _Node(error.host or by.host, error.port)
        if not isinstance(error, MovedError):
            return target
        self._owners[slot] = target
        return None

    def _doubt(self, node: _Node | None, error: RedisError) -> None:
        """Read the map of slots again, and do not ask this node first, if the error says that the map is old."""
        if isinstance(error, _AWAY):
            self._suspect = node
            if node and not isinstance(error, ClusterDownError):
                self._silent.add(node)
            self._forget_map()

    def _forget_map(self) -> None:
        self._is_old, self._owners = True, {}

    async def _read_map(self) -> None:
        """Ask nodes for the map of slots until one has it: one more each moment, since those of a lost zone hang."""
        known = dict.fromkeys([*self._clients, *self._seeds])
        left = sorted(known, key=lambda each: (each in self._silent, each == self._suspect))
        asked: dict[asyncio.Task[list[_Range]], _Node] = {}
        try:
            while left or asked:
                if left:
                    node = left.pop(0)
                    asked[asyncio.create_task(self._ranges_of(node))] = node
                done, _ = await asyncio.wait(
                    asked, timeout=_NEXT_SECONDS if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for each in done:
                    del asked[each]
                    if slots := each.result():
                        await self._take_map(slots)
                        return
            self._map = []
        finally:
            self._silent.update(asked.values())
            await end_all(asked)

    async def _ranges_of(self, node: _Node) -> list[_Range]:
        """Return the map of slots that a node has; nothing if it does not answer."""
        try:
            answer = await self._client(node).execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
        except RedisError as error:
            self._unread = error
            self._silent.add(node)
            return []
        self._silent.discard(node)
        return list(_ranges(answer, node))

    async def _take_map(self, slots: list[_Range]) -> None:
        self._map, self._owners, self._unread, self._is_old = slots, {}, None, False
        # A call on a connection that is closed is made again.
        current = {*self._seeds, *(each for part in slots for each in part.nodes)}
        self._silent &= current
        await self._close([each for each in self._clients if each not in current])

    async def _close(self, nodes: Sequence[_Node]) -> None:
        for node in nodes:
            with suppress(RedisError):
                await self._clients.pop(node).aclose(close_connection_pool=True)

    def _client(self, node: _Node) -> Redis:
        if node not in self._clients:
            self._clients[node] = self._opened(node)
        return self._clients[node]

    def _opened(self, node: _Node) -> Redis:
        """Return a client of this node alone, which repeats no call: another node may have to be asked."""
        # One more than there are calls, for reading the map.
        most = self._connections + 1
        settings = {"timeout": self._timeout, **self._settings, "host": node.host, "port": node.port}
        pool = BlockingConnectionPool(**{**settings, "max_connections": most}, retry=Retry(NoBackoff(), 0))
        return Redis.from_pool(self._prepared(pool))


def _parsed(access: Access) -> tuple[list[_Node], dict[str, Any]]:
    """Return the nodes that the URL names, and the settings of each connection."""
    parts = urlsplit(access.url)
    user, _, nodes = parts.netloc.rpartition("@")
    settings = parse_url(f"{parts.scheme}://{user}{'@' if user else ''}node/?{parts.query}")
    hosts = [urlsplit(f"//{each}") for each in nodes.split(",")]
    return [_Node(each.hostname or "", each.port or _PORT) for each in hosts], {**access.settings, **settings}


def _ranges(answer: Sequence[Any], by: _Node) -> Iterator[_Range]:
    """Yield what a node answers to `CLUSTER SLOTS`. One that does not know its own address names none."""
    for first, last, *nodes in answer:
        known = ((host.decode() if host else by.host, port) for host, port, *_ in nodes)
        yield _Range(first, last, [_Node(by.host if host == "?" else host, port) for host, port in known])


async def _asking[Result](client: Redis, command: Command[Result]) -> Result:
    """Call a node that is about to get the slot. It has to be told so on the same connection, just before."""
    async with Redis(connection_pool=client.connection_pool, single_connection_client=True) as connection:
        await connection.execute_command("ASKING")  # type: ignore[no-untyped-call]
        return await command(connection)


def _passes(error: RedisError) -> bool:
    """Return whether the call may succeed a moment later. One that was not answered in time has waited long enough."""
    if isinstance(error, AuthenticationError):
        return False
    return isinstance(error, (ClusterDownError, RedisConnectionError, TryAgainError)) or is_moving(error)
