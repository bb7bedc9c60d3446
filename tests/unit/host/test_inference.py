"""What the host's inference router and its providers get of a chat request."""

from __future__ import annotations

from typing import Any, Final

import pytest
from llama_stack.core.routers import inference as host

from llama_stack_responses.host.inference import HostInference
from tests.support.routing import Provider, Table

Json = dict[str, Any]

TOOL: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CHAT: Final[Json] = {"model": "local/m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}


class Looking(Provider):
    """Looks the model up, as llama-stack's own providers do."""

    async def _get_provider_model_id(self, model: str) -> str:
        raise NotImplementedError


async def sent(chat: Json, *listed: str, provider: Provider | None = None) -> Json:
    """What the provider gets."""
    provider = provider or Provider()
    router = host.InferenceRouter(Table(provider, *listed))
    async for _ in await HostInference(router, store_chat_completions=False).open(chat):
        pass
    [params] = provider.requests
    return {name: getattr(params, name) for name in params.model_fields_set}


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
