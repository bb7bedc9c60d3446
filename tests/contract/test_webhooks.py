"""On every backend, each event reaches each of its endpoints, whoever delivers it, and whatever the receivers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_network
from threading import Event
from typing import Any, ClassVar, Final

import openai
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.webhooks import dispatcher
from llama_stack_responses.features.webhooks.deliveries import Deliveries
from llama_stack_responses.features.webhooks.dispatcher import Dispatcher, Retries, Target
from llama_stack_responses.features.webhooks.endpoints import Endpoints
from llama_stack_responses.features.webhooks.opened import recorded
from llama_stack_responses.features.webhooks.rows import DELIVERIES, QUEUE, Delivery, Endpoint
from llama_stack_responses.features.webhooks.sending import Sender
from llama_stack_responses.features.webhooks.settings import EVENT_TYPES
from llama_stack_responses.features.webhooks.signing import new_secret
from llama_stack_responses.features.webhooks.stored import EndpointsOfOwners
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.jobs.served_partitions import ServedPartitions, WatchedRows
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.records import Records, pages_of, partitions_of
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.backends import Clock
from tests.contract.conversations import assistant, response
from tests.support.exported_telemetry import ExportedTelemetry
from tests.support.waiting import until
from tests.support.web import Answer, ReceivedRequest, Web

pytestmark = pytest.mark.needs("transactions")

ADA: Final = Owner("ada")
BOB: Final = Owner("bob")
DAY: Final = 86_400.0
LOOPBACK: Final = AddressPolicy([ip_network("127.0.0.0/8")])
OF_CONFIG: Final = "we_ofconfiguration"


@dataclass
class Workers:
    """The workers of some servers.

    Attributes:
        living: the names of those that live.
    """

    worker_id: str
    living: set[str]
    served: ServedPartitions

    async def leases(self, workers: Iterable[str]) -> dict[str, float]:
        return dict.fromkeys(self.living & {*workers}, 0.0)

    def watched(self, prefix: str) -> WatchedRows:
        return self.served.watched(prefix)


class Server:
    """A server that delivers webhooks."""

    living: ClassVar[set[str]] = set()

    def __init__(
        self,
        records: Records,
        clock: Clock,
        configured: dict[str, Target] | None = None,
        policy: AddressPolicy = LOOPBACK,
        telemetry: Telemetry | None = None,
        seconds: float = 10,
    ) -> None:
        self.records, self.clock = records, clock
        self.endpoints = Endpoints(records, Sealer([b"k" * 32]))
        types = dict.fromkeys(configured or {}, EVENT_TYPES)
        self.deliveries = Deliveries(records, self.endpoints, types, 30 * DAY)
        self.dispatcher = Dispatcher(
            records,
            self.endpoints,
            self.deliveries,
            configured or {},
            Sender(policy, seconds),
            Retries(5, 3 * DAY),
            telemetry or Telemetry(),
            poll_seconds=0.01,
        )
        self.worker_id = new_id("worker")
        self.living.add(self.worker_id)
        self.dispatcher.work_with(Workers(self.worker_id, self.living, ServedPartitions(records, None)))
        self.archive = Archive(records, clock=clock, at_end=[partial(recorded, 4 * DAY)])

    async def make(self) -> None:
        """Make the deliveries of all events."""
        for number in range(partitions_of(self.records)):
            while await self.deliveries.make(number):
                pass

    async def create(self, url: str, owner: Owner = ADA, types: tuple[str, ...] = EVENT_TYPES) -> tuple[Endpoint, str]:
        return await self.endpoints.create(owner, "Jobs", url, types, 20)

    async def end(self, owner: Owner = ADA, **fields: Any) -> str:
        ended = response(assistant("hi"), **{"background": True, **fields})
        await self.archive.save(ended, owner=owner, base=None, input_items=[])
        response_id: str = ended["id"]
        return response_id

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        self.dispatcher.start()
        try:
            yield
        finally:
            await self.dispatcher.stop()

    async def all(self) -> list[Delivery]:
        """Return all deliveries, oldest first."""
        return [Delivery.decode(row.value) async for rows in pages_of(self.records, DELIVERIES) for _, row in rows]

    async def looked(self) -> None:
        """Wait until it has looked for what is due from now on, and has done what it could about it."""
        for _ in range(2):  # it may be looking already
            self.dispatcher.look()
            await until(lambda: not self.dispatcher._wake.is_set())
        if sending := list(self.dispatcher._sending.values()):
            await asyncio.wait(sending)

    async def settled(self, *, tries: int = 1, passing: float = 0.0) -> list[Delivery]:
        """Wait until every delivery has been tried so often; let `passing` seconds go by before each look."""
        async with asyncio.timeout(60):
            while not (found := await self.all()) or any(not each.attempts or each.tried < tries for each in found):
                self.clock.now += passing
                await self.looked()
        return found


@pytest.fixture
def server(records: Records, clock: Clock) -> Server:
    return Server(records, clock)


@pytest.fixture
def receiver() -> Iterator[Web]:
    with Web() as web:
        web.answer_all = lambda _: Answer(b"ok")
        yield web


def answer_after(event: Event) -> Answer:
    """Return an answer once the event is set."""
    event.wait()
    return Answer()


def verified(request: ReceivedRequest, secret: str) -> Any:
    """Check the signature as a receiver does; return the event."""
    with openai.OpenAI(api_key="none") as client:
        client.webhooks.verify_signature(request.body, request.headers, secret=secret, tolerance=10**10)
    return request.json()


@pytest.mark.every_store
@pytest.mark.parametrize("status", ["completed", "failed", "cancelled", "incomplete"])
async def test_end_of_background_response_is_delivered_signed(server: Server, receiver: Web, status: str) -> None:
    _, secret = await server.create(receiver.url("/hook"))
    response_id = await server.end(status=status)
    async with server.delivering():
        [delivery] = await server.settled()

    [request] = receiver.seen
    event = verified(request, secret)
    assert (event["type"], event["object"], event["data"]) == (f"response.{status}", "event", {"id": response_id})
    assert request.headers["webhook-id"] == delivery.id
    assert (delivery.status, delivery.attempts[0].status, delivery.attempts[0].text) == ("delivered", 200, "ok")


async def test_others_and_foreground_responses_and_other_types_are_not_delivered(server: Server, receiver: Web) -> None:
    await server.create(receiver.url("/hook"), types=("response.failed",))
    await server.end(BOB, status="failed")
    await server.end(status="completed")
    await server.end(status="failed", background=False)
    wanted = await server.end(status="failed")
    async with server.delivering():
        await server.settled()

    assert [each.json()["data"]["id"] for each in receiver.seen] == [wanted]


async def test_endpoint_of_the_configuration_gets_events_of_all_users(
    records: Records, clock: Clock, receiver: Web
) -> None:
    secret = new_secret()
    server = Server(records, clock, {OF_CONFIG: Target(receiver.url("/all"), [secret])})
    ids = {await server.end(ADA), await server.end(BOB)}
    async with server.delivering():
        await until(lambda: len(receiver.seen) == 2)

    assert {verified(each, secret)["data"]["id"] for each in receiver.seen} == ids


@pytest.mark.every_store
async def test_server_that_dies_between_sending_and_storing_is_replaced_with_the_same_id(
    records: Records, clock: Clock, receiver: Web
) -> None:
    dying, other = Server(records, clock), Server(records, clock)
    await dying.create(receiver.url("/hook"))
    await dying.end()
    hold = Event()
    receiver.answer_all = lambda _: Answer([b"late", hold])
    async with dying.delivering():
        await until(lambda: len(receiver.seen) == 1)
        # It is killed: its lease stays, and what it would do at its end is not done.
        for task in dying.dispatcher._sending.values():
            dying.dispatcher._records = None  # type: ignore[assignment]
            task.cancel()
    receiver.answer_all = lambda _: Answer(b"ok")
    async with other.delivering():
        await other.looked()
        assert len(receiver.seen) == 1, "its worker counts as alive"
        dying.living.discard(dying.worker_id)
        [delivery] = await other.settled()
    hold.set()

    assert delivery.status == "delivered"
    assert len({each.headers["webhook-id"] for each in receiver.seen}) == 1


@pytest.mark.every_store
async def test_several_servers_deliver_each_event_once(records: Records, clock: Clock, receiver: Web) -> None:
    servers = [Server(records, clock) for _ in range(3)]
    await servers[0].create(receiver.url("/hook"))
    ids = [await servers[0].end() for _ in range(20)]
    async with servers[0].delivering(), servers[1].delivering(), servers[2].delivering():
        await until(lambda: len(receiver.seen) >= len(ids))
        await servers[0].settled()

    assert sorted(each.json()["data"]["id"] for each in receiver.seen) == sorted(ids)
    assert [rows async for rows in pages_of(records, QUEUE)] == []


async def test_receiver_that_fails_twice_gets_it_with_back_off(server: Server, receiver: Web) -> None:
    answers = [Answer(b"busy", 503), Answer(b"", 302, {"location": receiver.url("/elsewhere")}), Answer(b"", 204)]
    receiver.answer_all = lambda _: answers.pop(0)
    endpoint, _ = await server.create(receiver.url("/hook"))
    await server.end()
    async with server.delivering():
        [first] = await server.settled()
        await server.looked()
        assert (first.status, len(receiver.seen)) == ("waiting", 1), "it is sent again only later"
        assert await server.endpoints.state(endpoint.id)
        [last] = await server.settled(tries=3, passing=1)

    assert last.status == "delivered"
    assert [each.status for each in last.attempts] == [503, 302, 204]
    first_pause, second_pause = (b.at - a.at for a, b in zip(last.attempts, last.attempts[1:], strict=False))
    assert 4 <= first_pause < second_pause
    assert len({each.headers["webhook-id"] for each in receiver.seen}) == 1
    assert {each.path for each in receiver.seen} == {"/hook"}
    assert await server.endpoints.state(endpoint.id) is None


async def test_private_address_is_refused(records: Records, clock: Clock, receiver: Web) -> None:
    server = Server(records, clock, policy=AddressPolicy())
    await server.create(receiver.url("/hook"))
    await server.end()
    async with server.delivering():
        [delivery] = await server.settled()

    assert receiver.seen == []
    assert (delivery.status, delivery.attempts[0].status) == ("waiting", None)
    assert "fetch.allowed_networks" in delivery.attempts[0].text


async def test_endless_answer_is_cut(server: Server, receiver: Web) -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * 65_536

    receiver.answer_all = lambda _: Answer(endless())
    await server.create(receiver.url("/hook"))
    await server.end()
    async with server.delivering():
        [delivery] = await server.settled()

    assert (delivery.status, len(delivery.attempts[0].text)) == ("delivered", 1_000)


async def test_receiver_that_does_not_answer_delays_no_other(server: Server, receiver: Web) -> None:
    hold = Event()
    with Web() as slow:
        slow.answer_all = lambda _: answer_after(hold)
        await server.create(slow.url("/hook"))
        for _ in range(9):
            await server.end()
        await server.create(receiver.url("/hook"), BOB)
        await server.end(BOB)
        async with server.delivering():
            await until(lambda: bool(receiver.seen))
            assert len(slow.seen) <= 4
            hold.set()


async def test_owners_share_the_slots_of_a_server(
    records: Records, clock: Clock, receiver: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those with slow receivers do not have all; one whose turn it is waits for one attempt, not for all that wait."""
    monkeypatch.setattr(dispatcher, "_ENDPOINTS", 4)
    monkeypatch.setattr(dispatcher, "_ENDPOINTS_OF_OWNER", 2)
    server, round_of_one, others = Server(records, clock, seconds=600), Event(), Event()
    with Web() as slow:

        def hung(request: ReceivedRequest) -> Answer:
            tried = [each.path for each in slow.seen]
            ends = request.path == tried[0] and tried.count(request.path) <= 4
            return answer_after(round_of_one if ends else others)

        async def hang(owner: Owner) -> None:
            for name in "abcd":
                await server.create(slow.url(f"/{owner.principal}/{name}"), owner)
            for _ in range(5):
                await server.end(owner)

        slow.answer_all = hung
        await server.create(receiver.url("/hook"), BOB)
        await hang(ADA)
        async with server.delivering():
            await until(lambda: len(slow.seen) == 8)
            await server.end(BOB)
            await until(lambda: len(receiver.seen) == 1)
            await hang(Owner("cem"))
            # How many messages of an endpoint are sent together depends on when they are stored.
            await until(lambda: len({each.path for each in slow.seen}) == 4)
            await server.end(BOB)
            await until(lambda: server.dispatcher._slots.waiting == 5)
            round_of_one.set()
            await until(lambda: len(receiver.seen) == 2)
            others.set()


