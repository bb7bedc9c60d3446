"""The clients of a simulation: each sends requests, tries again, follows streams, and checks what it was promised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from io import BytesIO
from typing import Any, Final

import orjson

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.statuses import ENDED_BATCH, UNFINISHED
from llama_stack_responses.features.batches.rows import Batch
from llama_stack_responses.features.batches.stored_batches import cancelled
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.items.listed_items import Page
from llama_stack_responses.service.detached_responses import DetachedResponse
from llama_stack_responses.service.response_reader import ServerClosing
from llama_stack_responses.store.content_names import Hasher
from tests.simulation.cluster import Cluster
from tests.simulation.ledger import is_last
from tests.simulation.model import asked
from tests.simulation.server import ConnectionLost, Server
from tests.simulation.world import Process
from tests.support.reservations import unlimited

type Json = dict[str, Any]

OWNERS: Final = (Owner("anna"), Owner("ben"))
EVENT_TYPES: Final = (
    "response.completed",
    "response.failed",
    "response.cancelled",
    "response.incomplete",
    "batch.completed",
    "batch.cancelled",
)
_SILENCE: Final = 15.0
_RETRY: Final = 1.0


@dataclass(slots=True)
class Promises:
    """What clients were told, which has to be so in the end.

    Attributes:
        stored: the responses whose creation was acknowledged, each with its owner.
        final: the responses that were returned as ended, each as it was.
        deleted: the responses whose deletion was acknowledged or begun.
        conversations: the owners of the conversations whose creation was acknowledged, by their ids.
        batches: the owners of the batches whose creation was acknowledged, by their ids.
        endpoints: the owners of the webhook endpoints, by their ids.
    """

    stored: dict[str, Owner] = field(default_factory=dict)
    background: set[str] = field(default_factory=set)
    final: dict[str, Json] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    conversations: dict[str, Owner] = field(default_factory=dict)
    batches: dict[str, Owner] = field(default_factory=dict)
    endpoints: dict[str, Owner] = field(default_factory=dict)


class Clients:
    """All clients. They live in a process that nothing befalls.

    Args:
        cluster: the servers.

    Attributes:
        promises: what they were told.
        waiting: what has not ended, in words.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.world = cluster, cluster.world
        self.ledger, self.promises = cluster.ledger, Promises()
        self.waiting: dict[str, None] = {}
        self._process = Process(cluster.world, "clients")
        self._random = cluster.world.random
        self._jobs = 0

    def start(self, name: str, work: Callable[[], Awaitable[None]], delay: float = 0.0) -> None:
        """Let a client do something after a while."""
        self.waiting[name] = None

        async def run() -> None:
            await asyncio.sleep(delay)
            await work()
            del self.waiting[name]

        self._process.start(run)

    # What clients do.

    async def background(self, owner: Owner, readers: int) -> None:
        """Create a background response and follow it; perhaps cancel or delete it, or continue it."""
        body = self.body(background=True)
        response_id = await self.created(owner, body)
        if response_id is None:
            return
        for number in range(readers):
            name = f"reader {number} of {response_id}"
            self.start(name, partial(self._read, name, owner, response_id), self._random.uniform(0.0, 6.0))
        chance = self._random.random()
        if chance < 0.2:
            await asyncio.sleep(self._random.uniform(0.0, 8.0))
            await self._cancel(owner, response_id)
        elif chance < 0.4:
            await asyncio.sleep(self._random.uniform(0.0, 20.0))
            await self.delete(owner, response_id)
        elif chance < 0.7 and await self.ended(owner, response_id):
            if self._random.random() < 0.3:
                self.start(f"deletion of {response_id}", lambda: self.delete(owner, response_id))
            await self.created(owner, self.body(background=True, previous_response_id=response_id))

    async def keyed(self, owner: Owner, key: str, senders: int, *, background: bool) -> None:
        """Send a request with an Idempotency-Key several times; all get the same response."""
        body, got = self.body(background=background), list[str]()

        async def send() -> None:
            while True:
                try:
                    response = await self.call(owner, lambda server: _create(server, body, key, finish=not background))
                except ApiError as error:
                    if error.status not in (429, 502, 503):
                        raise
                    await asyncio.sleep(self._random.uniform(0.0, _RETRY))
                else:
                    got.append(response["id"])
                    self.promise(owner, response)
                    return

        await asyncio.gather(*(send() for _ in range(senders)))
        if len(set(got)) > 1:
            self.ledger.fail(f"the requests with the Idempotency-Key '{key}' get different responses: {set(got)}")

    async def foreground(self, owner: Owner, count: int) -> None:
        """Create responses and wait for them, one after the other; perhaps delete one as soon as it is there."""
        for _ in range(count):
            response = await self.finished(owner, self.body(background=False))
            if response is not None:
                self.promise(owner, response)
                if self._random.random() < 0.5:
                    await self.delete(owner, response["id"])

    async def batch(self, owner: Owner, lines: int) -> None:
        """Create a batch, perhaps cancel it, and wait for its end; its files have each line once."""
        ids = [f"line {number}" for number in range(lines)]
        texts = [self._line(custom_id) for custom_id in ids]
        file_id = await self.cluster.files.write("input", BytesIO(b"\n".join(texts)), None)
        batch = await self.once(owner, lambda server: _create_batch(server, owner, file_id))
        if batch is None:
            return
        self.promises.batches[batch.id] = owner
        of = Hasher(owner).owner
        if withdrawn := self._random.random() < 0.3:
            await asyncio.sleep(self._random.uniform(0.0, 12.0))
            withdrawn = await self.call(owner, lambda server: _cancel_batch(server, of, batch.id))
        while True:
            await asyncio.sleep(3.0)
            found = await self.call(owner, lambda server: server.batches.find(of, batch.id))
            if found is None:
                self.ledger.fail(f"{batch.id} is lost")
                return
            if found.status in ENDED_BATCH:
                self._check_files(found, ids, withdrawn=withdrawn)
                return

    async def endpoint(self, owner: Owner) -> None:
        """Create a webhook endpoint."""
        url = f"https://receiver/{len(self.promises.endpoints)}"
        made, _ = await self.call(owner, lambda server: server.endpoints.create(owner, "", url, EVENT_TYPES, 20))
        self.promises.endpoints[made.id] = owner

    async def delete(self, owner: Owner, response_id: str) -> None:
        """Delete a response."""
        self.promises.deleted.add(response_id)
        await self.settled(owner, lambda server: server.impl.delete(response_id))
        self._process.log(f"{response_id} is deleted")
        if self.cluster.store.get(f"r/{response_id}"):
            self.ledger.fail(f"{response_id} is stored although its deletion was acknowledged")

    async def check_list(self, owner: Owner) -> None:
        """Check that the list of an owner's responses has all that were acknowledged and not deleted."""
        listed, after, has_more = set[str](), None, True
        while has_more:
            page = await self.call(owner, partial(_listed, after=after))
            listed.update(each["id"] for each in page.data)
            after, has_more = page.last or (page.data[-1]["id"] if page.data else None), page.has_more
        promises = self.promises
        missing = {each for each, of in promises.stored.items() if of == owner} - promises.deleted - listed
        if missing:
            self.ledger.fail(f"the list of {owner.principal} lacks {sorted(missing)}")

    async def delete_conversation(self, owner: Owner, conversation_id: str) -> None:
        """Delete a conversation with its items."""
        await self.settled(owner, lambda server: server.impl.conversations.delete(conversation_id))

    async def delete_endpoint(self, owner: Owner, endpoint_id: str) -> None:
        """Delete a webhook endpoint."""
        await self.settled(owner, lambda server: server.endpoints.delete(owner, endpoint_id))

    # How they do it.

    def log(self, what: str) -> None:
        """Add a line to the trace."""
        self._process.log(what)

    def text(self, rounds: int, calls: int) -> tuple[int, str]:
        """Return the number of a new job, and its text."""
        self._jobs += 1
        return self._jobs, asked(self._jobs, rounds, calls)

    def body(self, **fields: Any) -> Json:
        """Return the body of a request for a new job."""
        _, text = self.text(self._random.choice((1, 1, 2, 3)), self._random.choice((1, 2)))
        return {"model": "m", "input": text, "tools": [{"type": "web_search"}], **fields}

    def _line(self, custom_id: str) -> bytes:
        line = {"custom_id": custom_id, "method": "POST", "url": "/v1/responses", "body": self.body()}
        return orjson.dumps(line)

    def promise(self, owner: Owner, response: Json) -> None:
        """Note what a client was told of a response."""
        self._process.log(f"{response['id']} is acknowledged: {response['status']}")
        self.promises.stored[response["id"]] = owner
        if response["background"]:
            self.promises.background.add(response["id"])
        if response["status"] not in UNFINISHED:
            self.promises.final[response["id"]] = response

    async def finished(self, owner: Owner, body: Json) -> Json | None:
        """Return a foreground response as it ended; None if its request failed."""
        try:
            return await self.call(owner, partial(_create, body=body, key=None, finish=True), 1)
        except ApiError as error:
            if error.status not in (429, 500, 502, 503):
                raise
            return None

    async def created(self, owner: Owner, body: Json) -> str | None:
        """Return the id of a background response; None if its creation was not acknowledged."""
        response = await self.once(owner, lambda server: _create(server, body, None, finish=False))
        if response is None:
            return None
        self.promise(owner, response)
        response_id: str = response["id"]
        return response_id

    async def once[Result](self, owner: Owner, work: Callable[[Server], Awaitable[Result]]) -> Result | None:
        """Return the answer of any server; None if it is not known whether there is one, or the request is refused."""
        try:
            return await self.call(owner, work, 1)
        except ApiError as error:
            if error.status not in (400, 404, 429, 503):
                raise
            return None

    async def call[Result](
        self, owner: Owner, work: Callable[[Server], Awaitable[Result]], tries: int = 10_000
    ) -> Result:
        """Return the answer of any server, which is asked again at another one if it is lost.

        Raises:
            ApiError: the request is refused, or no server has answered.
        """
        for _ in range(tries):
            if servers := self.cluster.alive:
                try:
                    return await self._random.choice(servers).call(self._process, owner, work)
                except ConnectionLost:
                    pass
                except ApiError as error:
                    if error.status != 503 or tries == 1:
                        raise
            await asyncio.sleep(self._random.uniform(0.0, _RETRY))
        raise ApiError(503, "No server has answered.")

    async def settled(self, owner: Owner, work: Callable[[Server], Awaitable[object]]) -> bool:
        """Have something done; return False if the object does not exist, perhaps since it was done before."""
        try:
            await self.call(owner, work)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def _cancel(self, owner: Owner, response_id: str) -> None:
        await self.settled(owner, lambda server: server.impl.cancel(response_id))

    async def ended(self, owner: Owner, response_id: str) -> bool:
        """Wait until a response has ended; return whether it is stored."""
        while True:
            try:
                response = await self.call(owner, lambda server: server.impl.reader.retrieve(response_id))
            except ApiError as error:
                if error.status != 404:
                    raise
                return False
            if response["status"] not in UNFINISHED:
                self.promise(owner, response)
                return True
            await asyncio.sleep(2.0)

    async def _read(self, name: str, owner: Owner, response_id: str) -> None:
        """Read all events of a response, from as many streams as it takes."""
        after, ended, since, streams = -1, False, self.world.now, 0

        def connect() -> Callable[[list[Json]], None]:
            nonlocal streams
            streams += 1
            return partial(receive, streams)

        def receive(stream: int, events: list[Json]) -> None:
            nonlocal after, ended
            if not ended and stream == streams:  # What an earlier connection still had on its way does not arrive.
                after = self.ledger.on_events(name, response_id, after, events, since)
                ended = is_last(events)

        while not ended:
            since = self.world.now
            try:
                await self.call(owner, lambda server: self._stream(server, response_id, after, connect))
            except ApiError as error:
                if error.status == 404 and response_id in self.promises.deleted:
                    return
                raise
            await asyncio.sleep(self._random.uniform(0.0, _RETRY))

    async def _stream(
        self, server: Server, response_id: str, after: int, connect: Callable[[], Callable[[list[Json]], None]]
    ) -> None:
        """Send events, in the process of a server, until the stream is cut."""
        receive = connect()
        followed = await server.impl.reader.follow(response_id, after, _SILENCE, unlimited)
        arrives = self.world.now
        try:
            async with aclosing(followed) as stream:
                async for events in stream:
                    if server.process.buried or self._random.random() < self.cluster.faults.streams_cut:
                        return
                    if events:
                        arrives = max(arrives, self.world.now) + self._random.uniform(0.0, 0.01)
                        self.world.at(arrives, partial(receive, events), self._process)
        except ServerClosing:
            return
        await asyncio.sleep(0.02)

    def _check_files(self, batch: Batch, ids: Sequence[str], *, withdrawn: bool) -> None:
        """Check that the files of a batch have each of its lines once, in order."""
        ids = ids if batch.total or not withdrawn else ()
        found = []
        for file_id in (batch.output_file_id, batch.error_file_id):
            lines = self.cluster.files.contents[file_id].splitlines() if file_id else []
            found += [orjson.loads(line)["custom_id"] for line in lines]
        if (
            batch.status != ("cancelled" if withdrawn else "completed")
            or sorted(found) != sorted(ids)
            or batch.completed + batch.failed != len(ids)
        ):
            self.ledger.fail(f"{batch.id} ends as {batch.status} with the lines {found} of {ids}")


