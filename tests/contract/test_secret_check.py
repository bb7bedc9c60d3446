"""On every backend, servers share the secret of their store, and find out that they seal with different secrets."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.page.search.demand import Demand
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.secret_check import SecretCheck
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer, UnknownSecret
from llama_stack_responses.store.kept_secret import KEPT_SECRET, SecretRow
from llama_stack_responses.store.records import Put, Records
from tests.contract.backends import Backend, BackendLocation, Clock
from tests.contract.counting_proxy import CountingProxy

OLD, NEW = b"o" * SECRET_BYTES, b"n" * SECRET_BYTES
SERVERS: Final = 8


def sealer_of(records: Records, *secrets: bytes) -> Sealer:
    return Sealer(secrets, SecretRow(records))


def server(records: Records, *secrets: bytes) -> SecretCheck:
    return SecretCheck(records, sealer_of(records, *secrets), DEFAULT)


def sealed(sealer: Sealer) -> str:
    return sealer.seal(b"thought", purpose="reasoning", owner=ANONYMOUS)


def opens(sealer: Sealer, seal: str) -> bool:
    try:
        return sealer.open(seal, purpose="reasoning", owner=ANONYMOUS) == b"thought"
    except UnknownSecret:
        return False


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]


# -- the secret of the store ---------------------------------------------------


async def test_search_that_somebody_made_is_no_secret(records: Records) -> None:
    await Demand(records).ask()
    check = server(records, OLD)
    await check.check()
    assert not check.differs


async def test_servers_that_start_at_once_on_an_empty_store_share_one_secret(
    backend: Backend, place: BackendLocation, clock: Clock, records: Records
) -> None:
    """The later ones open the store as other processes do, if it can be opened by several."""
    alone = not records.transactional or not backend.persistent
    opened = [records if alone else backend.open(place, clock) for _ in range(SERVERS)]
    sealers = [sealer_of(each) for each in opened]
    await asyncio.gather(*[each.load() for each in sealers])
    assert len({each.fingerprints for each in sealers}) == 1
    assert all(opens(one, sealed(other)) for one in sealers for other in sealers)
    for each in opened:
        await each.close()


async def test_secret_of_a_store_outlives_its_servers(
    backend: Backend, place: BackendLocation, clock: Clock, records: Records
) -> None:
    first = sealer_of(records)
    await first.load()
    seal = sealed(first)
    if backend.persistent:
        await records.close()
        records = backend.open(place, clock)
    clock.now += 10 * DEFAULT.secret_row_seconds
    await records.sweep(clock.now)
    again = sealer_of(records)
    await again.load()
    assert opens(again, seal)
    await records.close()


async def test_configured_secret_seals_and_that_of_the_store_opens(records: Records) -> None:
    kept = sealer_of(records)
    await kept.load()
    configured = sealer_of(records, NEW)
    await configured.load()
    assert opens(configured, sealed(kept))
    assert opens(Sealer([NEW]), sealed(configured)), "it does not seal with the one of the store"


async def test_configured_secret_leaves_no_secret_in_the_store(records: Records) -> None:
    await sealer_of(records, NEW).load()
    assert await records.get_many([KEPT_SECRET]) == {}


async def test_secret_of_the_store_is_read_once(records: Records) -> None:
    counting = CountingProxy(records)
    for sealer in (sealer_of(counting), sealer_of(counting, NEW)):
        await sealer.load()
        before = counting.reads
        await sealer.load()
        assert counting.reads == before > 0


async def test_server_with_secret_learns_that_of_a_store_which_another_server_makes(
    records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    configured = sealer_of(records, NEW)
    check = SecretCheck(records, configured, DEFAULT)
    await check.check()
    kept = sealer_of(records)
    other = SecretCheck(records, kept, DEFAULT)
    await other.check()
    assert other.differs, "it lacks the configured one"
    await check.check()
    assert not check.differs
    assert opens(configured, sealed(kept))
    [error] = errors(caplog)
    assert kept.fingerprints[0] in error


async def test_no_line_of_the_log_has_the_secret(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    await server(records).check()
    await server(records, NEW).check()
    [row] = (await records.get_many([KEPT_SECRET])).values()
    assert "'secrets'" in caplog.text
    assert row.value.decode() not in caplog.text


async def test_row_that_holds_no_secret_is_an_error_that_says_so(records: Records) -> None:
    await records.commit([Put(KEPT_SECRET, b"damaged")])
    with pytest.raises(ApiError, match="There is no secret of 32 bytes in the row 'secret'") as caught:
        await sealer_of(records).load()
    assert caught.value.status == 503
    configured = sealer_of(records, NEW)
    await configured.load()
    assert opens(configured, sealed(configured)), "it needs no other"


# -- comparison ----------------------------------------------------------------


async def test_servers_with_one_secret_log_nothing(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        check = server(records, OLD)
        await check.check()
        assert not check.differs
    assert not caplog.records


async def test_servers_without_a_configured_secret_do_not_differ(
    records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        check = server(records)
        await check.check()
        assert not check.differs
    assert not errors(caplog)


async def test_server_with_another_secret_logs_one_error(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    await server(records, OLD).check()
    check = server(records, NEW)
    for _ in range(2):
        await check.check()
        assert check.differs
    [error] = errors(caplog)
    assert "set the same RESPONSES_SECRET" in error
    assert Sealer([OLD]).fingerprints[0] in error


async def test_servers_that_start_at_once_with_different_secrets_both_find_out(records: Records) -> None:
    checks = [server(records, OLD), server(records, NEW)]
    await asyncio.gather(*[each.check() for each in checks])
    assert any(each.differs for each in checks), "the later one reads what the earlier one has written"
    await asyncio.gather(*[each.check() for each in checks])
    assert all(each.differs for each in checks)


async def test_server_without_secret_logs_error_if_another_has_one(
    records: Records, caplog: pytest.LogCaptureFixture
) -> None:
    without = server(records)
    await without.check()
    await server(records, OLD).check()
    assert not errors(caplog)
    await without.check()
    assert without.differs
    assert Sealer([OLD]).fingerprints[0] in errors(caplog)[0]


async def test_rotation_in_three_steps_logs_no_error(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    for one, two in (([OLD], [OLD, NEW]), ([OLD, NEW], [NEW, OLD])):
        for secrets in (one, two):
            await server(records, *secrets).check()
    assert not errors(caplog)


async def test_rotation_that_skips_the_first_step_is_an_error_for_the_old_server(records: Records) -> None:
    old = server(records, OLD)
    await old.check()
    await server(records, NEW, OLD).check()
    await old.check()
    assert old.differs, "it cannot open what the new one seals"


async def test_store_forgets_a_secret_after_a_week(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "llama_stack_responses.lifecycle")
    await server(records, OLD).check()
    check = server(records, NEW)
    await check.check()
    clock.now += DEFAULT.secret_row_seconds + 1
    await check.check()
    assert not check.differs
    assert caplog.record_tuples[-1][1:] == (logging.INFO, "secrets no longer differ between servers of this store")


async def test_running_server_renews_its_row(records: Records, clock: Clock) -> None:
    running = SecretCheck(records, Sealer([OLD]), replace(DEFAULT, secret_row_seconds=0.0))
    await running.check()
    clock.now += 60
    running._intervals = DEFAULT
    await running.check()
    check = server(records, NEW)
    await check.check()
    assert check.differs


async def test_store_holds_a_fingerprint_and_not_the_configured_secret(records: Records) -> None:
    await server(records, OLD).check()
    [(key, record)] = await records.range("se", "sf", limit=9)
    assert key == f"se/{Sealer([OLD]).fingerprints[0]}"
    assert not record.value
    assert OLD.hex()[:8] not in key
