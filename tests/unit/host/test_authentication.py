"""The host's auth is asked for a token once in a while, by the middleware of llama-stack and a real auth server."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from llama_stack.core.access_control import access_control
from llama_stack.core.datatypes import AuthenticationConfig
from llama_stack.core.server import auth_providers
from llama_stack.core.server.auth import AuthenticationMiddleware

from llama_stack_responses.host import authentication
from llama_stack_responses.host.authentication import RememberedAuth, keep_what_auth_builds, remembering_users
from tests.support.auth import auth_server
from tests.support.process import free_port

type Json = dict[str, Any]
type Ask = Callable[..., Awaitable[tuple[int, dict[str, str], Json]]]

ADA = {"principal": "ada", "attributes": {"teams": ["search"]}}


@pytest.fixture
def users() -> dict[str, Json]:
    return {"a": ADA, "b": {"principal": "bob", "attributes": {}}}


@pytest.fixture
def asked() -> list[Json]:
    return []


@pytest.fixture
def endpoint(users: dict[str, Json], asked: list[Json]) -> Iterator[str]:
    with auth_server(users, asked) as url:
        yield url


@pytest.fixture(autouse=True)
async def _kept(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(auth_providers, "httpx", auth_providers.httpx)
    monkeypatch.setattr(access_control, "default_policy", access_control.default_policy)
    keep_what_auth_builds()
    kept: Any = auth_providers.httpx
    yield
    for client in kept.clients.values():
        await client.aclose()


def middleware(endpoint: str, seconds: float = 30) -> Ask:
    """Return what sends a request with a token through the host's middleware."""
    settings = AuthenticationConfig(provider_config={"type": "custom", "endpoint": endpoint})
    call: Any = remembering_users(seconds)(AuthenticationMiddleware.__call__)
    kind = type("Remembering", (AuthenticationMiddleware,), {"__call__": call})
    over_http, on_websockets = kind(principal, settings, {}), kind(principal, settings, {})

    async def ask(token: str, path: str = "/v1/responses", websocket: bool = False) -> tuple[int, dict[str, str], Json]:
        sent: list[Json] = []

        async def send(message: Json) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await (on_websockets if websocket else over_http)(scope, None, send)
        received = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], received, json.loads(sent[1]["body"])

    return ask


