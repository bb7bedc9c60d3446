"""The lists of models between the host's own refreshes."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host import model_refresh
from llama_stack_responses.host.inference import HostInference
from llama_stack_responses.host.model_refresh import ModelRefresh
from tests.support.waiting import until

USER: Final = ContextVar[str]("USER", default="")


def model(provider: str, name: str) -> Any:
    """Return a model of a provider."""
    return SimpleNamespace(provider_id=provider, provider_resource_id=name, identifier=f"{provider}/{name}")


class Provider:
    """A provider whose server has models, or is down."""

    def __init__(self, name: str, *names: str) -> None:
        self.name, self.names, self.refreshes, self.asked = name, list(names), True, 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.users: list[str] = []

    async def should_refresh_models(self) -> bool:
        """Return whether its models may change."""
        return self.refreshes

    async def list_models(self) -> list[Any]:
        """List its models."""
        self.asked += 1
        self.users.append(USER.get())
        await self.gate.wait()
        if self.error:
            raise self.error
        return [model(self.name, each) for each in self.names]


class Table:
    """The host's routing table."""

    def __init__(self, *providers: Provider) -> None:
        self.impls_by_provider_id = {each.name: each for each in providers}
        self.models: dict[str, Any] = {}
        self.updates: list[str] = []

    async def get_all_with_type(self, kind: str) -> list[Any]:
        """List all models."""
        assert kind == "model"
        return list(self.models.values())

    async def get_object_by_identifier(self, kind: str, name: str) -> Any:
        """Find a model."""
        assert kind == "model"
        return self.models.get(name)

    async def update_registered_models(self, provider: str, models: list[Any]) -> None:
        """Register a provider's models."""
        self.updates.append(provider)
        self.models = {name: each for name, each in self.models.items() if each.provider_id != provider}
        self.models |= {each.identifier: each for each in models}


async def test_models_of_a_server_that_starts_later_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_refresh, "_PAUSES", (0.001, 0.002))
    late, listed = Provider("late"), Provider("listed", "m")
    late.error = ConnectionError("down")
    table = Table(late, listed)
    await table.update_registered_models("listed", await listed.list_models())
    refresh = ModelRefresh(table)
    refresh.start()
    try:
        await until(lambda: late.asked > 2)
        assert set(table.models) == {"listed/m"}
        late.error, late.names = None, ["a", "b"]
        await until(lambda: len(table.models) == 3)
        asked = late.asked
        await asyncio.sleep(0.02)
        assert (late.asked, listed.asked) == (asked, 1), "those that list models are left alone"
    finally:
        await refresh.close()


async def test_refreshes_are_shared_and_spared_for_seconds() -> None:
    now = 0.0
    provider = Provider("local", "m")
    provider.gate.clear()
    table = Table(provider)
    refresh = ModelRefresh(table, lambda: now)
    USER.set("ann")
    waiting = [asyncio.create_task(refresh.refresh()) for _ in range(3)]
    await until(lambda: provider.asked == 1)
    waiting[0].cancel()
    provider.gate.set()
    assert await asyncio.gather(*waiting[1:]) == [True, True]
    assert (provider.asked, provider.users, set(table.models)) == (1, [""], {"local/m"})
    now = 2.9
    assert not await refresh.refresh()
    now = 3.0
    assert await refresh.refresh()
    assert (provider.asked, table.updates) == (2, ["local"]), "the same list is not registered again"


async def test_server_that_does_not_answer_or_is_not_to_be_asked_holds_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(model_refresh, "_LISTING_SECONDS", 0.01)
    silent, static, fine = Provider("silent", "m"), Provider("static", "m"), Provider("fine", "m")
    silent.gate.clear()
    static.refreshes = False
    table = Table(silent, static, fine)
    assert await ModelRefresh(table).refresh()
    assert (set(table.models), static.asked) == ({"fine/m"}, 0)


async def test_unknown_model_is_looked_for_once_before_it_is_refused() -> None:
    provider = Provider("local", "m")
    table = Table(provider)
    router = SimpleNamespace(routing_table=table)
    refresh = ModelRefresh(table).refresh
    inference = HostInference(router, store_chat_completions=True, refresh=refresh)
    for _ in range(2):
        with pytest.raises(ApiError, match="Did you mean 'local/m'"):
            await inference.check_model("m")
    assert provider.asked == 1
