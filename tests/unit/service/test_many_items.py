"""The event loop does not go through all items of a long conversation; threads do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

import llama_stack_responses
from llama_stack_responses.generation.connection_options import ConnectionOptions
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.inputs.connection_memory import ConnectionMemory
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, call, finish, text
from tests.support.loop_walks import walks_of_event_loop
from tests.support.reservations import unlimited
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

ITEMS: Final = 4_000
MORE_THAN: Final = ITEMS // 4
COMPACTION: Final = {"type": "compaction", "compact_threshold": 1_000}
FUNCTION: Final = {"type": "function", "name": "f"}
PACKAGE: Final = str(Path(llama_stack_responses.__file__).parent)


@pytest.fixture
async def impl() -> AsyncIterator[OpenAIResponsesImpl]:
    """A server whose model calls a function if it may, and answers otherwise."""
    created = server(MemoryRecords(), Model(), SingleUserAccess())
    yield created
    await created.shutdown()


class Model(FakeInference):
    """Calls a function of a request that has one, and answers other requests."""

    async def open_stream(self, request: Json, *args: Any) -> Any:
        calls = [call("f", "call_1"), finish("tool_calls")]
        self._rounds = [calls if request.get("tools") else [text("Yes."), finish()]]
        return await super().open_stream({"messages": []}, *args)


def items() -> list[Json]:
    """Return a conversation that changes its settings now and then, and ends with a question."""
    update = {"type": "configuration_update", "reasoning": {"effort": "low"}}
    said = [{"type": "message", "role": role, "content": "x"} for role in ("user", "assistant") * (ITEMS // 2 - 10)]
    return [*said, update, *said[:17], said[0]]


async def create(impl: OpenAIResponsesImpl, **fields: Any) -> Json:
    run = await impl.create({"model": "m", **fields})
    assert isinstance(run, ForegroundRun)
    return await run.finish()


def assert_none(walks: dict[str, int]) -> None:
    assert {name for name in walks if name.startswith(PACKAGE)} == set()


@pytest.mark.extended
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": [FUNCTION]},
        {"truncation": "auto"},
        {"context_management": [COMPACTION]},
        {"input": [{"type": "compaction_trigger"}]},
        {"stream": False, "store": False},
    ],
    ids=str,
)
async def test_response_that_continues_many_items_does_not_go_through_them_in_the_event_loop(
    impl: OpenAIResponsesImpl, fields: Json
) -> None:
    with walks_of_event_loop(MORE_THAN) as walks:
        first = await create(impl, input=items())
        await create(impl, **{"previous_response_id": first["id"], "input": "Go on.", **fields})
    assert_none(walks)


@pytest.mark.extended
@pytest.mark.parametrize("said_before", [False, True])
async def test_many_items_that_are_stored_with_other_ids_are_not_compared_in_the_event_loop(
    impl: OpenAIResponsesImpl, said_before: bool
) -> None:
    """The second response has the words of the first one, and ids of its own: of all items, or of the last one."""
    said = [each for each in items() if each["type"] == "message"]
    first = await create(impl, input=[{**each, "id": f"msg_a{number}"} for number, each in enumerate(said)])
    with walks_of_event_loop(MORE_THAN) as walks:
        if said_before:
            await create(impl, previous_response_id=first["id"], input=[{**said[0], "id": "msg_a"}])
            again = await create(impl, previous_response_id=first["id"], input=[{**said[0], "id": "msg_b"}])
        else:
            again = await create(impl, input=[{**each, "id": f"msg_b{number}"} for number, each in enumerate(said)])
    assert_none(walks)
    listed = await impl.reader.input_items(again["id"], limit=2, after=None, order="desc")
    assert listed.data[0]["id"].startswith("msg_b")


async def test_connection_that_remembers_many_items_does_not_go_through_them_in_the_event_loop(
    impl: OpenAIResponsesImpl,
) -> None:
    connection = ConnectionOptions(ConnectionMemory(2**28, unlimited()))
    first = {"model": "m", "input": items(), "store": False}
    with walks_of_event_loop(MORE_THAN) as walks:
        response = await (await impl.create_on_connection(first, connection)).finish()
        second = first | {"input": "Go on.", "previous_response_id": response["id"]}
        await (await impl.create_on_connection(second, connection)).finish()
    assert_none(walks)


async def test_compaction_of_many_items_does_not_go_through_them_in_the_event_loop(impl: OpenAIResponsesImpl) -> None:
    with walks_of_event_loop(MORE_THAN) as walks:
        await impl.compaction.compact({"model": "m", "input": items()})
    assert_none(walks)


async def test_background_response_to_many_items_does_not_go_through_them_in_the_event_loop(
    impl: OpenAIResponsesImpl,
) -> None:
    with walks_of_event_loop(MORE_THAN) as walks:
        created = await impl.create({"model": "m", "input": items(), "background": True})
        assert (await impl.detached.finish(created.response["id"]))["status"] == "completed"
        counted = await impl.counting.count({"model": "m", "input": items()})
    assert counted["input_tokens"] > ITEMS
    assert_none(walks)
