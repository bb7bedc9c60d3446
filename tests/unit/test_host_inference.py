"""What the host's inference router and its providers get of a chat request."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import pytest
from llama_stack.core.routers import inference as host
from llama_stack_api import Model, ModelType

from llama_stack_responses.host.inference import HostInference

Json = dict[str, Any]

TOOL: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT: Final[Json] = {"model": "local/m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Provider:
    """Notes the requests that it gets."""

    __provider_id__ = "local"

    def __init__(self) -> None:
        self.requests: list[Json] = []

    async def openai_chat_completion(self, params: Any) -> AsyncGenerator[Any]:
        self.requests.append({name: getattr(params, name) for name in params.model_fields_set})
        return self._chunks()

    async def _chunks(self) -> AsyncGenerator[Any]:
        return
        yield


class Looking(Provider):
    """Looks the model up, as llama-stack's own providers do."""

    async def _get_provider_model_id(self, model: str) -> str:
        raise NotImplementedError


class Table:
    """The routing table of one provider, with the models that it lists."""

    policy: tuple[()] = ()

    def __init__(self, provider: Provider, *listed: str) -> None:
        self.impls_by_provider_id = {"local": provider}
        self._listed = {
            f"local/{name}": Model(
                identifier=f"local/{name}", provider_resource_id=name, provider_id="local", model_type=ModelType.llm
            )
            for name in listed
        }

    async def get_object_by_identifier(self, kind: str, name: str) -> Model | None:
        assert kind == "model"
        return self._listed.get(name)

    async def get_provider_impl(self, name: str) -> Provider:
        return self.impls_by_provider_id[self._listed[name].provider_id]


async def sent(chat: Json, *listed: str, provider: Provider | None = None) -> Json:
    """What the provider gets."""
    provider = provider or Provider()
    router = host.InferenceRouter(Table(provider, *listed))
    async for _ in await HostInference(router, store_chat_completions=False).open(chat):
        pass
    [request] = provider.requests
    return request


@pytest.mark.parametrize("listed", [("m",), ()], ids=["listed", "by its provider's name"])
@pytest.mark.parametrize("choice", [{}, {"tool_choice": "required"}], ids=["free", "required"])
async def test_tools_reach_the_provider_past_the_routers_check(
    monkeypatch: pytest.MonkeyPatch, listed: tuple[str, ...], choice: Json
) -> None:
    monkeypatch.delattr(host, "TypeAdapter")
    request = await sent({**CHAT, "tools": [TOOL, TOOL], **choice}, *listed)
    assert request == {**CHAT, "model": "m", "tools": [TOOL, TOOL], **choice}


async def test_no_tool_is_shown_where_none_may_be_called() -> None:
    assert await sent({**CHAT, "tools": [TOOL], "tool_choice": "none"}) == {**CHAT, "model": "m"}


async def test_a_request_without_tools() -> None:
    assert await sent(CHAT) == {**CHAT, "model": "m"}


async def test_a_provider_that_looks_for_its_model_finds_it_by_the_hosts_name() -> None:
    assert await sent(CHAT, "m", provider=Looking()) == {**CHAT, "model": "local/m"}
    assert await sent(CHAT, provider=Looking()) == {**CHAT, "model": "m"}
