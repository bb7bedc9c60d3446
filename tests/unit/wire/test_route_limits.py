"""Streams and large answers are counted per user until they have been sent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import orjson
import pytest
from fastapi import Request, Response
from starlette.types import Message

from llama_stack_responses.concurrency.share import Share, current_share
from llama_stack_responses.wire.http_responses import (
    FinishedJsonResponse,
    FollowedResponse,
    JsonResponse,
    RunJsonResponse,
)
from tests.support.asgi import App, Body, ask, scope_of
from tests.support.waiting import until

LARGE = "x" * 100_000


async def stalled(app: Any, count: int) -> tuple[list[Any], asyncio.Event]:
    """Return requests whose clients have begun to read their answers, and the event that lets them read the rest."""
    go, begun = asyncio.Event(), 0

    async def send(_: Message) -> None:
        nonlocal begun
        begun += 1
        await go.wait()

    requests: list[Any] = [
        asyncio.ensure_future(app(scope_of(method="GET"), Body().receive, send)) for _ in range(count)
    ]
    await until(lambda: begun == count)
    return requests, go


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"streams_per_user": 2}, "You have too many streams open"),
        ({"streams": 2}, "The server has too many streams open"),
        ({"bytes_per_user": 250_000}, "You have too many large answers open"),
        ({"total_bytes": 250_000}, "The server has too many large answers open"),
    ],
)
async def test_answer_over_limit_is_refused_until_another_has_been_sent(limits: Any, expected: str) -> None:
    app = App({"answers": limits})

    async def answer(request: Request) -> Response:
        app.limits.hold_stream(request.scope)
        return JsonResponse(LARGE)

    served = app.serve(answer)
    requests, go = await stalled(served, 2)
    refused = await ask(served, Body(), method="GET")
    assert (refused.status, refused.headers["retry-after"]) == (429 if "You" in expected else 503, "5")
    assert expected in refused.error["message"]
    go.set()
    await asyncio.gather(*requests)
    whole = await ask(served, Body(), method="GET")
    assert (whole.status, len(whole.body)) == (200, len(LARGE) + 2)
    assert whole.headers["content-length"] == str(len(whole.body))


async def test_large_event_is_sent_to_stalled_client_in_blocks() -> None:
    sent: list[bytes] = []

    async def batches() -> Any:
        yield [{"type": "response.x", "delta": "y" * 10_000_000}]

    async def answer(_: Request) -> Response:
        return FollowedResponse(batches())

    async def send(message: Message) -> None:
        sent.append(message.get("body", b""))

    await App().serve(answer)(scope_of(method="GET"), Body(then="silence").receive, send)
    assert sum(map(len, sent)) > 10_000_000
    assert max(map(len, sent)) < 200_000


class FinishedRun:
    """A run that has ended."""

    headers: Final[Mapping[str, str]] = {}

    async def finish(self) -> Any:
        return {"id": "resp_1", "store": True, "instructions": LARGE}

    def abandon(self) -> None:
        """Do nothing: it has ended."""


async def finished() -> Any:
    return {"id": "resp_1", "instructions": LARGE}


MADE: Any = FinishedRun
ANSWERS: Any = {
    "a run": lambda: RunJsonResponse(MADE()),
    "a detached response": lambda: FinishedJsonResponse(finished(), {}),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_answer_of_finished_response_counts_until_it_has_been_sent(kind: str) -> None:
    app = App({"answers": {"bytes_per_user": 250_000}})

    async def answer(_: Request) -> Any:
        return ANSWERS[kind]()

    served = app.serve(answer)
    requests, go = await stalled(served, 2)
    refused = await ask(served, Body(then="silence"), method="GET")
    assert refused.status == 429
    # A retry of the request would make a second response.
    assert (refused.headers.get("x-should-retry"), "retrieve 'resp_1'" in refused.error["message"]) == (
        ("false", True) if kind == "a run" else (None, False)
    )
    go.set()
    await asyncio.gather(*requests)
    assert (await ask(served, Body(then="silence"), method="GET")).status == 200


async def test_large_answer_is_encoded_while_other_tasks_run() -> None:
    app, turns = App(), 0

    async def answer(_: Request) -> Response:
        return JsonResponse([LARGE] * 100)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    whole = await ask(app.serve(answer), Body(), method="GET")
    counting.cancel()
    assert orjson.loads(whole.body) == [LARGE] * 100
    assert turns > 100


async def test_stored_value_counts_until_its_answer_is_encoded() -> None:
    app = App({"answers": {"bytes_per_user": 1_000_000}})

    async def answer(request: Request) -> Response:
        app.limits.hold_value(request.scope)(900_000)
        assert app.limits.held_answer_bytes == 900_000
        return JsonResponse(LARGE)

    requests, go = await stalled(app.serve(answer), 1)
    assert len(LARGE) < app.limits.held_answer_bytes < 200_000
    go.set()
    await asyncio.gather(*requests)
    assert app.limits.held_answer_bytes == 0


async def test_work_on_a_request_counts_as_that_of_its_user() -> None:
    shares: list[Share] = []

    async def handler(_: Request) -> Response:
        shares.append(await asyncio.create_task(share_of_task()))
        return JsonResponse({})

    async def share_of_task() -> Share:
        return current_share()

    app = App()
    await ask(app.serve(handler), Body())
    assert shares == [Share(("", "ada"))]
    assert current_share().user is None
