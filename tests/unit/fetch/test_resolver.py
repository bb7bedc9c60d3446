"""Name resolution: shares of owners, the deadline, and its independence of the event loop's own resolver."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from threading import Event, Lock
from typing import Any

import pytest
import uvloop

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.fetch.address_policy import AddressPolicy, UrlRefused
from llama_stack_responses.fetch.resolver import LookupLimits, Resolver, system_addresses
from tests.support.shares import as_user
from tests.support.waiting import until

ADA, BOB = Owner("ada"), Owner("bob")
FAR = 60.0


class FakeDns:
    """A DNS in which the names that begin with `slow` have no answer until `end`."""

    def __init__(self) -> None:
        self.looked_up: list[str] = []
        self.running = self.most_running = 0
        self._lock = Lock()
        self._ended = Event()

    def __enter__(self) -> "FakeDns":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        self._ended.set()

    def look_up(self, host: str, _: int) -> Sequence[str]:
        with self._lock:
            self.looked_up.append(host)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        try:
            if host.startswith("slow"):
                self._ended.wait(30)
            if host == "none":
                raise OSError("not found")
            return ["192.0.2.1"]
        finally:
            with self._lock:
                self.running -= 1

    def resolver(self, **limits: Any) -> Resolver:
        return Resolver(LookupLimits(**{"seconds": FAR, **limits}), self.look_up)


class CurrentUser:
    """The user to whom lookups count."""

    def __init__(self, names: FakeDns, **limits: Any) -> None:
        self.resolver = names.resolver(**limits)

    def start(self, owner: Owner, host: str) -> asyncio.Task[Sequence[str]]:
        return as_user(owner.identity, self.resolver.resolve(host, 80))


async def test_name_is_resolved() -> None:
    with FakeDns() as names:
        assert await names.resolver().resolve("a.example", 80) == ["192.0.2.1"]
        with pytest.raises(OSError, match="not found"):
            await names.resolver().resolve("none", 80)


async def test_slow_names_of_one_owner_leave_slots_to_others() -> None:
    with FakeDns() as names:
        users = CurrentUser(names, concurrency=4, concurrency_per_user=2)
        slow = [users.start(ADA, f"slow-{number}") for number in range(10)]
        await until(lambda: names.running == 2)
        assert await users.start(BOB, "a.example") == ["192.0.2.1"]
        assert names.most_running == 3
        names.end()
        await asyncio.gather(*slow)


async def test_lookups_of_stack_without_users_take_all_slots() -> None:
    with FakeDns() as names:
        resolver = names.resolver(concurrency=4, concurrency_per_user=1)
        slow = [as_user(ANONYMOUS.identity, resolver.resolve(f"slow-{number}", 80)) for number in range(6)]
        await until(lambda: names.running == 4)
        names.end()
        await asyncio.gather(*slow)
        assert names.most_running == 4


async def test_lookup_beyond_deadline_is_refused_and_keeps_slot_until_it_ends() -> None:
    with FakeDns() as names:
        resolver = names.resolver(concurrency=1, concurrency_per_user=1, seconds=0.05)
        with pytest.raises(UrlRefused, match=r"'slow' was not found within 0\.05 seconds"):
            await resolver.resolve("slow", 80)
        with pytest.raises(UrlRefused, match=r"'a\.example' was not found within"):
            await resolver.resolve("a.example", 80)
        assert names.looked_up == ["slow"]
        names.end()
        await until(lambda: names.running == 0)
        assert await names.resolver().resolve("a.example", 80) == ["192.0.2.1"]


async def test_slot_is_given_back_after_late_answer() -> None:
    with FakeDns() as names:
        resolver = names.resolver(concurrency=1, concurrency_per_user=1)
        looking = asyncio.create_task(resolver.resolve("slow", 80))
        await until(lambda: names.running == 1)
        looking.cancel()
        await asyncio.wait([looking])
        names.end()
        assert await resolver.resolve("a.example", 80) == ["192.0.2.1"]


async def test_waiting_lookups_of_one_owner_are_limited() -> None:
    with FakeDns() as names:
        resolver = names.resolver(concurrency=1, concurrency_per_user=1)
        slow = [as_user(ADA.identity, resolver.resolve("slow", 80)) for _ in range(257)]
        await until(lambda: names.running == 1)
        with pytest.raises(UrlRefused, match="Too many host names"):
            await as_user(ADA.identity, resolver.resolve("a.example", 80))
        names.end()
        await asyncio.gather(*slow)


async def test_reason_of_refused_lookup_is_shown() -> None:
    with FakeDns() as names:
        policy = AddressPolicy(resolve=names.resolver(seconds=0.05).resolve)
        with pytest.raises(UrlRefused, match=r"not found within 0\.05 seconds"):
            await policy.addresses("http", "slow.example", 80)


def run_on_uvloop(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work())


def test_slow_names_do_not_delay_lookups_of_event_loop() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        with FakeDns() as names:
            resolver = names.resolver()
            slow = [asyncio.create_task(resolver.resolve("slow", 80)) for _ in range(32)]
            await until(lambda: names.running == 32)
            async with asyncio.timeout(60):
                # What connections to model servers and stores use, and the threads of other work.
                assert await loop.getaddrinfo("localhost", 80)
                assert await asyncio.to_thread(lambda: 1) == 1
            assert names.running == 32
            names.end()
            await asyncio.gather(*slow)

    run_on_uvloop(work)


def test_system_resolves_this_machine() -> None:
    assert "127.0.0.1" in system_addresses("localhost", 80)
