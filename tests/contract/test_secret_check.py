"""On every backend, servers find out that they seal with different secrets."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.lifecycle.secret_check import SecretCheck
from llama_stack_responses.sealing.reasoning import reasoning_sealer
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.store.records import Records
from tests.contract.backends import Clock

OLD, NEW = b"o" * SECRET_BYTES, b"n" * SECRET_BYTES


def server(records: Records, *secrets: bytes) -> SecretCheck:
    return SecretCheck(records, Sealer(secrets), DEFAULT)


def server_without_secret(records: Records) -> SecretCheck:
    return SecretCheck(records, reasoning_sealer(Sealer([])), DEFAULT)


async def pass_time(clock: Clock, *checks: SecretCheck) -> None:
    """Let a time pass after which servers without a secret check again."""
    clock.now += DEFAULT.process_secret_seconds
    for each in checks:
        await each.check()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.ERROR]


async def test_servers_with_one_secret_log_nothing(records: Records, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        check = server(records, OLD)
        await check.check()
        assert not check.differs
    assert not caplog.records


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
    without = server_without_secret(records)
    await without.check()
    await server(records, OLD).check()
    assert not errors(caplog)
    await without.check()
    assert without.differs
    assert "this one has none but one of its own process" in errors(caplog)[0]


@pytest.mark.needs("transactions")
async def test_server_with_secret_logs_error_if_another_has_none(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    without, check = server_without_secret(records), server(records, OLD)
    await without.check()
    await check.check()
    await pass_time(clock, without)
    await check.check()
    assert check.differs
    assert len(errors(caplog)) == 2, "both lack the secret of the other"


@pytest.mark.needs("transactions")
async def test_servers_without_secret_both_log_an_error(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    both = [server_without_secret(records), server_without_secret(records)]
    for each in both:
        await each.check()
    await pass_time(clock, *both)
    await pass_time(clock, *both)
    assert all(each.differs for each in both)
    assert len(errors(caplog)) == 2
    clock.now += 60
    await both[0].check()
    assert not both[0].differs, "the other one has ended"


async def test_server_without_secret_that_starts_again_logs_nothing(
    records: Records, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a new secret, and the row of the old one is still there."""
    for _ in range(3):
        check = server_without_secret(records)
        await check.check()
        await pass_time(clock, check)
        assert not check.differs
    assert not errors(caplog)


@pytest.mark.needs("transactions")
async def test_store_soon_forgets_the_secret_of_a_process(records: Records, clock: Clock) -> None:
    await server_without_secret(records).check()
    assert await records.range("se/", "se0", limit=9)
    clock.now += 60
    assert not await records.range("se/", "se0", limit=9)


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


async def test_store_holds_a_fingerprint_and_not_the_secret(records: Records) -> None:
    await server(records, OLD).check()
    [(key, record)] = await records.range("se/", "se0", limit=9)
    assert key == f"se/{Sealer([OLD]).fingerprints[0]}"
    assert not record.value
    assert OLD.hex()[:8] not in key
