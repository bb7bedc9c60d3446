"""The bytes that one call reads of large content are bounded, on every backend."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cache
from math import inf
from typing import Any, Final

import pytest

from llama_stack_responses.concurrency.offloading import INLINE_BYTES
from llama_stack_responses.store import codec, history_nodes
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.codec import TooLarge
from llama_stack_responses.store.conversation_store import Conversation, stand_in
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.read_allowance import ReadAllowance
from llama_stack_responses.store.records import Record, Records
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, Json, assistant, new_id, response, user
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_archive import ALICE, nothing_left, texts

LARGE: Final = 40_000
"""Characters of a text that is too long to decode in the event loop."""
PAGE: Final = 120_000


class ReadSizeRecorder(CountingProxy):
    """Records that record the size of each read.

    Attributes:
        brought: the bytes of each read.
        requested: the keys of each `get_many`.
    """

    def __init__(self, records: Records) -> None:
        super().__init__(records)
        self.brought: list[int] = []
        self.requested: list[Sequence[str]] = []

    async def get_many(self, keys: Sequence[str], *, max_bytes: int | None = None) -> dict[str, Record]:
        found = await super().get_many(keys, max_bytes=max_bytes)
        self.requested.append(keys)
        self.brought.append(sum(len(record.value) for record in found.values()))
        return found

    async def range(self, *args: Any, **kwargs: Any) -> list[tuple[str, Record]]:
        found = await super().range(*args, **kwargs)
        self.brought.append(sum(len(record.value) for _, record in found))
        return found

    def forget(self) -> None:
        self.brought.clear()
        self.requested.clear()


@pytest.fixture
def meter(records: Records) -> ReadSizeRecorder:
    return ReadSizeRecorder(records)


@pytest.fixture
def archive(meter: ReadSizeRecorder, clock: Clock) -> Archive:
    return Archive(meter, clock=clock, page_bytes=PAGE, scan_seconds=inf)


@cache
def noise(seed: int, length: int = LARGE) -> str:
    """Return a text that hardly compresses."""
    return "".join(f"{(seed * 7_919 + number) * 2_654_435_761 % 2**32:08x}" for number in range(length // 8))


async def turn(archive: Archive, base: StoredResponse | None, question: str, **fields: Any) -> StoredResponse:
    created = response(assistant("a"), **fields)
    await archive.save(created, owner=ALICE, base=base.history if base else None, input_items=[user(question)])
    stored = await archive.load(created["id"])
    assert stored
    return stored


async def chain(archive: Archive, length: int) -> StoredResponse:
    stored = None
    for number in range(length):
        stored = await turn(archive, stored, noise(number))
    assert stored
    return stored


@pytest.fixture
def unsized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write nodes as a version did that stored no sizes of histories."""
    extend = history_nodes.extend

    def without_size(*args: Any) -> history_nodes.Node:
        node = extend(*args)
        return history_nodes.Node(node.depth, node.links, node.items)

    monkeypatch.setattr(history_nodes, "extend", without_size)


