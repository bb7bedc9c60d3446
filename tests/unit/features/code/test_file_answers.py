"""A file is sent in blocks; each is read after the previous one was taken."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import IO, Any

import pytest
from fastapi import Request, Response
from starlette.types import Message

from llama_stack_responses.core.json_blocks import BLOCK_BYTES
from llama_stack_responses.features.code.file_answers import FileInBlocks
from tests.support.asgi import App, Body, ask, scope_of
from tests.support.waiting import until


class Files:
    """Open one file per request, and keep them in a list."""

    def __init__(self, path: Path, app: App, size: int) -> None:
        """`size` is the announced size."""
        self.path = path
        self.app = app
        self.size = size
        self.opened: list[IO[bytes]] = []

    async def answer(self, request: Request) -> Response:
        """Send the file."""
        self.app.limits.hold_download(request.scope)
        self.opened.append(self.path.open("rb"))
        return FileInBlocks(self.opened[-1], self.size, {})


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 1])
async def test_file_is_sent_whole(tmp_path: Path, size: int) -> None:
    path, app = tmp_path / "file", App()
    path.write_bytes(b"x" * size)
    files = Files(path, app, size)
    answer = await ask(app.serve(files.answer), Body(), method="GET")
    assert (answer.status, answer.body, answer.headers["content-length"]) == (200, b"x" * size, str(size))
    assert files.opened[0].closed
    assert app.broken_off == []


async def test_stalled_download_reads_one_block_ahead_and_survives_deletion(tmp_path: Path) -> None:
    path, app = tmp_path / "file", App()
    path.write_bytes(b"x" * 10 * BLOCK_BYTES)
    files, sent, go = Files(path, app, 10 * BLOCK_BYTES), [], asyncio.Event()

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 1:
            await go.wait()

    serving = asyncio.ensure_future(app.serve(files.answer)(scope_of(method="GET"), Body(then="end").receive, send))
    await until(lambda: len(sent) == 2)
    path.unlink()
    assert files.opened[0].tell() <= 2 * BLOCK_BYTES
    go.set()
    await serving
    assert b"".join(sent) == b"x" * 10 * BLOCK_BYTES


async def test_file_shorter_than_announced_closes_connection(tmp_path: Path) -> None:
    path, app = tmp_path / "file", App()
    path.write_bytes(b"x")
    answer = await ask(app.serve(Files(path, app, 2).answer), Body(), method="GET")
    assert (answer.body, len(app.broken_off)) == (b"x", 1)


async def test_client_disconnect_stops_reading_file(tmp_path: Path) -> None:
    path, app = tmp_path / "file", App()
    path.write_bytes(b"x" * 1000 * BLOCK_BYTES)
    files = Files(path, app, 1000 * BLOCK_BYTES)
    answer = await ask(app.serve(files.answer), Body(then="leave"), method="GET")
    assert len(answer.body) < 100 * BLOCK_BYTES
    assert files.opened[0].closed


async def test_downloads_over_limit_are_refused_until_one_ends(tmp_path: Path) -> None:
    path, app = tmp_path / "file", App({"answers": {"downloads_per_user": 2}})
    path.write_bytes(b"x")
    served, go, sending = app.serve(Files(path, app, 1).answer), asyncio.Event(), 0

    async def send(_: Message) -> None:
        nonlocal sending
        sending += 1
        await go.wait()

    slow: list[Any] = [asyncio.ensure_future(served(scope_of(method="GET"), Body().receive, send)) for _ in range(2)]
    await until(lambda: sending == 2)
    refused = await ask(served, Body(), method="GET")
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    assert (
        refused.error["message"]
        == "You have too many downloads open at the same time. Finish some of them, then try again."
    )
    go.set()
    await asyncio.gather(*slow)
    assert (await ask(served, Body(), method="GET")).status == 200
