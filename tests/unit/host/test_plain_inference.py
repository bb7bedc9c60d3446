"""Requests for other endpoints than responses reach the host's router, and its errors are those of the API."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.host.plain_inference import HostPlainInference
from llama_stack_responses.host.platform import ModelNotFoundError

BODY = {"model": "m", "prompt": "Hi"}


class Answer(BaseModel):
    object: str = "text_completion"
    nothing: str | None = None


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


async def test_request_is_answered_by_the_router() -> None:
    router = Router()
    answer = await HostPlainInference(router).answer("/v1/completions", BODY | {"extra": 1})
    assert answer == {"object": "text_completion"}
    [asked] = router.asked
    assert (asked.model, asked.prompt, asked.extra) == ("m", "Hi", 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelNotFoundError("m"), 404),
        (ValueError("no"), 400),
        (ConnectionError("no"), 502),
        (TimeoutError(), 504),
    ],
)
async def test_error_of_the_router_has_the_status_of_the_api(error: Exception, status: int) -> None:
    with pytest.raises(ApiError) as raised:
        await HostPlainInference(Router(error)).answer("/v1/completions", BODY)
    assert raised.value.status == status


async def test_request_that_the_host_refuses_names_the_field() -> None:
    with pytest.raises(ApiError) as refused:
        await HostPlainInference(Router()).answer("/v1/completions", {"model": "m"})
    assert (refused.value.status, refused.value.param, refused.value.code) == (400, "prompt", "invalid_value")
