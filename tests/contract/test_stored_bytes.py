"""On every backend, a recount finds what each user, team and key has stored, and requests beyond a limit are refused."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.usage.limits.recount import Recount
from llama_stack_responses.features.usage.limits.stored import PREFIX, Row, StoredQuota, row_of
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation, ConversationStore
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.layout import second
from llama_stack_responses.store.records import Put, Records, pages_of
from llama_stack_responses.store.retention import Horizon
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, assistant, response, user
from tests.contract.counting_proxy import CountingProxy
from tests.support.recounts import at_once, recount

ADA: Final = Owner("ada", {"teams": ["search"], "keys": ["key_1"]})
BOB: Final = Owner("bob", {"teams": ["search"]})
CONTENT: Final = ("r/", "l/", "n/", "b/", "cr/", "c/", "m/")

pytestmark = pytest.mark.needs("transactions")


async def counted(records: Records, by: str, name: str) -> int:
    key = row_of(by, name)
    row = Row.of((await records.get_many([key])).get(key))
    return row.counted + row.added


async def all_content(records: Records) -> int:
    """Return the bytes of all rows of content."""
    return sum(
        [len(k) + len(r.value) for prefix in CONTENT async for page in pages_of(records, prefix) for k, r in page]
    )


async def fill(archive: Archive, owner: Owner, turns: int, word: str) -> list[str]:
    """Store a thread of responses with a large shared field; return their ids."""
    made: list[str] = []
    base: str | None = None
    previous: str | None = None
    for number in range(turns):
        each = response(
            assistant(f"{word} {number} " * 50), instructions=word * 300, previous_response_id=previous, tools=[]
        )
        await archive.save(each, owner=owner, base=base, input_items=[user(f"{word} asks {number}")])
        stored = await archive.load(each["id"])
        assert stored
        base, previous = stored.history, each["id"]
        made.append(each["id"])
    return made


async def converse(records: Records, clock: Clock, owner: Owner, conversation_id: str) -> None:
    conversation = Conversation(conversation_id, owner, CREATED, {}, used_at=CREATED)
    await ConversationStore(records, Decoder(), clock).create(conversation, [user("Hello " * 50), assistant("Hi")])


@pytest.mark.every_store
async def test_recount_finds_all_content_and_no_row_twice(archive: Archive, records: Records, clock: Clock) -> None:
    await fill(archive, ADA, 5, "ada")
    await fill(archive, BOB, 3, "bob")
    await converse(records, clock, BOB, "conv_1")
    await recount(records)

    ada, bob = await counted(records, "user", "\0ada"), await counted(records, "user", "\0bob")
    assert ada + bob == await all_content(records)
    assert ada > bob > 0
    assert await counted(records, "team", "\0search") == await counted(records, "all", "") == ada + bob
    assert await counted(records, "key", "\0key_1") == ada


@pytest.mark.every_store
async def test_recount_after_deletion_and_expiry_finds_what_is_left(archive: Archive, records: Records) -> None:
    thread = await fill(archive, ADA, 4, "ada")
    await fill(archive, BOB, 2, "bob")
    await recount(records)
    before = await counted(records, "user", "\0ada")
    # The others still need the parts of the history that the first ones stored.
    for each in thread[:2]:
        assert await archive.delete(each)
    await recount(records)
    left, bob = await counted(records, "user", "\0ada"), await counted(records, "user", "\0bob")
    assert 0 < left < before
    assert left + bob == await all_content(records)

    while await archive.sweep(Horizon(0.0, second(CREATED + 1000))):
        pass
    await recount(records)
    assert await all_content(records) == 0
    assert [key async for page in pages_of(records, PREFIX) for key, _ in page] == []


async def test_only_one_server_recounts_at_a_time(archive: Archive, counting: CountingProxy) -> None:
    await fill(archive, ADA, 1, "ada")
    servers = [Recount(counting, Decoder(), at_once) for _ in range(3)]
    await asyncio.gather(*(each.run() for each in servers))
    before = counting.reads + counting.commits
    await asyncio.gather(*(each.run() for each in servers))

    assert counting.reads + counting.commits - before <= len(servers)
    assert await counted(counting, "user", "\0ada") == await all_content(counting)


async def test_what_is_stored_during_a_recount_is_not_lost(archive: Archive, records: Records) -> None:
    await fill(archive, ADA, 1, "ada")
    quota = StoredQuota(records)

    async def store(_: int) -> None:
        quota.add(row_of("user", "\0ada"), "x" * 1000)
        await quota.settle()

    content = await all_content(records)
    await Recount(records, Decoder(), store).run()
    assert await counted(records, "user", "\0ada") >= content + 1000
    await recount(records)
    assert await counted(records, "user", "\0ada") == content


async def test_damaged_response_is_left_out(archive: Archive, records: Records) -> None:
    damaged, *_ = await fill(archive, ADA, 1, "ada")
    await fill(archive, BOB, 1, "bob")
    await records.commit([Put(f"r/{damaged}", b"damaged")])
    await recount(records)

    assert await counted(records, "user", "\0ada") == 0
    assert await counted(records, "user", "\0bob") > 0
