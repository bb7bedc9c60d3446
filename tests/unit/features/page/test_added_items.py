"""The requests that answers to approvals name: those of the view, and stored ones of the viewer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.core.types import Json
from llama_stack_responses.features.page.added_items import answered_requests
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference
from tests.unit.service.test_short_requests import server

REQUEST: Json = {"type": "mcp_approval_request", "id": "mcpr_1", "name": "add", "server_label": "s", "arguments": "{}"}


@pytest.fixture
async def impl() -> OpenAIResponsesImpl:
    """A server with a conversation that holds the request."""
    created = server(MemoryRecords(), FakeInference(), SingleUserAccess())
    await created.conversations.create({"items": [REQUEST]})
    return created


def answer(request_id: str) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": request_id, "approve": True}


async def found(impl: OpenAIResponsesImpl, viewer: Owner, *items: Json, added_bytes: int = 1_000) -> Mapping[str, str]:
    requests = await answered_requests(impl.archive, items, viewer, added_bytes=added_bytes)
    return {each: request["name"] for each, request in requests.items()}


async def test_request_outside_of_the_view_is_read(impl: OpenAIResponsesImpl) -> None:
    assert await found(impl, ANONYMOUS, answer("mcpr_1")) == {"mcpr_1": "add"}


async def test_request_of_the_view_is_not_read(impl: OpenAIResponsesImpl) -> None:
    shown = {**REQUEST, "name": "shown"}
    assert await found(impl, ANONYMOUS, shown, answer("mcpr_1")) == {"mcpr_1": "shown"}


async def test_request_of_another_user_is_left_out(impl: OpenAIResponsesImpl) -> None:
    assert await found(impl, Owner("bob"), answer("mcpr_1")) == {}


async def test_request_that_is_too_large_is_left_out(impl: OpenAIResponsesImpl) -> None:
    assert await found(impl, ANONYMOUS, answer("mcpr_1"), added_bytes=10) == {}


async def test_item_of_another_type_does_not_match_a_request(impl: OpenAIResponsesImpl) -> None:
    conversation = await impl.conversations.create({"items": [{"type": "message", "role": "user", "content": "Hello"}]})
    page = await impl.conversations.list_items(conversation["id"], limit=1, after=None, order="asc")
    assert await found(impl, ANONYMOUS, answer(page.data[0]["id"])) == {}
