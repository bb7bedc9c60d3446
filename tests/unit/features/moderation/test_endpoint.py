"""Moderation by a real server, with valid and invalid answers."""

from __future__ import annotations

import gzip
from typing import Any, Final

import orjson
import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.moderation.endpoint import Endpoint
from tests.support.http_server import END, HttpServer, Peer, in_chunk, serving, whole

Json = dict[str, Any]

FLAGGED: Final = {
    "id": "modr-1",
    "model": "words-1-2026",
    "results": [
        {
            "flagged": True,
            "categories": {"hate": False, "violence": True},
            "category_scores": {"hate": 0.01, "violence": 1},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        }
    ],
}


def answering(status: int, body: Any) -> Any:
    async def handler(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(whole(status, body))

    return handler


async def checked(server: HttpServer, name: str | None = "words-1", **config: Any) -> Json:
    endpoint = Endpoint(f"{server.url}/", **config)
    try:
        return await endpoint.check("moderation", name, "hi", "input")
    finally:
        await endpoint.close()


async def test_endpoint_sends_text_and_reads_result() -> None:
    async with serving(answering(200, FLAGGED)) as server:
        assert await checked(server, api_key="k") == {
            "type": "moderation_result",
            "model": "words-1-2026",
            "flagged": True,
            "categories": {"hate": False, "violence": True},
            "category_scores": {"hate": 0.01, "violence": 1.0},
            "category_applied_input_types": {"hate": ["text"], "violence": ["text"]},
        }
        [request] = server.requests
    assert request.line.startswith("POST /v1/moderations ")
    assert request.headers["authorization"] == "Bearer k"
    assert orjson.loads(request.body) == {"input": "hi", "model": "words-1"}


@pytest.mark.parametrize(("model", "sent"), [(None, {"input": "hi"}), ("m", {"input": "hi", "model": "m"})])
async def test_default_model_is_used(model: str | None, sent: Json) -> None:
    async with serving(answering(200, {"results": [{"flagged": False}]})) as server:
        assert (await checked(server, None, model=model))["model"] == (model or "default")
        [request] = server.requests
    assert orjson.loads(request.body) == sent
    assert "authorization" not in request.headers


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_refused_moderation_request_is_400(status: int) -> None:
    async with serving(answering(status, {"error": {"message": "secret"}})) as server:
        with pytest.raises(ApiError, match=f"refused to check with 'words-1' \\({status}\\)") as raised:
            await checked(server)
    assert (raised.value.status, raised.value.param) == (400, "moderation.model")


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_failing_moderation_server_is_502(status: int) -> None:
    async with serving(answering(status, {"error": {"message": "secret"}})) as server:
        with pytest.raises(ApiError, match=f"status {status}") as raised:
            await checked(server)
    assert raised.value.status == 502


@pytest.mark.parametrize(
    "body", [[], {}, {"results": []}, {"results": [1]}, {"results": [{}]}, {"results": [{"flagged": "no"}]}]
)
async def test_malformed_moderation_answer_is_502(body: Any) -> None:
    async with serving(answering(200, body)) as server:
        with pytest.raises(ApiError, match="not in the form") as raised:
            await checked(server)
    assert raised.value.status == 502


async def flood(peer: Peer) -> None:
    """Send a body of 64 MiB, as far as it is read."""
    await peer.request()
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
    await peer.send(in_chunk(orjson.dumps(FLAGGED)))
    for _ in range(1024):
        await peer.send(in_chunk(b" " * 65_536))
    await peer.send(END)


async def bomb(peer: Peer) -> None:
    """Send a small body that unpacks to 64 MiB."""
    await peer.request()
    packed = gzip.compress(orjson.dumps(FLAGGED) + b" " * 2**26, 1)
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed) + packed)


@pytest.mark.parametrize("handler", [flood, bomb])
async def test_oversized_moderation_answer_is_refused_while_read(handler: Any) -> None:
    async with serving(handler) as server:
        with pytest.raises(ApiError, match="not in the form") as raised:
            await checked(server)
        await server.until_left(1)
    assert raised.value.status == 502


async def test_unreachable_moderation_server_is_502() -> None:
    async with serving(answering(200, FLAGGED)) as server:
        gone = server
    with pytest.raises(ApiError, match="cannot be reached") as raised:
        await checked(gone)
    assert raised.value.status == 502
