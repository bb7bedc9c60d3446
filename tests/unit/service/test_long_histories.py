"""The history that a request continues is limited: checked before it is decoded, and counted as held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.service.detached_responses import DetachedResponse
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store import codec
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.access import SingleUserAccess
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

LIMIT: Final = 60_000
WORDS: Final = "word " * 4_000


@pytest.fixture
def inference() -> FakeInference:
    return FakeInference(*([text("Answer."), finish()] for _ in range(12)))


@pytest.fixture
async def impl(inference: FakeInference) -> AsyncIterator[OpenAIResponsesImpl]:
    config = ResponsesConfig.model_validate({"limits": {"history_bytes": LIMIT}})
    created = server(MemoryRecords(), inference, SingleUserAccess(), config=config)
    yield created
    await created.shutdown()


async def ask(impl: OpenAIResponsesImpl, question: str = WORDS, **fields: Any) -> Json:
    run = await impl.create({"model": "m", "input": question, **fields})
    assert isinstance(run, ForegroundRun)
    final = await run.finish()
    # Nothing of another response is added to its conversation.
    assert final["status"] == "completed", final
    return final


async def long_chain(impl: OpenAIResponsesImpl) -> Json:
    """Return a response whose history is over the limit, while that of its predecessor was not."""
    first = await ask(impl)
    second = await ask(impl, previous_response_id=first["id"])
    return await ask(impl, previous_response_id=second["id"])


async def long_conversation(impl: OpenAIResponsesImpl) -> str:
    items = [{"role": "user", "content": WORDS} for _ in range(3)]
    conversation: str = (await impl.conversations.create({"items": items}))["id"]
    return conversation


def refused(error: ApiError, param: str) -> None:
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", param)
    assert f"more than {LIMIT} bytes" in error.message


async def test_history_over_limit_is_refused(impl: OpenAIResponsesImpl, inference: FakeInference) -> None:
    last = await long_chain(impl)
    count = len(inference.requests)
    with pytest.raises(ApiError) as raised:
        await ask(impl, "And?", previous_response_id=last["id"])
    refused(raised.value, "previous_response_id")
    assert len(inference.requests) == count
    assert (await impl.reader.retrieve(last["id"]))["id"] == last["id"]
    assert len((await impl.reader.input_items(last["id"], limit=20, after=None, order="desc")).data) == 5


async def test_conversation_over_limit_is_refused(impl: OpenAIResponsesImpl) -> None:
    conversation = await long_conversation(impl)
    with pytest.raises(ApiError) as raised:
        await ask(impl, "And?", conversation=conversation)
    refused(raised.value, "conversation")
    assert len((await impl.conversations.list_items(conversation, limit=20, after=None, order="asc")).data) == 3


def last_request(inference: FakeInference) -> list[tuple[str, str]]:
    """Return role and first word of each message of the last chat request."""
    shown = [(each["role"], each["content"]) for each in inference.requests[-1]["messages"]]
    texts = [(role, content if isinstance(content, str) else content[0]["text"]) for role, content in shown]
    return [(role, content.split()[0]) for role, content in texts]


async def chain_with_system_message(impl: OpenAIResponsesImpl, turns: int, **fields: Any) -> Json:
    opening = [{"role": "system", "content": "Kindly"}, {"role": "user", "content": "hello"}]
    last = await ask(impl, opening, **fields)  # type: ignore[arg-type]
    for number in range(turns):
        last = await ask(impl, f"{number} {WORDS}", previous_response_id=last["id"], **fields)
    return last


NEWEST: Final = [("system", "Kindly"), ("user", "1"), ("assistant", "Answer."), ("user", "2"), ("assistant", "Answer.")]


async def test_oldest_turns_of_history_over_limit_are_left_out_with_truncation(
    impl: OpenAIResponsesImpl, inference: FakeInference
) -> None:
    last = await chain_with_system_message(impl, 3, truncation="auto")
    created = await ask(impl, "And?", previous_response_id=last["id"], truncation="auto")
    assert last_request(inference) == [*NEWEST, ("user", "And?")]
    # The stored history is whole, and goes on.
    assert len((await impl.reader.input_items(created["id"], limit=20, after=None, order="asc")).data) == 10
    await ask(impl, "More?", previous_response_id=created["id"], truncation="auto")
    assert last_request(inference) == [*NEWEST, ("user", "And?"), ("assistant", "Answer."), ("user", "More?")]
    held: list[int] = []
    body = {"model": "m", "input": "And?", "previous_response_id": last["id"], "truncation": "auto"}
    run = await impl.create(body, hold=held.append)
    assert isinstance(run, ForegroundRun)
    await run.finish()
    assert len(WORDS) * 2 < sum(held) <= LIMIT


async def test_oldest_turns_of_history_over_limit_are_left_out_in_background(
    impl: OpenAIResponsesImpl, inference: FakeInference
) -> None:
    last = await chain_with_system_message(impl, 3, truncation="auto")
    impl.archive._histories._recent_bytes = LIMIT
    body = {"model": "m", "input": "And?", "previous_response_id": last["id"], "background": True, "truncation": "auto"}
    created = await impl.create(body)
    assert isinstance(created, DetachedResponse)
    await impl.detached.finish(created.response["id"])
    assert last_request(inference) == [*NEWEST, ("user", "And?")]


async def test_oldest_turns_of_conversation_over_limit_are_left_out_with_truncation(
    impl: OpenAIResponsesImpl, inference: FakeInference
) -> None:
    texts = [{"role": "user", "content": f"{number} {WORDS}"} for number in range(4)]
    items = [{"role": "system", "content": "Kindly"}, *texts]
    conversation: str = (await impl.conversations.create({"items": items}))["id"]
    await ask(impl, "And?", conversation=conversation, truncation="auto")
    assert last_request(inference) == [("system", "Kindly"), ("user", "2"), ("user", "3"), ("user", "And?")]
    assert len((await impl.conversations.list_items(conversation, limit=20, after=None, order="asc")).data) == 7


async def test_newest_turn_over_limit_is_refused_with_truncation(impl: OpenAIResponsesImpl) -> None:
    last = await ask(impl, WORDS * 4)
    with pytest.raises(ApiError) as raised:
        await ask(impl, "And?", previous_response_id=last["id"], truncation="auto")
    refused(raised.value, "previous_response_id")


async def test_history_over_limit_is_neither_counted_nor_compacted(impl: OpenAIResponsesImpl) -> None:
    last = await long_chain(impl)
    body = {"model": "m", "previous_response_id": last["id"]}
    for work in (impl.counting.count, impl.compaction.compact):
        with pytest.raises(ApiError) as raised:
            await work(body)
        refused(raised.value, "previous_response_id")


async def test_references_to_items_stored_with_large_ones_are_limited(impl: OpenAIResponsesImpl) -> None:
    texts: list[str] = []
    for _ in range(4):
        # An input that is repeated is stored separately.
        items = [{"role": "user", "content": f"{len(texts)}{WORDS}"}, {"role": "user", "content": "small"}]
        created = await ask(impl, items)  # type: ignore[arg-type]
        texts.append((await impl.reader.input_items(created["id"], limit=1, after=None, order="desc")).data[0]["id"])
    references = [{"type": "item_reference", "id": each} for each in texts]
    await ask(impl, references[:2])  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=f"more than {LIMIT} bytes together") as raised:
        await ask(impl, references)  # type: ignore[arg-type]
    assert (raised.value.status, raised.value.code) == (400, "string_above_max_length")


async def test_history_counts_as_held_before_it_is_decoded(impl: OpenAIResponsesImpl) -> None:
    first = await ask(impl)
    held: list[int] = []

    def refuse(size: int) -> None:
        held.append(size)
        if sum(held) > len(WORDS):
            raise ApiError(429, "Too much.")

    body = {"model": "m", "input": "And?", "previous_response_id": first["id"]}
    with pytest.raises(ApiError, match=r"Too much\."):
        await impl.create(body, None, refuse)
    # What is stored is compressed. It counts as soon as it has been read.
    stored, decoded = held
    assert stored < 1_000
    assert len(WORDS) < stored + decoded < LIMIT


async def test_items_that_conversation_refers_to_count_as_held(impl: OpenAIResponsesImpl) -> None:
    created = await ask(impl, f"0{WORDS}")
    [item] = (await impl.reader.input_items(created["id"], limit=1, after=None, order="asc")).data
    body = {"items": [{"type": "item_reference", "id": item["id"]}]}
    held: list[int] = []
    conversation = await impl.conversations.create(body, held.append)
    assert len(WORDS) < sum(held) < LIMIT
    held.clear()
    other = await impl.conversations.create({})
    await impl.conversations.add_items(other["id"], body, held.append)
    assert len(WORDS) < sum(held) < LIMIT
    held.clear()
    page = await impl.conversations.list_items(conversation["id"], limit=20, after=None, order="asc", hold=held.append)
    assert len(WORDS) < sum(held) < LIMIT
    held.clear()
    assert await impl.conversations.retrieve_item(conversation["id"], item["id"], held.append) == page.data[0]
    assert len(WORDS) < sum(held) < LIMIT


async def test_page_of_responses_counts_before_it_is_decoded(
    impl: OpenAIResponsesImpl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        await ask(impl, f"{number}{WORDS}", instructions=f"{number}{WORDS}")
    held: list[int] = []
    page = await impl.reader.list(limit=5, after=None, order="asc", model=None, hold=held.append)
    assert len(page.data) == 2
    assert sum(held) > 4 * len(WORDS)

    parsed: list[int] = []
    parse = codec.parse

    def spy(data: bytes, body: bytes) -> Any:
        parsed.append(len(body))
        return parse(data, body)

    def refuse(size: int) -> None:
        if size > len(WORDS):
            raise ApiError(429, "too much")

    monkeypatch.setattr(codec, "parse", spy)
    with pytest.raises(ApiError, match="too much"):
        await impl.reader.list(limit=5, after=None, order="asc", model=None, hold=refuse)
    assert max(parsed, default=0) < len(WORDS)


async def test_page_of_responses_is_cut_by_size_of_inputs(impl: OpenAIResponsesImpl) -> None:
    impl.archive._loader._page_bytes = LIMIT
    ids = []
    for number in range(5):
        ids.append((await ask(impl, f"{number}{WORDS}"))["id"])
        # Responses of the same millisecond are listed in the order of their random ids.
        await asyncio.sleep(0.002)
    page = await impl.reader.list(limit=20, after=None, order="asc", model=None)
    assert ([each["id"] for each in page.data], page.has_more) == (ids[:3], True)
    assert [len(each["input"]) for each in page.data] == [1, 1, 1]
    rest = await impl.reader.list(limit=20, after=ids[2], order="asc", model=None)
    assert ([each["id"] for each in rest.data], rest.has_more) == (ids[3:], False)


async def test_every_read_of_a_whole_response_counts_its_size(impl: OpenAIResponsesImpl) -> None:
    """Retrieving, cancelling, and waiting for a detached response, also for one that a repeated key finds."""
    body = {"model": "m", "input": "x", "instructions": WORDS}
    created = await impl.create(body, "key")
    assert isinstance(created, DetachedResponse)
    response_id = created.response["id"]
    background = await impl.create({**body, "background": True})
    assert isinstance(background, DetachedResponse)
    for read in (
        lambda hold: impl.detached.finish(response_id, hold),
        lambda hold: impl.reader.retrieve(response_id, hold),
        lambda hold: impl.create(body, "key", hold),
        lambda hold: impl.cancel(background.response["id"], hold),
    ):
        held: list[int] = []
        await read(held.append)
        assert sum(held) > len(WORDS)


async def test_sealed_item_of_a_request_is_opened_once_and_counted(
    impl: OpenAIResponsesImpl, monkeypatch: pytest.MonkeyPatch
) -> None:
    await impl.sealer.load()
    seal = PrivateReasoning(impl.sealer, ANONYMOUS).seal([ReasoningSegment("why " * 10_000)])
    given = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal}
    opened, held = list[str](), list[int]()
    real = Sealer.open

    def watched(self: Sealer, each: str, **about: Any) -> bytes:
        opened.append(each)
        return real(self, each, **about)

    monkeypatch.setattr(Sealer, "open", watched)
    body = {"model": "m", "input": [given, {"role": "user", "content": "x"}], "store": False}
    run = await impl.create(body, hold=held.append)
    assert isinstance(run, ForegroundRun)
    await run.finish()
    assert opened == [seal]
    assert sum(held) > 40_000
    count = await impl.counting.count({name: body[name] for name in ("model", "input")})
    assert count["input_tokens"] > 0
    assert len(opened) == 2
