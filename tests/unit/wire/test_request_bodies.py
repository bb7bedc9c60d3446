"""Request bodies: how much is read, for how long, what counts as held, and the errors that clients get."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from fastapi import Request, Response

from llama_stack_responses.core import json_decoding
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.logs import bound_tracebacks
from llama_stack_responses.wire.request_bodies import Bodies
from tests.support.asgi import App, Body, ask
from tests.support.waiting import until

LIMITS: dict[str, Any] = {"request_bytes": 1000, "bodies": {"bytes_per_user": 1500, "total_bytes": 2000}}


async def test_body_within_limits_is_read() -> None:
    app = App(LIMITS)
    answer = await ask(app.echo(), Body([b'{"a"', b":1}"]))
    assert (answer.status, answer.body, app.bodies.held) == (200, b'{"a":1}', 0)


@pytest.mark.parametrize(
    "declared",
    [
        "text/plain",
        "TEXT/PLAIN;charset=UTF-8",
        "text/plain; application/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
        "application/jsonx",
        "application/json/x",
        ";application/json",
        "text/plain, application/json",
        "application/octet-stream",
        "",
    ],
)
async def test_body_declared_as_something_else_is_refused_unread(declared: str) -> None:
    """Browsers send the first of them from any page, without asking this server first."""
    body = Body([b"{}"])
    answer = await ask(App(LIMITS).echo(), body, {"content-type": declared})
    assert (answer.status, answer.error["code"], body.taken) == (400, "unsupported_content_type", 0)
    assert declared in answer.error["message"]
    assert "'Content-Type: application/json'" in answer.error["message"]


@pytest.mark.parametrize("declared", ["application/json", "Application/JSON ; charset=utf-8"])
async def test_body_declared_as_json_is_read(declared: str) -> None:
    answer = await ask(App(LIMITS).echo(), Body([b'{"a":1}']), {"content-type": declared})
    assert (answer.status, answer.body) == (200, b'{"a":1}')


async def test_body_without_a_content_type_is_refused() -> None:
    """A page of another site can send one, and no client does."""
    app = App(LIMITS)
    answer = await ask(app.echo(), Body([b'{"a":1}']), {"content-type": None})
    assert (answer.status, answer.error["code"], app.bodies.held) == (400, "unsupported_content_type", 0)
    assert "has no content type" in answer.error["message"]


async def test_body_with_excessive_content_length_is_refused_unread() -> None:
    body = Body([b"x" * 500] * 10)
    answer = await ask(App(LIMITS).echo(), body, {"content-length": "100000"})
    assert (answer.status, answer.error["code"], body.taken) == (413, "request_too_large", 0)
    assert answer.headers["connection"] == "close"


async def test_endless_body_is_read_only_to_limit() -> None:
    body = Body([b"x" * 500] * 1000)
    app = App(LIMITS)
    answer = await ask(app.echo(), body, {"transfer-encoding": "chunked"})
    assert (answer.status, body.taken, app.bodies.held) == (413, 3, 0)
    assert answer.headers["connection"] == "close"


async def test_fully_read_body_keeps_connection_open() -> None:
    answer = await ask(App(LIMITS).echo(), Body([b"{}"]), {"transfer-encoding": "chunked"})
    assert answer.status == 200
    assert "connection" not in answer.headers


async def test_body_that_does_not_arrive_times_out() -> None:
    app = App({"bodies": {"seconds": 0.05}})
    answer = await ask(app.echo(), Body([b"{"], then="silence"))
    assert (answer.status, answer.error["code"], app.bodies.held) == (408, "request_timeout", 0)


async def test_client_disconnect_during_body_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "llama_stack_responses")
    app = App(LIMITS)
    await ask(app.echo(), Body([b"{"], then="leave"))
    assert [(each.levelname, each.exc_info) for each in caplog.records if "llama_stack" in each.name] == [
        ("DEBUG", None)
    ]
    assert app.bodies.held == 0


async def test_internal_error_is_logged_as_bounded_text(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: Request) -> Response:
        raise RuntimeError("100% [broken] " + "x" * 100_000)

    bound_tracebacks()
    answer = await ask(App().serve(fail), Body())
    [record] = [each for each in caplog.records if "llama_stack" in each.name]
    assert answer.status == 500
    assert record.exc_info is None
    first, second = record.getMessage().splitlines()[:2]
    assert first == "request failed: POST '/'"
    assert second.startswith(("Traceback", "..."))
    assert len(record.getMessage()) < 10_000
    assert record.filename == "request_handling.py"


async def test_error_while_sending_answer_closes_connection() -> None:
    class Broken(Response):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise RuntimeError("broken")

    async def fail(_: Request) -> Response:
        return Broken()

    app = App()
    assert (await ask(app.serve(fail), Body())).status == 200
    assert len(app.broken_off) == 1


async def test_each_user_holds_separate_share_until_answered() -> None:
    app, reading, go = App(LIMITS, ["ada", "ada", "bob", "ada"]), asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Response:
        await app.bodies.read(request)
        reading.set()
        await go.wait()
        return Response()

    served, body = app.serve(wait), b"x" * 900
    first = asyncio.create_task(ask(served, Body([body])))
    await reading.wait()
    assert app.bodies.held == 900
    refused = await ask(served, Body([body]))
    assert (refused.status, refused.headers["retry-after"]) == (429, "5")
    other = asyncio.create_task(ask(served, Body([body])))
    await until(lambda: app.bodies.held == 1800)
    assert (await ask(served, Body([b"x" * 300]))).status == 503
    go.set()
    assert [(await each).status for each in (first, other)] == [200, 200]
    assert app.bodies.held == 0


async def test_json_with_too_many_values_is_refused_before_decoding() -> None:
    app = App({"bodies": {"json_values": 50_000}})
    answer = await ask(app.echo(), Body([b'{"a":[' + b"[]," * 100_000 + b"[]]}"]))
    assert answer.status == 400
    assert (
        answer.error["message"]
        == "The JSON body of your request contains more than 50000 values. Send fewer at a time."
    )


async def test_brackets_in_json_string_do_not_count_as_values() -> None:
    app = App({"bodies": {"json_values": 50_000}})
    assert (await ask(app.echo(), Body([b'{"a":"' + b"[{,\\\\" * 100_000 + b'"}']))).status == 200


async def test_decoded_json_values_count_as_held() -> None:
    limits = {"request_bytes": 10**6, "bodies": {"bytes_per_user": 10**6, "total_bytes": 10**7}}
    app = App(limits)
    held = app.bodies.reserve(Owner("ada"))
    with pytest.raises(ApiError, match="too many request bodies"):
        await app.bodies.decode(b'{"a":[' + b"[]," * 50_000 + b"[]]}", held)
    held.release()


def test_body_quota_below_request_limit_is_invalid_configuration() -> None:
    with pytest.raises(ValueError, match=r"'bodies.bytes_per_user' and 'bodies.total_bytes' must be at least"):
        App({"request_bytes": 2000, "bodies": {"bytes_per_user": 1999}})


def test_default_limits_create_bodies() -> None:
    assert isinstance(App().bodies, Bodies)


@pytest.mark.parametrize("body", [b'{"a": [' + b"[]," * 30_000 + b"0]}", b'{"a": "' + b"x" * 2**20 + b'"}'])
async def test_large_body_is_decoded_in_pieces_outside_event_loop(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    go, pieces, threads = threading.Event(), json_decoding.loads, list[str]()

    def wait(document: bytes | bytearray) -> Any:
        assert go.wait(60)
        threads.append(threading.current_thread().name)
        return pieces(document)

    monkeypatch.setattr(json_decoding, "loads", wait)
    bodies = App({}).bodies
    with bodies.reserve() as held:
        decoding = asyncio.create_task(bodies.decode(body, held))
        await asyncio.sleep(0.01)
        assert not decoding.done()
        go.set()
        assert (await decoding).keys() == {"a"}
    assert [name.rpartition("_")[0] for name in threads] == ["large-requests"], "each user has a share of these"


async def test_body_of_ordinary_size_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(json_decoding, "loads")
    bodies = App({}).bodies
    body = b'{"a": [%b"%b"]}' % (b"0," * 9_000, b"x" * 900_000)
    with bodies.reserve() as held:
        assert (await bodies.decode(body, held)).keys() == {"a"}


async def test_invalid_large_body_is_bad_request() -> None:
    app = App({})
    with app.bodies.reserve() as held:
        with pytest.raises(ApiError, match="We could not parse the JSON body of your request"):
            await app.bodies.decode(b'{"a": [' + b"0," * 400_000 + b"0}", held)
        with pytest.raises(ApiError, match="must be a JSON object"):
            await app.bodies.decode(b"[" + b"0," * 400_000 + b"0]", held)
