"""Schedules of servers that pack what is idle, while clients store, read, continue and delete it.

What is real: the archive, and all that packs and brings back. The store is that of all schedules; the object store is
in memory, behind a network that delays and fails. Servers are killed and stand still, often just when they pack.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast, override

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id, tag_of
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.cold.bringing import Bringing
from llama_stack_responses.features.cold.objects import Objects, ObjectsAway, Stored
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.pages import decoded
from llama_stack_responses.features.cold.prefixes import CHAINS, HELD, PAGES
from llama_stack_responses.features.cold.rows import RecordStub, place_of
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.lifecycle.periodic import Periodic
from llama_stack_responses.logs import get_logger
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.records import UNAVAILABLE, Delete, Op, Put, Record
from tests.contract.conversations import assistant, response, user
from tests.simulation.cold_talks import ColdTalks, Talk
from tests.simulation.faults import Faults
from tests.simulation.simulation import Outcome, outcome_of
from tests.simulation.store import SharedStore, remote_records
from tests.simulation.world import Process, World

AFTER: Final = 1_800.0
"""Virtual seconds after which a response is packed."""
_BUSY_SECONDS: Final = 2 * 3_600.0
_PATIENCE: Final = 12 * 3_600.0
_LEASE_SECONDS: Final = 200.0
_OWNERS: Final = tuple(Owner(f"user {number}") for number in range(5))
_OBJECT_BYTES: Final = 4_000
_CHAINS: Final = 8
_LONGEST_UPLOAD: Final = 300.0
"""Virtual seconds in which clients may change what is packed."""
_BEHIND: Final = (1.0, 60.0, 600.0)
"""Virtual seconds by which replicas are behind at most: long enough that objects are looked at meanwhile."""
_TALKS: Final = 4
_KEPT: Final = ("x/", "up/", "oa/", "cp/", "ch/", "p/")
"""Rows that expire, or stay for the owner."""


@dataclass(slots=True)
class Bucket:
    """The object store of all servers.

    Attributes:
        objects: what it has, by name.
        sent: the bytes that it has got.
        missed: what must not be.
    """

    objects: dict[str, bytes] = field(default_factory=dict)
    sent: int = 0
    missed: list[str] = field(default_factory=list)


class RemoteObjects:
    """The object store as one server reaches it."""

    def __init__(self, bucket: Bucket, process: Process, faults: Faults) -> None:
        self._bucket, self._process, self._faults = bucket, process, faults

    async def put(self, name: str, data: AsyncIterator[bytes]) -> None:
        content = b"".join([each async for each in data])
        await asyncio.sleep(self._process.world.random.choice((0.0, 1.0, _LONGEST_UPLOAD)))

        def put() -> None:
            self._bucket.objects[name] = content
            self._bucket.sent += len(content)

        await self._call(put)

    async def read(self, name: str, at: int, size: int) -> bytes:
        def read() -> bytes:
            if name not in self._bucket.objects:
                self._bucket.missed.append(f"an object is read that was deleted: {name}")
            return self._bucket.objects.get(name, b"")[at : at + size]

        return await self._call(read)

    async def delete(self, name: str) -> None:
        await self._call(lambda: self._bucket.objects.pop(name, None))

    async def all(self) -> AsyncIterator[Stored]:
        for name, content in await self._call(lambda: sorted(self._bucket.objects.items())):
            yield Stored(name, len(content))

    async def _call[Result](self, call: Callable[[], Result]) -> Result:
        world, answer = self._process.world, self._process.create_future()
        fate = self._faults.fate(world.random, world.now, writes=False)

        def arrive() -> None:
            if fate != "refused":
                result = call()
            is_answered = fate == "answered"
            reply = partial(answer.set_result, result) if is_answered else partial(answer.set_exception, ObjectsAway())
            world.after(world.random.uniform(0.0, 0.5), lambda: answer.done() or reply(), self._process)

        world.after(world.random.uniform(0.0, 0.5), arrive)
        answered: Result = await answer
        return answered


@dataclass(slots=True)
class Turn:
    """A stored response: its owner, and the texts of its history."""

    owner: Owner
    texts: Sequence[str]


@dataclass(slots=True)
class Known:
    """What clients know.

    Attributes:
        stored: the responses whose creation was acknowledged, by their ids.
        deleting: those whose deletion was begun.
        deleted: those whose deletion was acknowledged.
        packed: how often each was packed.
        back: how often each was brought back.
        packers: the servers that have packed responses of an owner.
    """

    stored: dict[str, Turn] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    packed: Counter[str] = field(default_factory=Counter)
    back: Counter[str] = field(default_factory=Counter)
    packers: dict[str, set[str]] = field(default_factory=dict)


class SimulatedPacking(Packing):
    """Packing that is also asked from outside to look at objects, which it does one time after the other."""

    def __init__(self, *args: Any, **kinds: Any) -> None:
        super().__init__(*args, **kinds)
        self._looking = asyncio.Lock()

    @override
    async def collect(self) -> None:
        async with self._looking:
            await super().collect()


class PackingServer:
    """A server, until it is killed."""

    def __init__(self, world: World, name: str, store: SharedStore, bucket: Bucket) -> None:
        self.process = process = Process(world, name)
        self._hot = remote_records(store, process)
        objects = cast("Objects", RemoteObjects(bucket, process, store.faults))
        records = UnpackingRecords(self._hot, Bringing(self._hot, objects, AFTER, None))
        self.archive = Archive(records, clock=lambda: world.now)
        self.packing = SimulatedPacking(self._hot, objects, AFTER, least_bytes=1, object_bytes=_OBJECT_BYTES)
        self.packing.shares.worker = name
        self._sweeper = Periodic(self._sweep, "could not sweep", get_logger("llama_stack_responses.simulated"), 900.0)
        process.start(self._run)

    async def _sweep(self) -> None:
        await self.archive.sweep()
        await self._hot.sweep(self.process.world.now)

    async def _run(self) -> None:
        self.packing.start()
        self._sweeper.start()
        while True:
            try:
                until = await self._hot.now() + _LEASE_SECONDS
                await self._hot.commit([Put(f"p/{self.process.name}", str(until).encode(), until)])
            except ApiError:
                pass
            await asyncio.sleep(_LEASE_SECONDS / 3)


class PackingSchedule:
    """One schedule.

    Args:
        seed: decides all of it.
        calm: whether nothing goes wrong.
    """

    def __init__(self, seed: int, *, traced: bool = False, calm: bool | None = None) -> None:
        self.world = World(seed, traced=traced)
        random = self.world.random
        self._faults = Faults.draw(random)
        if calm if calm is not None else random.random() < 0.3:
            self._faults = Faults(longest_call=self._faults.longest_call)
        self._is_calm = not self._faults.any
        replicated = bool(seed % 2) and not self._is_calm
        if replicated:
            self._faults = self._faults.with_failovers(random, _BEHIND)
        kinds = {"notifies": False, "replicated": replicated}
        self.store = SharedStore(self.world, self._faults, partitions=random.choice((1, 8)), **kinds)
        self.store.watchers.append(self._on_commit)
        self.bucket, self.known, self.found = Bucket(), Known(), list[str]()
        self.servers = list[PackingServer]()
        self._calls: dict[object, PackingServer | None] = {}
        self._busy_until = self.world.now + _BUSY_SECONDS
        self.talks = ColdTalks[PackingServer](self.world, self._later, self.found)
        for _ in range(random.choice((2, 3))):
            self._start()

    @property
    def violations(self) -> list[str]:
        """What was found that must not be."""
        return self.found

    def run(self) -> None:
        """Run it."""
        world = self.world
        self._begin_clients()
        self._torment(world.now + _BUSY_SECONDS)
        world.run_until(lambda: bool(self._failed), world.now + _BUSY_SECONDS)
        world.log("world", "nothing goes wrong any more")
        self._faults.heal()
        if not self._alive:
            self._start()
        self._await("responses are not packed", self._all_packed)
        if self._is_calm and not self._failed:
            self._check_shares()
        for response_id in self.known.stored:
            self._later(1.0, partial(self._check, response_id))
        for talk in self.talks.known.values():
            self._later(1.0, partial(self.talks.check, talk))
        self._await("responses are not read", lambda: not self._open)
        for response_id in self.known.stored:
            self._later(1.0, partial(self._delete, response_id))
        for talk in self.talks.known.values():
            self._later(1.0, partial(self.talks.delete, talk))
        self._await("something is left after all was deleted", self._is_empty)

    # What happens to servers.

    @property
    def _failed(self) -> list[str]:
        self.found += [*self.bucket.missed, *self.world.defects]
        self.world.defects.clear()
        self.bucket.missed.clear()
        return self.found

    @property
    def _alive(self) -> list[PackingServer]:
        return [each for each in self.servers if each.process.alive]

    def _start(self) -> None:
        self.servers.append(PackingServer(self.world, f"server{len(self.servers) + 1}", self.store, self.bucket))

    def _torment(self, until: float) -> None:
        if self.world.now < until and not self._is_calm:
            if self.world.random.random() < 0.02:
                self._faults.away_until = self.world.now + self.world.random.choice((4.0, 60.0))
            for server in self._alive:
                if self.world.random.random() < 0.05:
                    self._befall(server)
            self.world.after(60.0, lambda: self._torment(until))

    def _befall(self, server: PackingServer) -> None:
        random = self.world.random
        if not server.process.alive or not self._faults.any:
            return
        if random.random() < 0.5:
            server.process.kill()
            self.world.after(random.uniform(1.0, 900.0), self._start)
        else:
            server.process.pause(random.choice((5.0, 60.0, 5_000.0)))

    def _on_commit(self, who: str, ops: Sequence[Op], store: SharedStore) -> None:
        """Check what a commit does to the records of responses, before it is applied."""
        keys = {op.key for op in ops if isinstance(op, Put | Delete)}
        if any(isinstance(op, Put) and op.key.startswith("cp/") for op in ops) and self.world.now < self._busy_until:
            self.talks.disturb()
        for op in ops:
            if isinstance(op, Put) and op.key.startswith("r/"):
                self._on_record(
                    who, op, moves=any(isinstance(each, Delete) and each.key.startswith(CHAINS) for each in ops)
                )
        if self.store.replicated and any(isinstance(op, Delete) and op.key.startswith(CHAINS) for op in ops):
            self.world.after(self.world.random.uniform(0.0, self._faults.behind), self._look)
        if (
            not self._is_calm
            and any(key.startswith((CHAINS, "cp/")) for key in keys)
            and store.world.random.random() < 0.1
        ):
            [server] = [each for each in self.servers if each.process.name == who]
            store.world.after(store.world.random.uniform(0.0, 2.0), lambda: self._befall(server))

    def _look(self) -> None:
        """Have a server look for objects without chains, perhaps while replicas lack the commit that took the last."""

        async def look() -> None:
            with suppress(ApiError, ObjectsAway):
                await server.packing.collect()

        if self._alive:
            server = self.world.random.choice(self._alive)
            server.process.start(look)

    def _on_record(self, who: str, op: Put, *, moves: bool) -> None:
        response_id, before = op.key.removeprefix("r/"), self.store.get(op.key)
        stub = RecordStub.read(Record(op.value, 1))
        if stub is None:
            self.known.back[response_id] += moves
        elif not moves:
            self.known.packed[response_id] += 1
            if before is None:
                self.found.append(f"{response_id} is packed although it is gone")
            elif RecordStub.read(before):
                self.found.append(f"{response_id} is packed although it is packed")
            if turn := self.known.stored.get(response_id):
                self.known.packers.setdefault(turn.owner.principal, set()).add(who)

    # What clients do.

    def _begin_clients(self) -> None:
        random = self.world.random
        clients = [partial(self._client, number) for number in range(_CHAINS)]
        clients += [partial(self.talks.client, random.choice(_OWNERS), _BUSY_SECONDS) for _ in range(_TALKS)]
        for each in clients:
            self._later(random.uniform(0.0, _BUSY_SECONDS / 3), each)

    def _later(self, seconds: float, work: Callable[[PackingServer], Awaitable[None]]) -> None:
        """Have a server do something, which is over when it has, or has ended."""
        call = object()
        self._calls[call] = None

        def begin() -> None:
            if not self._alive:
                self.world.after(5.0, begin)
                return
            server = self._calls[call] = self.world.random.choice(self._alive)
            server.process.start(partial(self._done, call, server, work))

        self.world.after(seconds, begin)

    @property
    def _open(self) -> bool:
        """Whether a call has not ended, although its server has not either."""
        return any(server is None or server.process.alive for server in self._calls.values())

    async def _done(
        self, call: object, server: PackingServer, work: Callable[[PackingServer], Awaitable[None]]
    ) -> None:
        try:
            await work(server)
        except ApiError as error:
            if error.status != UNAVAILABLE or self._is_calm:
                self.found.append(f"a call fails: {error}")
            if not self._faults.any:
                self._later(30.0, work)
        self._calls.pop(call)

    async def _client(self, number: int, server: PackingServer) -> None:
        """Store a chain of responses, and read, continue and delete some of them later."""
        random = self.world.random
        owner, base, texts, tag = random.choice(_OWNERS), None, list[str](), random.randrange(1, 4096)
        for turn in range(random.choice((1, 2, 3))):
            base, texts = await self._turn(server, owner, base, texts, f"{number}.{turn}", tag)
        for _ in range(random.choice((0, 1, 2))):
            wait, response_id = random.uniform(0.0, _BUSY_SECONDS), base or ""
            kind = random.random()
            if kind < 0.4:
                self._later(wait, partial(self._check, response_id))
            elif kind < 0.7:
                self._later(wait, partial(self._go_on, response_id, number))
            else:
                self._later(wait, partial(self._delete, response_id))

    async def _turn(
        self, server: PackingServer, owner: Owner, base: str | None, texts: Sequence[str], text: str, tag: int
    ) -> tuple[str, list[str]]:
        stored = await server.archive.load(base) if base else None
        if base and stored is None:
            return base, [*texts]
        created = response(
            assistant(f"answer {text}"),
            id=new_id("resp", tag),
            previous_response_id=base,
            created_at=int(self.world.now),
            instructions="x" * 300,
        )
        history = stored.history if stored else None
        await server.archive.save(created, owner=owner, base=history, input_items=[user(f"question {text}")])
        now = [*texts, f"question {text}", f"answer {text}"]
        self.known.stored[created["id"]] = Turn(owner, now)
        return created["id"], now

    async def _go_on(self, response_id: str, number: int, server: PackingServer) -> None:
        if response_id not in self.known.deleting:
            turn = self.known.stored[response_id]
            await self._turn(
                server, turn.owner, response_id, turn.texts, f"{number}.more {self.world.now:.0f}", tag_of(response_id)
            )

    async def _check(self, response_id: str, server: PackingServer) -> None:
        """Read a response with its history, and compare."""
        is_deleted = response_id in self.known.deleted
        stored = await server.archive.load(response_id)
        if response_id in self.known.deleting:
            if stored and is_deleted:
                self.found.append(f"{response_id} is there although it was deleted")
            return
        if stored is None:
            self.found.append(f"{response_id} is lost")
            return
        items = await server.archive.history(stored.history)
        found = [_text_of(item) for item in items]
        if found != self.known.stored[response_id].texts and response_id not in self.known.deleting:
            self.found.append(f"{response_id} has another history: {found}")

    async def _delete(self, response_id: str, server: PackingServer) -> None:
        self.known.deleting.add(response_id)
        await server.archive.delete(response_id)
        self.known.deleted.add(response_id)

    # What has to come about.

    def _await(self, complaint: str, done: Callable[[], bool]) -> None:
        until = self.world.now + _PATIENCE
        while not self._failed and not done():
            if self.world.now >= until:
                self.found.append(f"{complaint}: {', '.join(self._rows()[:20])}, {[*self.bucket.objects]}")
                return
            self.world.run_until(lambda: bool(self._failed), self.world.now + 60.0)

    def _all_packed(self) -> bool:
        """Return whether all that is idle is packed, and nothing is left of it."""
        rows = self.store.rows("r/") | self.store.rows("m/")
        return not self._open and all(place_of(*row) for row in rows.items()) and not self.store.rows("cl/")

    def _rows(self) -> list[str]:
        noted = [key for key, record in self.store.rows(HELD).items() if record.value]
        return noted + [key for key in self.store.rows("") if not key.startswith(_KEPT)]

    def _is_empty(self) -> bool:
        if self._open:
            return False
        # A response whose creation was not acknowledged is known to none.
        paged = [key for page in self.store.rows(PAGES).values() for key in decoded(page.value)]
        for key in (key for key in (*self.store.rows("r/"), *paged) if key.startswith("r/")):
            response_id = key.removeprefix("r/")
            if response_id not in self.known.stored:
                self.known.stored[response_id] = Turn(_OWNERS[0], ())
                self._later(1.0, partial(self._delete, response_id))
                return False
        for key, record in self.store.rows("c/").items():
            conversation_id = key.removeprefix("c/")
            if conversation_id not in self.talks.known:
                talk = self.talks.known[conversation_id] = Talk(Conversation.decode(conversation_id, record))
                self._later(1.0, partial(self.talks.delete, talk))
                return False
        return not self._rows() and not self.bucket.objects

    def _check_shares(self) -> None:
        """Check that no response was packed again without need, and those of a user in one partition by one server."""
        for response_id, times in self.known.packed.items():
            if times > 1 + self.known.back[response_id]:
                self.found.append(f"{response_id} is packed {times} times")
        for owner, packers in self.known.packers.items():
            if len(packers) > 1 and len(self.store.parts) == 1:
                self.found.append(f"several servers pack responses of {owner}: {sorted(packers)}")


def _text_of(item: dict[str, Any]) -> str:
    content = item["content"]
    return content if isinstance(content, str) else content[0]["text"]


def simulate_packing(seed: int, *, traced: bool = False) -> Outcome:
    """Run the schedule of a seed, and return what came of it."""
    return outcome_of(seed, lambda: PackingSchedule(seed, traced=traced), traced=traced)
