"""Messages that the host's own providers and its inference store look into."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from copy import deepcopy
from types import SimpleNamespace
from typing import Any, Final

import pytest
from llama_stack.core.routers.inference import InferenceRouter
from llama_stack.providers.remote.inference.vllm import VLLMInferenceAdapterConfig
from llama_stack.providers.remote.inference.vllm.vllm import VLLMInferenceAdapter
from llama_stack.providers.utils.inference import openai_mixin
from llama_stack_api import Model, ModelType
from pydantic import HttpUrl

from llama_stack_responses.host.inference import HostInference
from llama_stack_responses.host.json_model import JsonModel
from tests.support.upstream import Upstream, UpstreamProcess, reply, text

pytestmark = pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning")  # of a field of the host's own config

Json = dict[str, Any]

MESSAGES: Final[list[Json]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://images/1.png"}}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": []},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
CHAT: Final[Json] = {"model": "local/m", "messages": MESSAGES, "stream": True}


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with UpstreamProcess(tmp_path_factory.mktemp("upstream") / "log") as process:
        yield process.client


class Table:
    """The routing table of this one provider."""

    def __init__(self, provider: VLLMInferenceAdapter) -> None:
        self.impls_by_provider_id = {"local": provider}

    async def get_object_by_identifier(self, _: str, name: str) -> Model:
        assert name == "local/m"
        return Model(identifier=name, provider_resource_id="m", provider_id="local", model_type=ModelType.llm)

    async def get_provider_impl(self, _: str) -> VLLMInferenceAdapter:
        return self.impls_by_provider_id["local"]

    async def has_model(self, _: str) -> bool:
        return True

    async def get_model(self, name: str) -> Model:
        return await self.get_object_by_identifier("model", name)


class Store:
    """Keeps what the router stores, in the form that it has in a table."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.done = asyncio.Event()

    async def store_chat_completion(self, _: object, messages: list[Any]) -> None:
        self.kept = [json.dumps(message.model_dump()) for message in messages]
        self.done.set()


def router_to(upstream: Upstream, *, store: Store | None = None, downloads: bool = False) -> InferenceRouter:
    """The host's router to a provider of its own, which `downloads` images as the one for Ollama does."""
    config = VLLMInferenceAdapterConfig(base_url=HttpUrl(upstream.base_url))
    provider = VLLMInferenceAdapter(config=config, download_images=downloads)
    provider.__provider_id__ = "local"
    provider.__provider_spec__ = SimpleNamespace(provider_type="remote::vllm", provider_data_validator="never.asked")
    table = Table(provider)
    provider.model_store = table
    return InferenceRouter(table, store)


async def test_a_provider_puts_images_in_the_place_of_their_urls(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fetched(url: str) -> tuple[bytes, str]:
        assert url == "http://images/1.png"
        return b"png", "png"

    monkeypatch.setattr(openai_mixin, "localize_image_content", fetched)
    upstream.script("m", reply(text("Hello")))
    chat = deepcopy(CHAT)
    async for _ in await HostInference(router_to(upstream, downloads=True), store_chat_completions=False).open(chat):
        pass
    expected = deepcopy(MESSAGES)
    expected[1]["content"][0]["image_url"]["url"] = "data:image/png;base64,cG5n"
    assert upstream.requests("m")[-1].body["messages"] == expected
    assert chat == CHAT


async def test_the_hosts_store_keeps_the_messages(upstream: Upstream) -> None:
    upstream.script("m", reply(text("Hello")))
    store = Store()
    async for _ in await HostInference(router_to(upstream, store=store), store_chat_completions=True).open(CHAT):
        pass
    await asyncio.wait_for(store.done.wait(), 60)
    assert [json.loads(message) for message in store.kept] == MESSAGES


def test_json_is_read_and_changed_as_a_model() -> None:
    message = JsonModel(MESSAGES[1])
    assert message.role == "user"
    assert message.name is None
    message.content[0].image_url.url = "data:"
    assert message.content[0].image_url.url == "data:"
    assert message["content"][0]["image_url"] == {"url": "data:"}
    assert MESSAGES[1]["content"][0]["image_url"] == {"url": "http://images/1.png"}
    assert deepcopy(message) == message == json.loads(json.dumps(message))
