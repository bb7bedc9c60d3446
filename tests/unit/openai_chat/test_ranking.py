"""Reranking, with a model server of the test."""

from typing import Any

import openai
import orjson
import pytest

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_openai_chat.host.adapter import OpenAIChatAdapter
from llama_stack_openai_chat.host.platform import RerankRequest, UnsupportedModelError
from tests.support.http_server import Peer, serving, whole

RANKED = {
    "model": "bge-reranker",
    "results": [
        {"index": 1, "relevance_score": 0.25, "document": {"text": "two"}},
        {"index": 0, "relevance_score": 0.75, "document": {"text": "one"}},
    ],
}


def request(*items: Any, **fields: Any) -> RerankRequest:
    """Return a request as the host's router passes it on."""
    return RerankRequest(model="bge-reranker", query="which?", items=list(items), **fields)


def adapter(url: str, **config: Any) -> OpenAIChatAdapter:
    """Return the provider for the model server at this address."""
    return OpenAIChatAdapter(OpenAIChatConfig(base_url=url, **config))


async def test_results_are_sorted_by_score() -> None:
    async def ranks(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, RANKED))

    async with serving(ranks) as server:
        part = {"type": "text", "text": "two"}
        found = await adapter(server.url).rerank(request("one", part, max_num_results=2))
        assert [(each.index, each.relevance_score) for each in found.data] == [(0, 0.75), (1, 0.25)]
        [seen] = server.requests
        assert seen.line == "POST /v1/rerank HTTP/1.1"
        body = {"model": "bge-reranker", "query": "which?", "documents": ["one", "two"], "top_n": 2}
        assert orjson.loads(seen.body) == body


@pytest.mark.parametrize("answer", [{}, {"results": None}, {"results": [{"index": 0}]}])
async def test_malformed_ranking_raises_error(answer: Any) -> None:
    async def answers(peer: Peer) -> None:
        await peer.request()
        await peer.send(whole(200, answer))

    async with serving(answers) as server:
        with pytest.raises(openai.InternalServerError, match="has other fields than it should"):
            await adapter(server.url).rerank(request("one"))


async def test_images_and_other_models_are_refused() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,"}}
    with pytest.raises(ValueError, match="not images"):
        await adapter("http://127.0.0.1:9/v1").rerank(request(image))
    with pytest.raises(UnsupportedModelError):
        await adapter("http://127.0.0.1:9/v1", allowed_models=["chat"]).rerank(request("one"))