async def principal(scope: Json, _: Any, send: Any) -> None:
    """Answer with the user of the request."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    answer = {"principal": scope["principal"], "attributes": scope.get("user_attributes")}
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


async def test_token_is_asked_for_once_over_http_and_websockets(endpoint: str, asked: list[Json]) -> None:
    ask = middleware(endpoint)
    for websocket in (False, True, False):
        assert (await ask("a", websocket=websocket))[2] == ADA
    assert len(asked) == 1


async def test_many_requests_at_once_ask_once_for_each_token(endpoint: str, asked: list[Json]) -> None:
    ask = middleware(endpoint)
    answers = await asyncio.gather(*(ask(token) for token in "ab" * 50))
    assert [answer[2]["principal"] for answer in answers] == ["ada", "bob"] * 50
    assert sorted(each["token"] for each in asked) == ["a", "b"]


async def test_request_behind_many_of_another_user_is_among_the_first(endpoint: str) -> None:
    ask, answered = middleware(endpoint), list[str]()
    await ask("a")
    await ask("b")

    async def answer(token: str) -> None:
        await ask(token)
        answered.append(token)

    await asyncio.gather(*(answer(token) for token in "a" * 100 + "b"))
    assert answered.index("b") <= 3


async def test_client_that_leaves_does_not_end_the_question_of_others(endpoint: str, asked: list[Json]) -> None:
    ask = middleware(endpoint)
    first, second = (asyncio.ensure_future(ask("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second)[2] == ADA
    assert len(asked) == 1


async def test_revoked_token_is_refused_after_the_time(
    endpoint: str, users: dict[str, Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(authentication, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    ask = middleware(endpoint, seconds=30)
    assert (await ask("a"))[0] == 200
    del users["a"]
    now[0] += 29.9
    assert (await ask("a"))[0] == 200
    now[0] += 0.2
    assert (await ask("a"))[0] == 401
    users["a"] = ADA
    now[0] += 4.9
    assert (await ask("a"))[0] == 401
    now[0] += 0.2
    assert (await ask("a"))[0] == 200


async def test_expired_jwt_is_asked_for_again(endpoint: str, users: dict[str, Json], asked: list[Json]) -> None:
    claims = urlsafe_b64encode(json.dumps({"exp": time.time() - 1}).encode()).decode().rstrip("=")
    users[token := f"head.{claims}.signature"] = ADA
    ask = middleware(endpoint)
    await ask(token)
    await ask(token)
    assert len(asked) == 2


async def test_zero_seconds_ask_for_each_request(endpoint: str, asked: list[Json]) -> None:
    ask = middleware(endpoint, seconds=0)
    await asyncio.gather(*(ask("a") for _ in range(3)))
    assert len(asked) == 3


async def test_answer_holds_for_the_api_of_its_path(endpoint: str, asked: list[Json]) -> None:
    """A service may decide by the path."""
    ask = middleware(endpoint)
    for path in ("/v1/responses", "/v1/responses/resp_1", "/v1/files", "/v1/files/file_1"):
        await ask("a", path)
    assert len(asked) == 2


async def test_connection_is_kept_and_no_cookie_is_sent(endpoint: str, asked: list[Json]) -> None:
    """A cookie that was set for one user would speak for the next one."""
    ask = middleware(endpoint)
    for token in ("a", "b", "c"):
        await ask(token)
    assert len({each["client"] for each in asked}) == 1
    assert [each["cookie"] for each in asked] == [None] * 3


async def test_refused_tokens_do_not_displace_accepted_ones(
    endpoint: str, asked: list[Json], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "_MAX_KEPT", 4)
    ask = middleware(endpoint)
    await ask("a")
    for number in range(8):
        assert (await ask(f"wrong-{number}"))[0] == 401
    assert (await ask("a"))[2] == ADA
    assert len(asked) == 9
    await ask("wrong-7")
    await ask("wrong-0")
    assert [each["token"] for each in asked[9:]] == ["wrong-0"]


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_overloaded_service_is_503_with_retry_after(
    endpoint: str, users: dict[str, Json], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    users["a"] = {"status": status}
    found, headers, body = await middleware(endpoint)("a")
    assert (found, headers["retry-after"]) == (503, "1")
    said = f"answered with the status {status}"
    assert body["error"]["message"] == f"The authentication service {said}. Try again in a second."
    assert f"auth service {said}" in caplog.messages


async def test_unreachable_service_is_503_with_retry_after(caplog: pytest.LogCaptureFixture) -> None:
    status, headers, body = await middleware(f"http://127.0.0.1:{free_port()}/")("a")
    assert (status, headers["retry-after"]) == (503, "1")
    assert body["error"]["message"] == "The authentication service does not answer. Try again in a second."
    assert "auth service does not answer: ConnectError" in caplog.messages


async def test_timeout_is_503(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    async def validate(*_: Any) -> None:
        raise auth_providers.httpx.ReadTimeout("slow")

    monkeypatch.setattr(auth_providers.CustomAuthProvider, "validate_token", validate)
    assert (await middleware(endpoint)("a"))[0] == 503


@pytest.mark.parametrize("head", [b"", b"content-encoding: gzip\r\n"])
async def test_endless_answer_is_503(head: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n" + head + b"\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"1000\r\n" + b" " * 4096 + b"\r\n")
                await writer.drain()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await middleware(f"http://127.0.0.1:{port}")("a"))[0] == 503


async def test_answer_that_never_ends_is_503(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"1\r\n \r\n")
                await writer.drain()
                await asyncio.sleep(0.01)

    monkeypatch.setattr(authentication, "_ANSWER_SECONDS", 0.2)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        assert (await middleware(f"http://127.0.0.1:{port}")("a"))[0] == 503


async def test_user_without_a_name_is_refused(
    users: dict[str, Json], endpoint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Such a user would be the only one of a stack without authentication, who sees everything."""
    users["nobody"] = {"principal": "", "attributes": {}}
    status, _, answer = await middleware(endpoint)("nobody")
    assert status == 401
    assert "names no user" in str(answer)
    assert "auth service names no user" in caplog.text


async def test_key_of_an_issuer_is_loaded_beside_the_event_loop() -> None:
    """The host loads it with a call that blocks."""
    loaded = asyncio.Event()
    loop = asyncio.get_running_loop()

    class OAuth2TokenAuthProvider:
        config = SimpleNamespace(jwks=True)

        async def validate_token(self, token: str, _: Any) -> SimpleNamespace:
            # In the event loop this would wait for itself.
            asyncio.run_coroutine_threadsafe(loaded.wait(), loop).result(10)
            return SimpleNamespace(principal=token)

    validating = asyncio.ensure_future(RememberedAuth(OAuth2TokenAuthProvider(), 30).validate_token("a", {"path": "/"}))
    await asyncio.sleep(0)
    loaded.set()
    assert (await validating).principal == "a"


async def test_provider_that_reads_headers_of_a_proxy_is_asked_for_each_request() -> None:
    class UpstreamHeaderAuthProvider:
        config = None
        requires_http_bearer = False

    made = SimpleNamespace(auth_provider=UpstreamHeaderAuthProvider())

    async def call(self: Any, *_: Any) -> None:
        assert isinstance(self.auth_provider, UpstreamHeaderAuthProvider)

    await remembering_users(30)(call)(made, {}, None, None)  # type: ignore[arg-type]


def test_default_policy_is_made_once() -> None:
    assert access_control.default_policy() is access_control.default_policy()
