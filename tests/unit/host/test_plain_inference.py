"""Requests for other endpoints than responses reach the host's router, and its errors are those of the API."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import httpx2
import openai
import pytest
from pydantic import BaseModel

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Ended
from llama_stack_responses.generation.dependencies import Admit, Permit
from llama_stack_responses.host.plain_inference import HostPlainInference
from llama_stack_responses.host.platform import ModelNotFoundError
from llama_stack_responses.service.limited_requests import LimitedRequests
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess

BODY = {"model": "m", "prompt": "Hi"}
REQUEST = httpx2.Request("POST", "http://models/v1/completions")


class Answer(BaseModel):
    object: str = "text_completion"
    nothing: str | None = None
    usage: dict[str, int] = {"prompt_tokens": 3, "completion_tokens": 4}


class Router:
    """The host's router.

    Args:
        error: what it raises.
    """

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.asked: list[Any] = []

    async def openai_completion(self, request: Any) -> Answer:
        self.asked.append(request)
        if self.error:
            raise self.error
        return Answer()


class Asked:
    """The permit of a request whose use is counted."""

    def __init__(self) -> None:
        self.held, self.counts, self.headers = True, True, dict[str, str]()

    def ops(self, _: str) -> list[Any]:
        return []

    def release(self) -> None:
        self.held = False


def inference(router: Router, admit: Admit | None = None, *ended: list[Ended]) -> HostPlainInference:
    asked = HostPlainInference(router, store_chat_completions=False)
    records = MemoryRecords(10_000, 2**24)
    archive = Archive(records, retention=None, on_end=[each.append for each in ended])
    asked.limit(LimitedRequests(admit, archive, SingleUserAccess()))
    return asked


async def test_request_is_answered_by_the_router() -> None:
    router = Router()
    answer = await inference(router).answer("/v1/completions", BODY | {"extra": 1})
    assert answer["object"] == "text_completion"
    assert "nothing" not in answer
    [asked] = router.asked
    assert (asked.model, asked.prompt, asked.extra) == ("m", "Hi", 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFoundError("m"), 404),
        (ValueError("no"), 400),
        (ConnectionError("no"), 502),
        (TimeoutError(), 504),
        (NotImplementedError("no"), 501),
        (openai.APIConnectionError(request=REQUEST), 500),
        (openai.InternalServerError("busy", response=httpx2.Response(503, request=REQUEST), body=None), 503),
        (openai.RateLimitError("busy", response=httpx2.Response(429, request=REQUEST), body=None), 429),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_error_of_the_router_has_the_status_of_the_hosts_own_route(error: Exception, status: int) -> None:
    with pytest.raises(ApiError) as raised:
        await inference(Router(error)).answer("/v1/completions", BODY)
    assert raised.value.status == status


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (None, [("completed", 3, 4)]),
        (ConnectionError("no"), [("failed", None, None)]),
        (ValueError("no"), []),
    ],
    ids=["answer", "failure", "wrong request"],
)
async def test_request_counts_and_holds_nothing_afterwards(error: Exception | None, ends: list[Any]) -> None:
    permit, ended = Asked(), list[Ended]()

    async def admit(_: Owner, request: Any) -> Permit:
        assert (request.model, request.store) == ("m", False)
        return permit

    with suppress(ApiError):
        await inference(Router(error), admit, ended).answer("/v1/completions", BODY)
    assert not permit.held
    found = [(each.response["status"], each.response["usage"] or {}) for each in ended]
    assert [(status, usage.get("input_tokens"), usage.get("output_tokens")) for status, usage in found] == ends


async def test_request_over_a_limit_does_not_reach_the_router() -> None:
    async def refuse(_: Owner, __: Any) -> Permit:
        raise ApiError(429, "too many")

    router = Router()
    with pytest.raises(ApiError, match="too many"):
        await inference(router, refuse).answer("/v1/completions", BODY)
    assert router.asked == []


async def test_request_that_the_host_refuses_names_the_field() -> None:
    with pytest.raises(ApiError) as refused:
        await inference(Router()).answer("/v1/completions", {"model": "m"})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, "prompt", "invalid_value")