async def test_status_of_an_answer_decides_though_its_body_does_not_end(server: Server, receiver: Web) -> None:
    hold = Event()
    receiver.answer_all = lambda _: Answer([b"taken", hold], 202)
    await server.create(receiver.url("/hook"))
    await server.end()
    async with server.delivering():
        [delivery] = await server.settled()
    hold.set()

    assert (delivery.status, delivery.attempts[0]) == ("delivered", (delivery.attempts[0].at, 202, "taken"))


async def test_endpoint_that_answers_410_is_disabled_until_it_is_changed(
    server: Server, receiver: Web, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer_all = lambda _: Answer(b"", 410)
    endpoint, _ = await server.create(receiver.url("/hook"))
    await server.end()
    await server.end()
    async with server.delivering():
        deliveries = await server.settled()
        state = await server.endpoints.state(endpoint.id)
        assert {each.status for each in deliveries} == {"failed"}
        assert state
        assert state.disabled_at
        assert caplog.text.count("disabled webhook endpoint") == 1

        await server.end()
        await server.make()
        assert len(await server.all()) == 2, "a disabled endpoint gets nothing"

        receiver.answer_all = lambda _: Answer(b"ok")
        await server.endpoints.update(ADA, endpoint.id, {"name": "Again"})
        await server.end()
        await until(lambda: len(receiver.seen) == 3)


async def test_endpoint_that_fails_for_three_days_is_disabled_and_its_delivery_given_up(
    server: Server, receiver: Web, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.answer_all = lambda _: Answer(b"broken", 500)
    endpoint, _ = await server.create(receiver.url("/hook"))
    await server.end()
    began = server.clock.now
    async with server.delivering():
        async with asyncio.timeout(60):
            while (await server.settled())[0].status == "waiting":
                server.clock.now += 3600
                await server.looked()

    assert 3 * DAY <= server.clock.now - began < 4 * DAY
    [delivery] = await server.all()
    assert delivery.status == "failed"
    assert delivery.tried >= 12
    state = await server.endpoints.state(endpoint.id)
    assert state
    assert state.disabled_at
    assert f"disabled webhook endpoint {endpoint.id}" in caplog.text


async def test_delivery_is_sent_again_on_request_with_its_id(server: Server, receiver: Web) -> None:
    endpoint, _ = await server.create(receiver.url("/hook"))
    await server.end()
    of = Hasher(ADA).owner
    async with server.delivering():
        [delivery] = await server.settled()
        with pytest.raises(ApiError):
            await server.deliveries.resend(Hasher(BOB).owner, endpoint.id, delivery.id)
        await server.deliveries.resend(of, endpoint.id, delivery.id)
        await until(lambda: len(receiver.seen) == 2)

    assert len({each.headers["webhook-id"] for each in receiver.seen}) == 1
    assert (await server.deliveries.page(endpoint.id, None, 20))[0][0].id == delivery.id


async def test_rotations_that_keep_the_old_secret_sign_with_all_for_a_day(server: Server, receiver: Web) -> None:
    endpoint, oldest = await server.create(receiver.url("/hook"))
    _, old = await server.endpoints.rotate(ADA, endpoint.id, DAY)
    _, new = await server.endpoints.rotate(ADA, endpoint.id, DAY)
    async with server.delivering():
        await server.end()
        await until(lambda: len(receiver.seen) == 1)
        for secret in (oldest, old, new):
            verified(receiver.seen[0], secret)
        server.clock.now += DAY + 1
        await server.end()
        await until(lambda: len(receiver.seen) == 2)

    verified(receiver.seen[1], new)
    with pytest.raises(openai.InvalidWebhookSignatureError):
        verified(receiver.seen[1], old)


@pytest.mark.every_store
async def test_secret_is_not_in_the_store(server: Server, records: Records) -> None:
    _, secret = await server.create("https://hooks.example.com/a")
    stored = b"".join([row.value async for rows in pages_of(records, "wh/") for _, row in rows])
    assert secret.removeprefix("whsec_").encode() not in stored


async def test_owner_may_have_only_so_many_endpoints(server: Server) -> None:
    create: Callable[[], Any] = lambda: server.endpoints.create(ADA, "a", "https://a.example", EVENT_TYPES, 3)  # noqa: E731
    made = await asyncio.gather(*(create() for _ in range(6)), return_exceptions=True)
    assert sum(isinstance(each, ApiError) for each in made) == 3
    assert len(await server.endpoints.of_owner(Hasher(ADA).owner)) == 3


@pytest.mark.every_store
async def test_deletion_of_an_owner_leaves_nothing(records: Records, clock: Clock, receiver: Web) -> None:
    server = Server(records, clock, {OF_CONFIG: Target(receiver.url("/all"), [new_secret()])})
    await server.create(receiver.url("/hook"))
    await server.create(receiver.url("/hook"), BOB)
    for owner in (ADA, BOB):
        await server.end(owner)
    async with server.delivering():
        await until(lambda: len(receiver.seen) == 4)
        await server.settled()
    await server.end(ADA)

    stored = EndpointsOfOwners(records)
    exported = [each async for each in stored.export(ADA)]
    assert [len([each async for each in one.each]) for one in exported] == [1]
    for endpoint in [each async for each in stored.ids_of(ADA)]:
        await stored.delete(ADA, endpoint)
    await stored.forget(ADA)

    of = Hasher(ADA).owner
    left = [(key, row.value) async for rows in pages_of(records, "wh/") for key, row in rows]
    assert not [key for key, value in left if of in key or of.encode() in value]
    assert {each.of for each in await server.all()} == {Hasher(BOB).owner}


async def test_gauge_has_the_time_that_the_oldest_delivery_has_waited(
    records: Records, clock: Clock, receiver: Web
) -> None:
    watched = ExportedTelemetry()
    server = Server(records, clock, telemetry=watched.telemetry)
    receiver.answer_all = lambda _: Answer(b"", 503)
    began = clock()
    for name in ("a", "b"):
        await server.create(receiver.url(f"/{name}"))
        await server.end()
        await server.make()
        clock.now += 40
    async with server.delivering():
        await until(lambda: server.dispatcher._oldest is not None)
        found = await asyncio.to_thread(watched.points)
    [(_, _, value)] = found["llama_stack_responses.webhook.waiting"]
    assert value == clock() - began == 80
