"""What the host asks of the provider when no request does."""

import pytest

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.host.adapter import OpenAIChatAdapter
from tests.support.http_server import Peer, serving, whole


def adapter(url: str) -> OpenAIChatAdapter:
    """The provider over the model server at this address."""
    made = OpenAIChatAdapter(OpenAIChatConfig(base_url=url))
    made.__provider_id__ = "local"
    return made


async def test_a_server_that_lists_its_models_is_well() -> None:
    async def lists(peer: Peer) -> None:
        await peer.request()
        found = [{"id": name} for name in ("chat", "nomic-embed-text", "bge-reranker")]
        await peer.send(whole(200, {"data": found}))

    async with serving(lists) as server:
        provider = adapter(server.url)
        assert await provider.health() == {"status": "OK"}
        kinds = {model.identifier: str(model.model_type) for model in await provider.list_models()}
        assert kinds == {"chat": "llm", "nomic-embed-text": "embedding", "bge-reranker": "rerank"}


@pytest.mark.parametrize("answer", [whole(503, {"error": {"message": "Loading model"}}), whole(200, {}), b""])
async def test_a_server_that_does_not_is_ill(answer: bytes) -> None:
    async def fails(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)

    async with serving(fails) as server:
        found = await adapter(server.url).health()
        assert found["status"] == "Error"
        assert "Health check failed: " in found["message"]