def watch_parsing(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Record the size in bytes of each JSON text that is decoded from now on, and the thread that decodes it."""
    parsed: list[tuple[int, int]] = []
    parse = codec.parse

    def watched(data: bytes, body: bytes) -> Any:
        parsed.append((len(body), threading.get_ident()))
        return parse(data, body)

    monkeypatch.setattr(codec, "parse", watched)
    return parsed


# Histories


async def test_history_within_limit_is_read(archive: Archive) -> None:
    last = await chain(archive, 4)
    held: list[int] = []
    allowance = ReadAllowance(5 * LARGE, held.append)
    assert len(await archive.history(last.history, allowance)) == 8
    assert 4 * LARGE < sum(held) < 5 * LARGE
    assert allowance.left == 5 * LARGE - sum(held)


async def test_history_over_limit_is_refused_after_reading_newest_node(
    archive: Archive, meter: ReadSizeRecorder
) -> None:
    last = await chain(archive, 6)
    meter.forget()
    held: list[int] = []
    with pytest.raises(TooLarge):
        await archive.history(last.history, ReadAllowance(5 * LARGE, held.append))
    assert len(meter.brought) == 1
    assert held == []


@pytest.mark.usefixtures("unsized")
async def test_history_without_sizes_is_read_until_over_limit(archive: Archive, meter: ReadSizeRecorder) -> None:
    last = await chain(archive, 12)
    meter.forget()
    held: list[int] = []
    with pytest.raises(TooLarge):
        await archive.history(last.history, ReadAllowance(4 * LARGE, held.append))
    # The text compresses to four bits per character, and the last record exceeds the limit.
    assert sum(meter.brought) < 4 * LARGE + LARGE
    assert held == []
    assert len(await archive.history(last.history, ReadAllowance(15 * LARGE))) == 24


@pytest.mark.usefixtures("unsized")
async def test_compressed_history_over_limit_is_not_decoded(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = None
    for number in range(4):
        stored = await turn(archive, stored, str(number) * 1_000_000)
    assert stored
    parsed = watch_parsing(monkeypatch)
    with pytest.raises(TooLarge):
        await archive.history(stored.history, ReadAllowance(2_500_000))
    assert parsed == []


async def test_large_history_is_decoded_outside_event_loop(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    last = await chain(archive, 2)
    parsed = watch_parsing(monkeypatch)
    assert len(await archive.history(last.history)) == 4
    assert await archive.load(last.response["id"])
    large = [thread for size, thread in parsed if size > INLINE_BYTES]
    assert large
    assert threading.get_ident() not in large


async def test_large_response_is_encoded_outside_event_loop(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    large: list[int] = []
    pack = codec.pack_text

    def watched(text: codec.JsonText, *args: Any, **kwargs: Any) -> bytes:
        if len(text.json) > INLINE_BYTES:
            large.append(threading.get_ident())
        return pack(text, *args, **kwargs)

    monkeypatch.setattr(codec, "pack_text", watched)
    await turn(archive, None, noise(1), instructions=noise(2))
    assert len(large) == 2
    assert threading.get_ident() not in large


async def test_deleted_history_is_read_in_pages(meter: ReadSizeRecorder, clock: Clock) -> None:
    archive = Archive(meter, clock=clock, page_bytes=PAGE // 4)
    last = await chain(archive, 20)
    for response_id in [each for page in await walked(archive) for each in page]:
        if response_id != last.response["id"]:
            await archive.delete(response_id)
    meter.forget()
    await archive.delete(last.response["id"])
    assert max(meter.brought) < PAGE // 4 + LARGE
    assert await nothing_left(meter)


async def test_found_items_are_limited_in_bytes(archive: Archive) -> None:
    questions = [user(noise(number)) for number in range(4)]
    for item in questions:
        await archive.save(response(), owner=ALICE, base=None, input_items=[item, user("beside")])
    ids = [item["id"] for item in questions]
    assert len([found async for found in archive.find_items(ALICE, ids, ReadAllowance(5 * LARGE))]) == 4
    with pytest.raises(TooLarge):
        assert [found async for found in archive.find_items(ALICE, ids, ReadAllowance(3 * LARGE))]


# Conversations


async def conversation_of(archive: Archive, *items: Json) -> Conversation:
    conversation = Conversation(new_id("conv"), ALICE, CREATED, {})
    await archive.conversations.create(conversation, items)
    found = await archive.conversations.load(conversation.id)
    assert found
    return found


async def test_conversation_over_limit_is_refused_before_reading_it(archive: Archive, meter: ReadSizeRecorder) -> None:
    conversation = await conversation_of(archive, *(user(noise(number)) for number in range(12)))
    items = await archive.conversations.items(conversation.id, conversation.end, ReadAllowance(13 * LARGE))
    assert len(items) == 12
    meter.forget()
    held: list[int] = []
    with pytest.raises(TooLarge):
        await archive.conversations.items(conversation.id, conversation.end, ReadAllowance(4 * LARGE, held.append))
    assert sum(meter.brought) < 5 * LARGE
    assert held == []
    with pytest.raises(TooLarge):
        await archive.conversations.unfold([stand_in(conversation)], ReadAllowance(4 * LARGE))


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_page_of_conversation_is_cut_by_size(archive: Archive, meter: ReadSizeRecorder, order: Any) -> None:
    messages = [noise(number) for number in range(16)]
    conversation = await conversation_of(archive, *map(user, messages))
    store, after, pages = archive.conversations, None, []
    while True:
        meter.forget()
        items, more = await store.page(conversation, limit=20, after=after, order=order, max_bytes=PAGE)
        assert sum(meter.brought) < PAGE + LARGE
        pages.append(texts(items))
        if not more:
            break
        after = items[-1]["id"]
    assert [len(page) for page in pages] == [3, 3, 3, 3, 3, 1]
    assert [text for page in pages for text in page] == (messages if order == "asc" else messages[::-1])


async def test_last_page_of_conversation_cut_by_size_has_no_more(archive: Archive) -> None:
    conversation = await conversation_of(archive, *(user(noise(number)) for number in range(3)))
    items, more = await archive.conversations.page(conversation, limit=5, after=None, order="asc", max_bytes=PAGE)
    assert (len(items), more) == (3, False)


# Lists of responses


async def walked(archive: Archive, **fields: Any) -> list[list[str]]:
    """Return the ids on each page."""
    pages: list[list[str]] = []
    after = None
    while True:
        page = await archive.list(ALICE, **{"limit": 10, "after": after, "order": "asc", "model": None} | fields)
        pages.append([each.response["id"] for each in page.items])
        if not page.has_more:
            return pages
        after = pages[-1][-1]


async def test_page_of_responses_is_cut_by_size(archive: Archive, clock: Clock) -> None:
    ids = []
    for number in range(7):
        clock.now += 1
        ids.append(
            (await turn(archive, None, "q", instructions=noise(number), created_at=int(clock.now))).response["id"]
        )
    pages = await walked(archive)
    assert [len(page) for page in pages] == [3, 3, 1]
    assert [each for page in pages for each in page] == ids
    assert [each for page in await walked(archive, order="desc") for each in page] == ids[::-1]


async def test_shared_content_of_list_is_read_and_decoded_once(
    archive: Archive, clock: Clock, meter: ReadSizeRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        clock.now += 1
        await turn(archive, None, "q", instructions="i" * (PAGE // 10), created_at=int(clock.now))
    meter.forget()
    parsed = watch_parsing(monkeypatch)
    page = await archive.list(ALICE, limit=10, after=None, order="asc", model=None)
    assert len(page.items) == 5
    assert {each.response["instructions"] for each in page.items} == {"i" * (PAGE // 10)}
    assert sum(key.startswith("b/") for keys in meter.requested for key in keys) == 1
    assert sum(size > PAGE // 10 for size, _ in parsed) == 1


async def test_shared_content_counts_for_each_response_of_page(archive: Archive, clock: Clock) -> None:
    for _ in range(7):
        clock.now += 1
        await turn(archive, None, "q", instructions="i" * LARGE, created_at=int(clock.now))
    assert [len(page) for page in await walked(archive)] == [3, 3, 1]


async def test_list_of_one_model_reads_no_content_of_other_models(
    archive: Archive, clock: Clock, meter: ReadSizeRecorder
) -> None:
    for number in range(6):
        clock.now += 1
        model = "m" if number % 3 == 0 else "other"
        await turn(archive, None, f"q{number}", instructions=noise(number), model=model, created_at=int(clock.now))
    meter.forget()
    page = await archive.list(ALICE, limit=10, after=None, order="asc", model="m")
    assert [each.response["instructions"] for each in page.items] == [noise(0), noise(3)]
    assert not page.has_more
    assert sum(key.startswith("b/") for keys in meter.requested for key in keys) == 2


async def test_own_inputs_are_cut_by_size(archive: Archive) -> None:
    stored = [await turn(archive, None, noise(number)) for number in range(7)]
    inputs = await archive.own_inputs(stored)
    assert [texts(items) for items in inputs] == [[noise(number)] for number in range(3)]
    assert [texts(items) for items in await archive.own_inputs(stored[3:])] == [[noise(n)] for n in range(3, 6)]