async def _create(server: Server, body: Json, key: str | None, *, finish: bool) -> Json:
    """Create a response as the route does; wait for its end with `finish`."""
    created = await server.impl.create(body, key)
    if isinstance(created, ForegroundRun):
        await created.begin()
        return await created.finish()
    assert isinstance(created, DetachedResponse)
    if finish:
        return await server.impl.detached.finish(created.response["id"])
    return created.response


async def _listed(server: Server, after: str | None) -> Page:
    return await server.impl.reader.list(limit=5, after=after, order="desc", model=None)


async def _create_batch(server: Server, owner: Owner, file_id: str) -> Batch:
    now = await server.batches.now()
    tag = server.impl.archive.placement.of_owner(owner)
    batch = Batch(Batch.new_id(now, tag), owner, "/v1/responses", file_id, "24h", now, now + 86_400.0)
    await server.batches.create(batch, 50)
    server.look(batch.id)
    return batch


async def _cancel_batch(server: Server, of: str, batch_id: str) -> bool:
    """Return whether a batch is cancelled; False if it ends otherwise."""
    try:
        found = await server.batches.change(of, batch_id, partial(cancelled, await server.batches.now()))
    except ApiError as error:
        if error.status != 409:
            raise
        # An earlier call whose answer was lost may have cancelled it.
        found = await server.batches.find(of, batch_id)
    server.look(batch_id)
    return found is not None and found.end == "cancelled"
