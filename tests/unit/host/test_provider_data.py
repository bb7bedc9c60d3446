"""No content of the provider-data header makes the server fail."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host.patches import extend_server
from llama_stack_responses.host.platform import PROVIDER_DATA_HEADER, SERVER
from llama_stack_responses.host.provider_data import check_headers

Json = dict[str, Any]

NAME = PROVIDER_DATA_HEADER.lower().encode()


class Middleware:
    """A stand-in for the host's middleware that passes everything on."""

    async def __call__(self, scope: Json, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    app = __call__


type Noted = list[tuple[ApiError, str]]


@pytest.fixture
def noted() -> Noted:
    """The refusals that were noted, and the paths of their requests."""
    return []


def guarded(name: str, monkeypatch: pytest.MonkeyPatch, noted: Noted) -> type:
    kind: type = type("Guarded", (Middleware,), {"__call__": Middleware.__call__})
    monkeypatch.setitem(sys.modules, SERVER, SimpleNamespace(**{name: kind}))
    for _ in range(2):
        extend_server(ResponsesConfig(), None, lambda error, scope: noted.append((error, scope["path"])))
    return kind


@pytest.fixture
def middleware(monkeypatch: pytest.MonkeyPatch, noted: Noted) -> type:
    """The guarded class behind the host's auth."""
    return guarded("ProviderDataMiddleware", monkeypatch, noted)


async def answered(
    middleware: type, *headers: tuple[bytes, bytes], kind: str = "http", method: str = "POST", path: str = "/"
) -> list[Json]:
    """Return the messages that answer a request."""
    sent: list[Json] = []

    async def send(message: Json) -> None:
        sent.append(message)

    await middleware()({"type": kind, "method": method, "path": path, "headers": list(headers)}, None, send)
    return sent


UNREADABLE = [
    b'"x"',
    b"[1]",
    b"5",
    b"null",
    b"{",
    b"{}x",
    b"[" * 60_000,
    b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
    b'{"a":' * 300 + b"1" + b"}" * 300,
    b'{"a": %b}' % (b"1" * 5_000),
    b'{"a": "\xff"}',
]


@pytest.mark.parametrize("value", UNREADABLE, ids=range(len(UNREADABLE)))
async def test_invalid_provider_data_is_400(middleware: type, value: bytes) -> None:
    start, body = await answered(middleware, (b"host", b"a"), (NAME, value))
    assert start["status"] == 400
    error = orjson.loads(body["body"])["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"].endswith(".")


async def test_oversized_provider_data_is_431() -> None:
    with pytest.raises(ApiError, match="larger than 65536 bytes") as raised:
        check_headers([(NAME, b'{"a": "%b"}' % (b"x" * 70_000))])
    assert raised.value.status == 431


@pytest.mark.parametrize("headers", [[], [(NAME, b"")], [(NAME, b'{"openai_api_key": "k"}')], [(b"x-other", b"[")]])
async def test_valid_headers_pass(middleware: type, headers: list[tuple[bytes, bytes]]) -> None:
    assert await answered(middleware, *headers) == [{"type": "passed"}]


async def test_each_repeated_header_is_checked(middleware: type) -> None:
    start, _ = await answered(middleware, (NAME, b"{}"), (NAME, b"[]"))
    assert start["status"] == 400


@pytest.mark.parametrize("name", ["ProviderDataMiddleware", "ZstdDecompressionMiddleware"])
async def test_header_that_is_not_utf8_is_400(name: str, monkeypatch: pytest.MonkeyPatch, noted: Noted) -> None:
    start, _ = await answered(guarded(name, monkeypatch, noted), (b"x-any", b"\xff"))
    assert start["status"] == 400


async def test_provider_data_are_checked_behind_auth_only(monkeypatch: pytest.MonkeyPatch, noted: Noted) -> None:
    outer = guarded("ZstdDecompressionMiddleware", monkeypatch, noted)
    assert await answered(outer, (NAME, b"[1]")) == [{"type": "passed"}]


@pytest.mark.parametrize(
    ("method", "path", "count"),
    [
        ("POST", "/v1/responses", 1),
        ("POST", "/v1/responses/compact", 1),
        ("GET", "/v1/responses", 0),
        ("POST", "/v1/embeddings", 0),
    ],
)
async def test_refused_request_for_a_response_is_noted(
    middleware: type, noted: Noted, method: str, path: str, count: int
) -> None:
    start, _ = await answered(middleware, (NAME, b"[1]"), method=method, path=path)
    assert start["status"] == 400
    assert [(error.status, at) for error, at in noted] == [(400, path)] * count


async def test_websocket_with_invalid_provider_data_is_closed(middleware: type) -> None:
    [closed] = await answered(middleware, (NAME, b"[]"), kind="websocket")
    assert (closed["type"], closed["code"]) == ("websocket.close", 1008)
