"""Messages that the host's own providers and its inference store read."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from copy import deepcopy
from typing import Any, Final

from llama_stack.core.routers.inference import InferenceRouter

from llama_stack_responses.host.chat_routing import JsonModel
from llama_stack_responses.host.inference import HostInference
from tests.support.routing import Provider, Table

Json = dict[str, Any]

MESSAGES: Final[list[Json]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://images/1.png"}}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": []},
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
]
CHAT: Final[Json] = {"model": "local/m", "messages": MESSAGES, "stream": True}


class Downloads(Provider):
    """Replace the URLs of images by their content, like the host's provider for Ollama."""

    async def openai_chat_completion(self, params: Any) -> AsyncGenerator[Any]:
        for message in params.messages:
            if isinstance(message.content, list):
                for part in message.content:
                    if part.type == "image_url" and part.image_url and "http" in part.image_url.url:
                        part.image_url.url = "data:image/png;base64,cG5n"
        return await super().openai_chat_completion(params)


class Store:
    """Keep what the router stores, in the form of a table row."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.done = asyncio.Event()

    async def store_chat_completion(self, _: object, messages: list[Any]) -> None:
        self.kept = [json.dumps(message.model_dump()) for message in messages]
        self.done.set()


async def test_provider_can_replace_image_urls() -> None:
    provider, chat = Downloads(), deepcopy(CHAT)
    async for _ in await HostInference(InferenceRouter(Table(provider)), store_chat_completions=False).open_stream(
        chat
    ):
        pass
    expected = deepcopy(MESSAGES)
    expected[1]["content"][0]["image_url"]["url"] = "data:image/png;base64,cG5n"
    [params] = provider.requests
    assert json.loads(json.dumps(params.messages)) == expected
    assert chat == CHAT


async def test_inference_store_of_host_keeps_messages() -> None:
    store = Store()
    router = InferenceRouter(Table(Downloads()), store)
    chat = {**CHAT, "messages": MESSAGES[2:]}
    async for _ in await HostInference(router, store_chat_completions=True).open_stream(chat):
        pass
    await asyncio.wait_for(store.done.wait(), 60)
    assert [json.loads(message) for message in store.kept] == MESSAGES[2:]


def test_json_model_is_read_and_changed_like_pydantic_model() -> None:
    message = JsonModel(MESSAGES[1])
    assert message.role == "user"
    assert message.name is None
    message.content[0].image_url.url = "data:"
    assert message.content[0].image_url.url == "data:"
    assert message["content"][0]["image_url"] == {"url": "data:"}
    assert MESSAGES[1]["content"][0]["image_url"] == {"url": "http://images/1.png"}
    assert deepcopy(message) == message == json.loads(json.dumps(message))
