"""Each request for a response or a compaction that is refused behind the host's auth is noted, once."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.feature import Refused
from llama_stack_responses.generation.activity import Activity
from llama_stack_responses.host.compressed_bodies import decompressing_bodies
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.wire.response_routes import create_router
from tests.support.access import SingleUserAccess
from tests.support.asgi import Answer, Body, scope_of
from tests.support.compressed import COMPRESSED, bomb, header
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

JSON = {"content-type": "application/json", "x-request-id": "asked-1"}
QUESTION: Json = {"model": "m", "input": "Why?"}
LIMITS = {"request_bytes": 100_000, "bodies": {"json_values": 1000}}
ENDLESS = object()
CREATE, COMPACT = "/v1/responses", "/v1/responses/compact"


class _NoSockets:
    async def admit(self, scope: Any, method: str) -> Any:
        raise NotImplementedError


class Client(httpx.AsyncClient):
    """A client of the application `app`."""

    app: ASGIApp


@asynccontextmanager
async def served(*rounds: Any, activity: Activity | None = None) -> AsyncIterator[tuple[Client, list[Refused]]]:
    """Serve the routes behind the decompression, with a model that answers so; return a client, and what is noted."""
    noted: list[Refused] = []
    config = ResponsesConfig.model_validate({"limits": LIMITS})
    inference = FakeInference(*rounds)
    impl = server(
        MemoryRecords(),
        inference,
        SingleUserAccess(),
        config=config,
        on_refused=[noted.append],
        activity=activity or Activity(),
    )
    app = FastAPI()
    app.include_router(create_router(impl, _NoSockets(), "x-public"))
    call = decompressing_bodies(config.limits.request_bytes)(lambda app, *rest: app(*rest))

    async def outermost(scope: Scope, receive: Receive, send: Send) -> None:
        await call(app, scope, receive, send)

    async with Client(transport=httpx.ASGITransport(app=outermost), base_url="http://server") as client:
        client.app = outermost
        yield client, noted
    await impl.shutdown()


def is_noted(noted: list[Refused], answer: httpx.Response) -> bool:
    """Return whether the error of the answer, and nothing else, was noted for its request."""
    [refused] = noted
    body = answer.json()["error"]
    assert refused.request_id == answer.headers["x-request-id"] == "asked-1"
    return (refused.error.status, refused.error.code, refused.error.message) == (
        answer.status_code,
        body["code"],
        body["message"],
    )


async def endless() -> AsyncIterator[bytes]:
    for _ in range(1000):
        yield b" " * 10_000


REFUSED: list[Any] = [
    pytest.param({"content": b"{", "headers": header("gzip")}, 400, id="broken gzip"),
    pytest.param({"content": COMPRESSED["zstd"](b"{}")[:-1], "headers": header("zstd")}, 400, id="cut zstd"),
    pytest.param({"content": bomb("br", 2), "headers": header("br")}, 413, id="inflated too large"),
    pytest.param({"content": b"{" * 100_001, "headers": header("gzip")}, 413, id="compressed too large"),
    pytest.param({"content": b"{}", "headers": header("br, gzip")}, 415, id="unknown encoding"),
    pytest.param({"content": b"{" * 100_001}, 413, id="too large"),
    pytest.param({"content": ENDLESS}, 413, id="endless"),
    pytest.param({"content": b'{"input":'}, 400, id="cut JSON"),
    pytest.param({"content": b"[" * 50_000}, 400, id="deep JSON"),
    pytest.param({"content": b'{"a":[' + b"1," * 40_000 + b"1]}"}, 400, id="many values"),
    pytest.param({"content": b"[]"}, 400, id="no object"),
    pytest.param({"content": b"{}", "headers": {"content-type": "text/plain"}}, 400, id="no JSON"),
    pytest.param({"json": QUESTION, "headers": {"x-long": "x" * 70_000}}, 431, id="large headers"),
    pytest.param({"json": {"input": "Why?"}}, 400, id="no model"),
    pytest.param({"json": QUESTION | {"previous_response_id": "resp_0"}}, 400, id="unknown response"),
]


@pytest.mark.parametrize("path", [CREATE, COMPACT])
@pytest.mark.parametrize(("given", "status"), REFUSED)
async def test_refused_request_is_noted(path: str, given: Json, status: int) -> None:
    if given.get("content") is ENDLESS:
        given = {"content": endless()}
    async with served() as (client, noted):
        answer = await client.post(path, **given | {"headers": JSON | given.get("headers", {})})
        assert answer.status_code == status
        assert is_noted(noted, answer)


@pytest.mark.parametrize(("path", "fields"), [(CREATE, {}), (CREATE, {"stream": True}), (COMPACT, {})])
async def test_request_that_the_model_server_refuses_is_noted_and_logged(
    path: str, fields: Json, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with served(ApiError(404, "No such model.", code="model_not_found")) as (client, noted):
        answer = await client.post(path, json=QUESTION | fields, headers=JSON)
        assert answer.status_code == 404
        assert is_noted(noted, answer)
    assert [each.message for each in caplog.records].count("request refused") == 1


async def test_answered_request_and_one_whose_client_leaves_are_not_noted() -> None:
    async with served(*([text("Yes."), finish()] for _ in range(3))) as (client, noted):
        for path, fields in [(CREATE, {}), (CREATE, {"stream": True}), (COMPACT, {})]:
            assert (await client.post(path, json=QUESTION | fields, headers=JSON)).status_code == 200
        for encoding in ("identity", "gzip"):
            scope = {**scope_of(header(encoding) | JSON), "path": CREATE}
            await client.app(scope, Body([b"\x1f"], then="leave").receive, Answer().send)
        assert noted == []


async def test_each_refused_request_and_failed_response_is_counted_once() -> None:
    broken = ApiError(502, "The model server failed.")
    activity = Activity()
    rounds = [text("Yes."), finish()], broken, broken, broken, [text("No"), broken]
    async with served(*rounds, activity=activity) as (client, noted):
        asked = [
            (CREATE, QUESTION, 0),
            (CREATE, {"model": "m"}, 1),
            (CREATE, QUESTION, 2),
            (CREATE, QUESTION | {"stream": True}, 3),
            (COMPACT, QUESTION, 4),
            (CREATE, QUESTION, 5),  # fails once it has begun
        ]
        for path, body, failed in asked:
            await client.post(path, json=body, headers=JSON)
            assert activity.now(ANONYMOUS)["failed"] == failed
        assert len(noted) == 4


async def test_compaction_keeps_nothing_of_its_request() -> None:
    async with served() as (client, noted):
        await client.post(COMPACT, json={"input": "Why?", "store": True}, headers=JSON)
        await client.post(CREATE, json={"input": "Why?", "store": True}, headers=JSON)
        assert [each.body["store"] for each in noted] == [False, True]


async def test_refused_count_of_tokens_is_not_noted() -> None:
    async with served() as (client, noted):
        assert (await client.post("/v1/responses/input_tokens", json={}, headers=JSON)).status_code == 400
        assert noted == []
