"""The cards of the live view: the store, the server, the model servers and stalled jobs, for each kind of user."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest

from llama_stack_responses.chat.inference import ModelServer
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError, Upstream
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.feature import Stack
from llama_stack_responses.features.page.model_servers_card import model_servers_card
from llama_stack_responses.features.page.server_card import server_card
from llama_stack_responses.features.page.store_card import StoreSizes, store_card
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.telemetry.model_failures import LastFailures

ALICE: Final = Owner("alice", {"roles": ["user"]})
ADMIN: Final = Owner("admin", {"roles": ["admin"]})
CONFIG: Final = ResponsesConfig(roles={"operator": {"roles": ["admin"]}})
SERVERS: Final = {
    "near/qwen3": ModelServer("near", address="10.0.0.7:8000"),
    "far/gpt": ModelServer("far", address="api.example.com:443"),
}


class Providers:
    """Model servers of which one does not answer; counts how often they are asked."""

    checked_at = 1_000.0

    def __init__(self) -> None:
        self.asked = 0
        self.states = {"near": True, "far": False, "hidden": None}

    async def check(self) -> None:
        self.asked += 1


def impl_for(user: Owner, **parts: Any) -> OpenAIResponsesImpl:
    """Return the parts of a server that the cards read, for this user."""

    async def adaptations_of(model: str) -> list[str]:
        return ["system_first"] if model == "near/qwen3" else []

    access = SimpleNamespace(current_user=lambda: user)
    gauges = SimpleNamespace(model_rounds=lambda: {"near": (3, 2)})
    well, intact = SimpleNamespace(volatile=False), SimpleNamespace(damaged=False)
    checks = SimpleNamespace(providers=Providers(), next_sweep=480.0, durability=well, integrity=intact)
    given = {"config": CONFIG, "access": access, "gauge_sources": gauges, "checks": checks}
    known = {"model_failures": LastFailures(), "adaptations_of": adaptations_of}
    return cast("OpenAIResponsesImpl", SimpleNamespace(**{**given, **known, **parts}))


def stack_with(*models: str) -> Stack:
    async def names() -> list[str]:
        return list(models)

    async def server_of(model: str) -> ModelServer:
        return SERVERS[model]

    return cast("Stack", SimpleNamespace(models=names, inference=SimpleNamespace(server_of=server_of)))


async def test_model_servers_have_their_models_changes_and_failures() -> None:
    failures = LastFailures()
    failures.add("far", "far/gpt", Upstream("timeout"))
    failures.add("far", "far/gpt", Upstream("server_error", 503))
    impl = impl_for(ALICE, model_failures=failures)
    far, near = await model_servers_card(impl, stack_with("near/qwen3", "far/gpt")).sections()
    assert (near["title"], near["at"], near["trouble"]) == ("near", 1_000.0, None)
    assert near["facts"] == ["answers", "1 model"]
    assert near["rows"] == [["near/qwen3", "system_first", "none"]]
    assert (far["title"], far["trouble"]) == ("far", "It does not answer.")
    assert far["rows"] == [["far/gpt", "none", "0 s ago: it reported an error of its own (503), 2 in all"]]


async def test_user_sees_no_model_servers_of_others_and_no_addresses() -> None:
    [near] = await model_servers_card(impl_for(ALICE), stack_with("near/qwen3")).sections()
    assert "10.0.0.7" not in str(near)
    assert "rounds" not in str(near)


async def test_only_operators_are_told_of_failures_with_models_that_they_do_not_see() -> None:
    failures = LastFailures()
    failures.add("near", "near/secret", Upstream("connection"))
    [near] = await model_servers_card(impl_for(ALICE, model_failures=failures), stack_with("near/qwen3")).sections()
    assert "failure" not in str(near["facts"])
    seen = impl_for(ADMIN, model_failures=failures)
    *_, near = await model_servers_card(seen, stack_with("near/qwen3")).sections()
    assert near["facts"][-1] == "last failure 0 s ago: it could not be reached"


@pytest.mark.parametrize("user", [ADMIN, ANONYMOUS])
async def test_operator_sees_all_model_servers_with_their_addresses(user: Owner) -> None:
    sections = await model_servers_card(impl_for(user), stack_with("near/qwen3")).sections()
    assert [each["title"] for each in sections] == ["far", "hidden", "near"]
    assert "10.0.0.7:8000" in sections[2]["facts"]
    assert "3 rounds run, 2 wait" in sections[2]["facts"]
    assert sections[1]["facts"] == ["does not say whether it answers", "0 models"]


async def test_many_who_ask_again_have_the_model_servers_asked_once() -> None:
    impl = impl_for(ALICE)
    refresh = model_servers_card(impl, stack_with()).refresh
    assert refresh
    for _ in range(20):
        await refresh()
    assert cast("Providers", impl.checks.providers).asked == 1


class Store(MemoryRecords):
    """A store that grows by a byte a second."""

    def __init__(self, clock: Callable[[], float] = float) -> None:
        super().__init__()
        self._seconds = clock

    async def size(self) -> int | None:
        return 4_000_000 + int(self._seconds())

    async def free(self) -> int | None:
        return 2_000_000_000


async def test_only_those_who_see_the_server_are_told_how_large_the_store_is() -> None:
    sizes = StoreSizes(Store())
    [section] = await store_card(impl_for(ALICE), sizes).sections()
    assert section["facts"] == ["keeps responses for 30 days", "deletes what has expired in 8 min"]
    assert section["title"] == "Stored responses"
    [section] = await store_card(impl_for(ADMIN), sizes).sections()
    assert (section["title"], section["facts"][:2], section["trouble"]) == ("sqlite", ["4.0 MB", "2.0 GB free"], None)


async def test_growth_of_the_store_is_that_of_the_last_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("llama_stack_responses.features.page.store_card.time.monotonic", lambda: clock.now)
    sizes = StoreSizes(Store(lambda: clock.now))
    for _ in range(30):
        clock.now += 300.0
        await sizes.look()
    [section] = await store_card(impl_for(ADMIN), sizes).sections()
    assert section["facts"][0] == "4.0 MB, 3.6 kB more than 1 h 0 min ago"


async def test_store_that_does_not_answer_is_said() -> None:
    class Away(Store):
        async def size(self) -> int | None:
            raise ApiError(503, "The store does not answer.")

    [section] = await store_card(impl_for(ADMIN), StoreSizes(Away())).sections()
    assert section["trouble"] == "The store does not answer."


async def test_damaged_store_is_said() -> None:
    impl = impl_for(ADMIN)
    impl.checks.integrity.damaged = True
    [section] = await store_card(impl, StoreSizes(Store())).sections()
    assert section["trouble"].startswith("Its file is damaged")


async def test_server_has_its_versions_and_what_is_ill() -> None:
    async def ready() -> Any:
        parts = {"store": "ok", "model_server": "unavailable"}
        return SimpleNamespace(status="not_ready", ready=False, parts=parts, notes={"sweep": "held"})

    [section] = await server_card(impl_for(ADMIN, ready=ready)).sections()
    assert section["facts"][0].startswith("version ")
    assert section["trouble"] == "model server: unavailable; sweep: held."
    [section] = await server_card(impl_for(ALICE)).sections()
    assert section["trouble"] is None
