"""Uploads: how much of a form is read, what is kept of it, and that nothing is left on disk."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request, Response
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.types import ASGIApp

from llama_stack_responses.features.code import multipart
from llama_stack_responses.features.code.multipart import uploaded
from llama_stack_responses.wire.http_responses import JsonResponse
from tests.support.asgi import App, Body, ask
from tests.support.waiting import until

LIMIT = 100_000
TYPE = {"content-type": "multipart/form-data; boundary=b"}
END = b"\r\n--b--\r\n"


def part(content: bytes, name: str = "file", filename: str | None = "a.txt", head: str = "") -> bytes:
    """Return a field of a form, without the boundary after it."""
    file = f'; filename="{filename}"' if filename is not None else ""
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n{head}\r\n'.encode() + content


@pytest.fixture
def app() -> App:
    """An app that takes files of up to `LIMIT` bytes."""
    return App({"request_bytes": LIMIT})


@pytest.fixture
def served(app: App) -> ASGIApp:
    """Serve an upload, answered with the name and size of its file."""

    async def upload(request: Request) -> Response:
        async with uploaded(request, app.bodies, LIMIT) as found:
            return JsonResponse({"name": found.name, "size": len(found.content.read())})

    return app.serve(upload)


@pytest.mark.parametrize("size", [0, 1, LIMIT])
@pytest.mark.parametrize("cut", [7, 65_536])
async def test_uploaded_file_is_accepted(app: App, served: ASGIApp, size: int, cut: int) -> None:
    body = part(b"x", "purpose", None) + b"\r\n" + part(b"\r" * size) + END
    answer = await ask(served, Body(body[at : at + cut] for at in range(0, len(body), cut)), TYPE)
    assert (answer.status, answer.body) == (200, b'{"name":"a.txt","size":%d}' % size)
    assert app.bodies.held == 0


async def test_file_over_limit_is_read_only_to_limit(app: App, served: ASGIApp) -> None:
    body = Body([part(b""), *[b"x" * 10_000] * 1000, END])
    answer = await ask(served, body, TYPE | {"transfer-encoding": "chunked"})
    assert (answer.status, answer.error["message"]) == (413, "The file is larger than 100000 bytes.")
    assert body.taken == 12
    assert answer.headers["connection"] == "close"
    assert app.bodies.held == 0


async def test_form_with_excessive_content_length_is_refused_unread(served: ASGIApp) -> None:
    body = Body([b"x"])
    answer = await ask(served, body, TYPE | {"content-length": "300000000"})
    assert (answer.status, body.taken) == (413, 0)


async def test_fields_without_file_are_bounded_too(served: ASGIApp) -> None:
    body = Body([part(b"", "purpose", None), *[b"x" * 10_000] * 1000, END])
    assert (await ask(served, body, TYPE)).status == 413
    assert body.taken < 50


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", "not a well-formed"),
        (b"no form at all", "not a well-formed"),
        (part(b"cut off"), "not a well-formed"),
        (END, "'file'"),
        (part(b"x", filename=None) + END, "Missing required parameter: 'file'."),
        (part(b"x", "other") + END, "must have one file, as the field 'file'"),
        (part(b"x") + b"\r\n" + part(b"y") + END, "must have one file, as the field 'file'"),
        (b"\r\n".join([part(b"x", str(number), None) for number in range(17)]) + END, "more than 16 fields"),
        (part(b"x", head=f"X-Long: {'x' * 20_000}\r\n") + END, ""),
        (part(b"x", head="X-Many: y\r\n" * 2_000) + END, ""),
    ],
    ids=["empty", "no form", "cut off", "no part", "no file", "another", "two", "many", "long head", "many heads"],
)
async def test_invalid_form_is_refused(app: App, served: ASGIApp, body: bytes, expected: str) -> None:
    answer = await ask(served, Body([body]), TYPE)
    assert answer.status == 400
    assert expected in answer.error["message"]
    assert app.bodies.held == 0


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data", "multipart/form-data; boundary="])
async def test_body_without_form_type_is_refused_unread(served: ASGIApp, kind: str) -> None:
    body = Body([b"x"])
    answer = await ask(served, body, {"content-type": kind})
    assert (answer.status, body.taken) == (400, 0)


@pytest.mark.parametrize("then", ["leave", "silence"])
async def test_interrupted_upload_leaves_no_file(then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[Any] = []

    def temporary() -> Any:
        created.append((tmp_path / "upload").open("w+b"))
        return created[-1]

    monkeypatch.setattr(multipart, "TemporaryFile", temporary)
    app = App({"request_bytes": LIMIT, "bodies": {"seconds": 0.05}})

    async def upload(request: Request) -> Response:
        async with uploaded(request, app.bodies, LIMIT):
            raise AssertionError

    answer = await ask(app.serve(upload), Body([part(b"x" * 1000)], then), TYPE)
    assert answer.status == {"leave": 499, "silence": 408}[then]
    assert created[0].closed
    assert app.bodies.held == 0


async def test_cancelled_upload_releases_its_bytes(served: ASGIApp, app: App) -> None:
    asking = asyncio.create_task(ask(served, Body([part(b"x")], then="silence"), TYPE))
    await until(lambda: app.bodies.held > 0)
    asking.cancel()
    await asyncio.wait([asking])
    assert app.bodies.held == 0


DISPOSITIONS = st.lists(
    st.sampled_from(
        [
            *("form-data", "; ", 'name="file"', "filename=", "filename*=", '"', "\\", "utf-8''", "%00", "%ff", "\xff"),
            *("..", "a/b", "\r", "\n", "\0", "=?utf-8?b?//8=?=", "x" * 300, "*0*=", ";", "="),
        ]
    ),
    max_size=12,
).map("".join)


@given(DISPOSITIONS, st.binary(max_size=40), st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
def test_odd_form_is_accepted_or_400(served: ASGIApp, disposition: str, content: bytes, whole: bool) -> None:
    head = f"--b\r\nContent-Disposition: {disposition}\r\n\r\n".encode("latin-1")
    body = Body([head + content + (END if whole else b"")])
    assert asyncio.run(ask(served, body, TYPE)).status in (200, 400)


@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data",
        "multipart/form-data; boundary=",
        "multipart/form-data; boundary=" + "x" * 5_000,
        "multipart/form-data; boundary*=utf-8''%ff",
        'multipart/form-data; boundary="',
        "multipart/form-data; boundary=\xff",
        "multipart/form-data; charset=idna; boundary=b",
        ";" * 1_000,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
    ],
)
@pytest.mark.parametrize(
    "body", [b"", b"--b", b"--b\r\n", b"--b--", b"\r\n\r\n", b"\0" * 100, b"--b\r\nx\r\n\r\n" + END]
)
async def test_body_with_odd_content_type_is_400(served: ASGIApp, kind: str, body: bytes) -> None:
    answer = await ask(served, Body([body]), {"content-type": kind})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
