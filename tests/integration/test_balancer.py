"""The nginx of the template `scale-out` sends a request to a second server only if the first has not begun with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.support.http_server import HttpServer, Peer, serving, whole
from tests.support.nginx import Nginx
from tests.support.process import free_port
from tests.support.stack import REPOSITORY

pytestmark = pytest.mark.one_host

TEMPLATE = REPOSITORY / "templates" / "scale-out" / "nginx.conf"
BODY = b"x" * 100_000


async def healthy(peer: Peer) -> None:
    while True:
        await peer.request()
        await peer.send(whole(200, {"status": "completed"}))


def answering(answer: Callable[[Peer], Awaitable[None]]) -> Callable[[Peer], Awaitable[None]]:
    """Return a handler that answers all except the question for health so, and then closes the connection."""

    async def handle(peer: Peer) -> None:
        while "/health" in (await peer.request()).line:
            await peer.send(whole(200, {}))
        await answer(peer)

    return handle


@asynccontextmanager
async def behind_nginx(
    folder: Path, *handlers: Callable[[Peer], Awaitable[None]]
) -> AsyncIterator[tuple[str, list[HttpServer]]]:
    """Run servers with these handlers, and nginx in front; a server that is missing refuses connections."""
    async with AsyncExitStack() as opened:
        servers = [await opened.enter_async_context(serving(each)) for each in handlers]
        ports = [each.url.removesuffix("/v1").rpartition(":")[2] for each in servers]
        ports += [str(free_port())] * (2 - len(ports))
        names = ("127.0.0.1:8321", "127.0.0.1:8322")
        addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        nginx = Nginx(TEMPLATE.read_text(), folder, "127.0.0.1:8320", addresses)
        await asyncio.to_thread(nginx.__enter__)
        opened.push_async_callback(asyncio.to_thread, nginx.__exit__, None, None, None)
        yield nginx.base_url, servers


async def posted(url: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.post(f"{url}/v1/responses", content=BODY, headers={"content-type": "application/json"})


def received(servers: list[HttpServer]) -> list[bytes]:
    return [each.body for server in servers for each in server.requests if "/responses" in each.line]


async def test_request_that_a_server_has_not_begun_goes_to_the_other_with_its_body(tmp_path: Path) -> None:
    refusing = answering(lambda peer: peer.send(whole(421, {"error": {}}, "connection: close")))
    async with behind_nginx(tmp_path, refusing, healthy) as (url, servers):
        answers = [await posted(url) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200] * 4
        assert set(received(servers)) == {BODY}
        assert len(received(servers[:1])) > 0


async def test_server_that_refuses_connections_is_skipped(tmp_path: Path) -> None:
    async with behind_nginx(tmp_path, healthy) as (url, _):
        assert [(await posted(url)).status_code for _ in range(4)] == [200] * 4


@pytest.mark.parametrize("status", [502, 503, 504])
async def test_failure_of_a_server_is_passed_on_and_runs_nowhere_else(tmp_path: Path, status: int) -> None:
    failing = answering(lambda peer: peer.send(whole(status, {"error": {"message": "mine"}}, "connection: close")))
    async with behind_nginx(tmp_path, failing, failing) as (url, servers):
        answer = await posted(url)
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, "mine")
        assert received(servers) == [BODY]


async def test_request_of_a_server_that_dies_runs_nowhere_else(tmp_path: Path) -> None:
    async def die(_: Peer) -> None:
        pass

    async with behind_nginx(tmp_path, answering(die), answering(die)) as (url, servers):
        assert (await posted(url)).status_code == 502
        assert received(servers) == [BODY]
