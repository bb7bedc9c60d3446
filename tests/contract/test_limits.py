"""On every backend, the servers of a store share limits: none is exceeded, and little is left unused."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.limits.limiter import Limiter
from llama_stack_responses.features.usage.limits.meters import Meter
from llama_stack_responses.features.usage.limits.reports import Reports
from llama_stack_responses.features.usage.limits.slots import SECONDS, Slots
from llama_stack_responses.features.usage.limits.windows import DAY
from llama_stack_responses.features.usage.limits.windows import MINUTE as MINUTES
from llama_stack_responses.features.usage.prices import Prices
from llama_stack_responses.features.usage.settings import Limit, Price
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.generation.dependencies import Permit
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.records import Records
from llama_stack_responses.telemetry.instrumentation import Telemetry
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, response
from tests.contract.counting_proxy import CountingProxy
from tests.support.records import WatchedRecords, just_before_a_commit

pytestmark = pytest.mark.needs("transactions")

ADA: Final = Owner("ada", {"teams": ["search"], "keys": ["key_1"]})
BOB: Final = Owner("bob", {"teams": ["search"]})
PRICES: Final = Prices([Price(input=1e6)], "usd")
MINUTE: Final = CREATED // 60 * 60


@pytest.fixture
def clock() -> Clock:
    return Clock(MINUTE + 1.0)


class Server:
    """A server with limits."""

    def __init__(self, records: Records, clock: Clock, *limits: Limit, prices: Prices = PRICES) -> None:
        self.limiter = Limiter(records, limits, prices, Reports(Telemetry()), Activity())
        # The clock of the tests may be set; a store's own clock runs on.
        self.limiter._clock = clock  # type: ignore[assignment]
        self.limiter._read_at = float("inf")

    async def admit(self, owner: Owner = ADA, model: str = "m") -> Permit:
        return await self.limiter.admit(owner, parse_create({"model": model, "input": "Hi"}))

    async def admitted(self, owner: Owner = ADA, model: str = "m") -> bool:
        try:
            (await self.admit(owner, model)).release()
        except ApiError as error:
            if error.status != 429:
                raise
            return False
        return True

    async def use(self, permit: Permit, tokens: int, owner: Owner = ADA, model: str = "m") -> None:
        """End a response that has used so many tokens."""
        usage = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        self.limiter.count(Ended(response(usage=usage, model=model), owner, None, 1.0))
        permit.release()


def calls_of(counting: CountingProxy) -> int:
    return counting.reads + counting.commits


async def admitted_of(servers: list[Server], requests: int) -> int:
    return sum([await random.Random(number).choice(servers).admitted() for number in range(requests)])


@pytest.mark.every_store
@pytest.mark.parametrize("count", [1, 4])
async def test_requests_of_a_minute_are_exact_and_renewed(records: Records, clock: Clock, count: int) -> None:
    servers = [Server(records, clock, Limit(requests_per_minute=60)) for _ in range(count)]

    first = await admitted_of(servers, 200)
    assert 60 * 0.85 <= first <= 60
    clock.now += 60
    assert 60 * 0.85 <= await admitted_of(servers, 200) <= 60


@pytest.mark.parametrize("limit", [Limit(requests_per_minute=1), Limit(tokens_per_day=1), Limit(tokens_per_month=1)])
async def test_clock_that_was_ahead_and_is_set_back_counts_in_the_right_window(
    records: Records, clock: Clock, limit: Limit
) -> None:
    server, now = Server(records, clock, limit), clock.now
    await server.use(await server.admit(), 1)
    await server.limiter.settle()
    clock.now += 400 * 86_400
    await server.use(await server.admit(), 1)
    await server.limiter.settle()
    clock.now = now
    assert not await server.admitted()
    clock.now += 32 * 86_400
    assert await server.admitted()


async def test_servers_at_once_never_admit_more(records: Records, clock: Clock) -> None:
    servers = [Server(records, clock, Limit(requests_per_minute=100)) for _ in range(4)]

    admitted = await asyncio.gather(*(server.admitted() for server in servers for _ in range(100)))
    assert 85 <= sum(admitted) <= 100


async def test_server_that_takes_a_part_just_before_another_leaves_it_the_rest(records: Records, clock: Clock) -> None:
    first = Meter(records, clock, "meter", 10, MINUTES)
    second = Meter(just_before_a_commit(records, lambda: first.hold(6)), clock, "meter", 10, MINUTES)
    assert not await second.hold(6)

    assert await second.hold(4)
    assert not await Meter(records, clock, "meter", 10, MINUTES).hold(1)


async def test_request_seldom_asks_the_store(counting: CountingProxy, clock: Clock) -> None:
    server = Server(counting, clock, Limit(requests_per_minute=10_000, tokens_per_day=10**9, budget_per_month=1e6))
    assert await server.admitted()
    before = calls_of(counting)
    for _ in range(400):
        assert await server.admitted()

    assert calls_of(counting) - before <= 4


async def test_refusals_do_not_ask_the_store(counting: CountingProxy, clock: Clock) -> None:
    server = Server(counting, clock, Limit(requests_per_minute=1))
    assert [await server.admitted() for _ in range(2)] == [True, False]
    before = calls_of(counting)
    assert [await server.admitted() for _ in range(50)] == [False] * 50

    assert calls_of(counting) == before


async def test_tokens_over_the_limit_refuse_the_next_request_on_every_server(records: Records, clock: Clock) -> None:
    servers = [Server(records, clock, Limit(tokens_per_minute=1000)) for _ in range(2)]
    await servers[0].use(await servers[0].admit(), 5000)
    await servers[0].limiter.settle()

    for server in servers:
        with pytest.raises(ApiError) as refused:
            await server.admit()
        assert (refused.value.status, refused.value.code, refused.value.type) == (429, "rate_limit_exceeded", "tokens")
        assert refused.value.retry_after == 59
    clock.now += 60
    assert [await server.admitted() for server in servers] == [True, True]


async def test_tokens_of_many_servers_exceed_the_limit_by_running_responses_only(
    records: Records, clock: Clock
) -> None:
    """Each of four servers runs four responses of 100 tokens at a time; the limit is 10,000."""
    servers = [Server(records, clock, Limit(tokens_per_minute=10_000)) for _ in range(4)]
    used = 0

    async def work(server: Server) -> None:
        nonlocal used
        while True:
            try:
                permit = await server.admit()
            except ApiError:
                return
            await asyncio.sleep(0)
            await server.use(permit, 100)
            used += 100
            await server.limiter.settle()

    await asyncio.gather(*(work(server) for server in servers for _ in range(4)))
    assert 8_000 <= used <= 10_000 + 16 * 100


@pytest.mark.parametrize(
    ("limit", "code"),
    [
        (Limit(tokens_per_day=500), "insufficient_quota"),
        (Limit(tokens_per_month=500), "insufficient_quota"),
        (Limit(budget_per_day=500.0), "insufficient_quota"),
        (Limit(budget_per_month=500.0), "insufficient_quota"),
    ],
    ids=["tokens a day", "tokens a month", "costs a day", "costs a month"],
)
async def test_used_quota_is_final_until_its_window_ends(
    records: Records, clock: Clock, limit: Limit, code: str
) -> None:
    server = Server(records, clock, limit)
    await server.use(await server.admit(), 600)
    await server.limiter.settle()

    with pytest.raises(ApiError) as refused:
        await Server(records, clock, limit).admit()
    error = refused.value
    assert (error.code, error.type, error.retry_after) == (code, code, None)
    assert error.headers["x-should-retry"] == "false"
    clock.now += 32 * 86_400
    assert await server.admitted()


@pytest.mark.parametrize("limit", [Limit(tokens_per_day=500), Limit(budget_per_day=500.0)], ids=["tokens", "costs"])
async def test_quota_that_running_responses_may_use_is_not_final(records: Records, clock: Clock, limit: Limit) -> None:
    server = Server(records, clock, limit)
    await server.use(await server.admit(), 100)
    running = [await server.admit() for _ in range(4)]

    with pytest.raises(ApiError) as refused:
        await server.admit()
    assert (refused.value.code, refused.value.retry_after) == ("rate_limit_exceeded", 1)
    assert "x-should-retry" not in refused.value.headers
    await server.use(running.pop(), 1)
    assert await server.admitted()
    for each in running:
        await server.use(each, 100)
    assert await server.admitted()
    await server.use(await server.admit(), 100)
    with pytest.raises(ApiError) as refused:
        await server.admit()
    assert refused.value.code == "insufficient_quota"


async def test_responses_that_end_while_the_store_is_asked_do_not_refuse_the_next_request(
    records: Records, clock: Clock
) -> None:
    ends = 3

    async def end_some(call: str) -> None:
        nonlocal ends
        if call == "commit" and ends:
            ends -= 1
            meter.use(400)

    meter = Meter(WatchedRecords(records, after=end_some), clock, "meter", 10_000, DAY)
    assert await meter.hold(1)
    assert (ends, meter.unused) == (0, 10_000 - 3 * 400)


async def test_quota_outlives_its_servers(records: Records, clock: Clock) -> None:
    limit = Limit(tokens_per_day=10_000)
    for _ in range(10):
        server = Server(records, clock, limit)
        await server.use(await server.admit(), 900)
        await server.limiter.stop()

    last = Server(records, clock, limit)
    await last.use(await last.admit(), 1000)
    await last.limiter.settle()
    assert not await last.admitted()


@pytest.mark.parametrize(
    ("limit", "same", "other"),
    [
        (Limit(by="user", requests_per_minute=1), (ADA, "n"), (BOB, "m")),
        (Limit(by="team", requests_per_minute=1), (BOB, "m"), (Owner("eve", {"teams": ["sales"]}), "m")),
        (Limit(by="key", requests_per_minute=1), (Owner("eve", {"keys": ["key_1"]}), "m"), (BOB, "m")),
        (Limit(by="model", requests_per_minute=1), (BOB, "m"), (ADA, "n")),
        (Limit(by="all", requests_per_minute=1, models="m"), (BOB, "m"), (ADA, "n")),
        (Limit(by="user", match="a*", requests_per_minute=1), (ADA, "n"), (BOB, "m")),
    ],
    ids=["user", "team", "key", "model", "all", "match"],
)
async def test_limit_counts_those_that_it_is_for(
    records: Records, clock: Clock, limit: Limit, same: tuple[Owner, str], other: tuple[Owner, str]
) -> None:
    server = Server(records, clock, limit)
    assert await server.admitted(ADA, "m")

    assert not await server.admitted(*same)
    assert [await server.admitted(*other) for _ in range(1)] == [True]


def limited_by_key(*limits: str, key: str = "key_1") -> Owner:
    return Owner("ada", {"keys": [key], "limits": list(limits)})


async def test_limits_of_a_key_are_shared_by_servers_and_count_its_requests_alone(
    records: Records, clock: Clock
) -> None:
    """They hold without limits in the configuration."""
    servers = [Server(records, clock) for _ in range(2)]
    owner = limited_by_key("requests_per_minute=1", "tokens_per_day=100")
    other = limited_by_key("requests_per_minute=1", key="key_2")

    assert [await each.admitted(owner) for each in servers] == [True, False]
    assert [await each.admitted(other) for each in servers] == [True, False]
    assert [await each.admitted(Owner("ada", {"keys": ["key_3"]})) for each in servers] == [True, True]


async def test_tokens_of_a_key_are_counted_beside_the_limits_of_the_configuration(
    records: Records, clock: Clock
) -> None:
    """The configuration limits each key as well, under a name of its own."""
    owner, configured = limited_by_key("tokens_per_day=100"), Limit(by="key", match="key_1", tokens_per_day=1000)
    server = Server(records, clock, configured)
    await server.use(await server.admit(owner), 50, owner)
    assert await server.admitted(owner)
    await server.use(await server.admit(owner), 60, owner)
    await server.limiter.stop()

    assert not await Server(records, clock, configured).admitted(owner)
    assert await Server(records, clock, configured).admitted(Owner("ada", {"keys": ["key_1"]}))


async def test_limits_of_a_key_need_no_call_of_the_store_to_be_known(counting: CountingProxy, clock: Clock) -> None:
    server, owner = Server(counting, clock), limited_by_key("requests_per_minute=10000")
    assert await server.admitted(owner)
    before = calls_of(counting)
    for _ in range(100):
        assert await server.admitted(owner)

    assert calls_of(counting) - before <= 1


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("of_tomorrow=1", "(of_tomorrow)"),
        ("running=0", "(running)"),
        ("budget_per_day=1", "'usage.prices'"),
    ],
)
async def test_limits_of_a_key_that_cannot_be_enforced_refuse(
    records: Records, clock: Clock, limit: str, said: str
) -> None:
    server = Server(records, clock, prices=Prices((), "usd"))
    owner = limited_by_key(limit)
    with pytest.raises(ApiError) as refused:
        await server.admit(owner)

    assert (refused.value.status, refused.value.code) == (403, "insufficient_permissions")
    assert said in str(refused.value)
    server.limiter.count(Ended(response(), owner, None, 1.0))


async def test_limit_that_is_not_enforced_warns_once(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server(records, clock, Limit(requests_per_minute=10, enforced=False, name="trial"))
    admitted = [await server.admitted() for _ in range(20)]

    assert admitted == [True] * 20
    assert caplog.text.count("limit nearly reached: requests_per_minute of trial") == 1


async def test_refused_request_holds_nothing(records: Records, clock: Clock) -> None:
    """The second limit refuses: the first one has not counted the request."""
    server = Server(records, clock, Limit(requests_per_minute=10), Limit(by="all", requests_per_minute=1))
    assert [await server.admitted() for _ in range(5)] == [True, False, False, False, False]

    again = Server(records, clock, Limit(requests_per_minute=10))
    await server.limiter.stop()
    assert sum([await again.admitted() for _ in range(20)]) == 9


async def test_headers_show_the_tightest_limits(records: Records, clock: Clock) -> None:
    limits = Limit(requests_per_minute=100, tokens_per_minute=1000), Limit(by="all", requests_per_minute=10)
    permit = await Server(records, clock, *limits).admit()

    assert permit.headers == {
        "x-ratelimit-limit-requests": "10",
        "x-ratelimit-remaining-requests": "9",
        "x-ratelimit-reset-requests": "59s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "999",
        "x-ratelimit-reset-tokens": "59s",
    }


async def test_store_that_is_away_admits_and_counts_later(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    watched = WatchedRecords(records)
    server = Server(watched, clock, Limit(tokens_per_day=1000, running=2))
    watched.away = True
    permits = [await server.admit() for _ in range(5)]
    for permit in permits:
        await server.use(permit, 1000)
    with pytest.raises(ApiError):
        await server.limiter.settle()
    assert caplog.text.count("could not read limits, requests are admitted") == 1

    watched.away = False
    await server.limiter.settle()
    assert not await Server(records, clock, Limit(tokens_per_day=1000, running=2)).admitted()


@pytest.mark.every_store
async def test_running_responses_of_all_servers_are_limited(records: Records, clock: Clock) -> None:
    servers = [Server(records, clock, Limit(running=10)) for _ in range(4)]
    permits: list[Permit] = []
    refused: list[object] = []
    for number in range(60):
        try:
            permits.append(await servers[number % 4].admit())
        except ApiError as error:
            refused.append((error.status, error.code, error.retry_after))
        clock.now += 1
    assert 8 <= len(permits) <= 10
    assert set(refused) == {(429, "rate_limit_exceeded", 1)}

    for permit in permits:
        permit.release()
    clock.now += 1
    for server in servers:
        server.limiter._renew_at = 0.0
        await server.limiter.settle()
    clock.now += 1
    assert await servers[0].admitted()


async def test_background_responses_of_all_servers_are_limited_until_their_ends_are_stored(
    records: Records, clock: Clock
) -> None:
    servers = [Server(records, clock, Limit(by="team", background=2)).limiter for _ in range(2)]
    request = parse_create({"model": "m", "input": "Hi", "background": True})
    for number, limiter in enumerate(servers):
        permit = await limiter.admit(ADA, request)
        await records.commit(permit.ops(f"resp_{number}"))
        permit.release()
    for limiter in servers:
        with pytest.raises(ApiError, match="of this team wait or run: limit 2"):
            await limiter.admit(BOB, request)
        (await limiter.admit(Owner("eve", {"teams": ["sales"]}), request)).release()
    # The other server has run it.
    await records.commit(servers[1].ended_ops(Ended(response(id="resp_0", background=True), ADA, None, 1.0)))
    (await servers[0].admit(BOB, request)).release()


async def test_background_responses_that_are_created_at_once_do_not_exceed_the_limit(
    records: Records, clock: Clock
) -> None:
    limiter = Server(records, clock, Limit(background=5)).limiter
    request = parse_create({"model": "m", "input": "Hi", "background": True})

    async def create(number: int) -> bool:
        try:
            permit = await limiter.admit(ADA, request)
        except ApiError:
            return False
        await records.commit(permit.ops(f"resp_{number}"))
        permit.release()
        return True

    assert sum(await asyncio.gather(*map(create, range(20)))) == 5


async def test_slots_of_a_killed_server_are_free_after_their_time(records: Records, clock: Clock) -> None:
    killed, other = (Slots(records, clock, name, "slots", 2) for name in ("a", "b"))
    assert [await killed.acquire() for _ in range(2)] == [True, True]
    assert not await other.acquire()

    clock.now += SECONDS / 2
    await killed.renew()
    clock.now += SECONDS / 2 + 1
    assert not await other.acquire()
    clock.now += SECONDS
    assert [await other.acquire() for _ in range(2)] == [True, True]


async def test_slots_of_a_killed_server_are_free_while_another_renews_its_own(records: Records, clock: Clock) -> None:
    killed, other = (Slots(records, clock, name, "slots", 2) for name in ("a", "b"))
    assert [await each.acquire() for each in (killed, other)] == [True, True]

    for _ in range(3):
        assert not await other.acquire()
        clock.now += SECONDS / 2 - 1
        await other.renew()
    assert await other.acquire()


async def test_slot_that_another_server_takes_just_before_is_not_taken_twice(records: Records, clock: Clock) -> None:
    first = Slots(records, clock, "a", "slots", 1)
    second = Slots(just_before_a_commit(records, first.acquire), clock, "b", "slots", 1)
    assert not await second.acquire()


async def test_released_permit_can_be_released_again(records: Records, clock: Clock) -> None:
    server = Server(records, clock, Limit(running=1, tokens_per_minute=100))
    permit = await server.admit()
    for _ in range(2):
        permit.release()
    held = await server.admit()
    assert not await server.admitted()
    held.release()
