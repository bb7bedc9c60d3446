"""What `delete --owner` leaves in a store: nothing that names the owner or has a word of theirs, on every backend."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import bad_request
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Refused
from llama_stack_responses.features.admin import store_view
from llama_stack_responses.features.admin.store_commands import delete
from llama_stack_responses.features.page.refused.writer import RefusedWriter
from llama_stack_responses.features.page.search.demand import Demand
from llama_stack_responses.features.page.search.indexer import Indexer
from llama_stack_responses.features.page.search.texts import Texts
from llama_stack_responses.features.usage.counting import count
from llama_stack_responses.features.usage.naming import Bounds
from llama_stack_responses.features.usage.tables import Tables
from llama_stack_responses.generation.run import ForegroundRun
from llama_stack_responses.service.detached_responses import DetachedResponse
from llama_stack_responses.service.responses import OpenAIResponsesImpl
from llama_stack_responses.store import codec
from llama_stack_responses.store.access_keys import AccessKeys, NewKey
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher, home_of
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.ends import Ended
from llama_stack_responses.store.layout import listing, used
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.placement import Placement
from llama_stack_responses.store.records import Condition, Delete, Op, Put, Records, pages_of, partitions_of
from llama_stack_responses.store.search_index import index_of
from tests.contract.backends import BackendLocation
from tests.contract.conversations import response
from tests.support.inference import FakeInference, finish, text
from tests.unit.service.test_running_share import SwitchedAccess
from tests.unit.service.test_short_requests import server

type Json = dict[str, Any]

WORD: Final = "canary"
"""In each text of the owner who is deleted."""
ADA: Final = Owner("ada-the-canary", {"teams": ["birds"]})
BOB: Final = Owner("bob", {"teams": ["fish"]})
SHARED: Final = ("p/", "s", "us/c", "z/turn")
"""Rows that servers write at intervals or for all users: their own, those of secrets, the version of the tables of
usage, and the turn of jobs."""
ROLES: Final = {"operator": {"roles": ["operator"]}}


@pytest.fixture(autouse=True)
def _no_server_knows_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command not wait for servers that know that an owner has a tag."""
    monkeypatch.setattr(store_view, "KNOWN_SECONDS", 0.0)


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    """Restore the signal handlers that a server installs for the life of its process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def respond(impl: OpenAIResponsesImpl, key: str | None = None, **fields: Any) -> str:
    """Return the id of a response of the current user, which has ended."""
    made = await impl.create({"model": "m", **fields}, key)
    if isinstance(made, ForegroundRun):
        return str((await made.finish())["id"])
    assert isinstance(made, DetachedResponse)
    response_id = str(made.response["id"])
    reserve = Admission(Quota("answers", 10**6, 10**6)).reserve
    async for _ in await impl.reader.follow(response_id, -1, 60, lambda: reserve(BOB)):
        pass
    return response_id


async def fill(records: Records, users: SwitchedAccess, owner: Owner, word: str) -> None:
    """Store something of each kind for an owner, with this word in each text."""
    users.owner = owner
    inference = FakeInference(*([text(f"{word} answer {number}"), finish()] for number in range(20)))
    impl = server(records, inference, users)
    first = await respond(impl, input=f"{word} one", instructions=f"{word} " * 200, metadata={"k": word})
    await respond(impl, input=f"{word} two", previous_response_id=first)
    if records.transactional:
        await respond(impl, input=f"{word} three", background=True)
        await respond(impl, f"{word}-key", input=f"{word} four")
    items = [{"role": "user", "content": f"{word} in a conversation"}]
    talk = await impl.conversations.create({"items": items, "metadata": {"k": word}})
    await respond(impl, input=f"{word} five", conversation=talk["id"])
    key, _ = await AccessKeys(records).create(NewKey(f"{word}'s laptop", owner, "team"))
    await AccessKeys(records).used(key.id)
    await impl.shutdown()
    await refuse(records, owner, word)
    await use(records, owner, word)


async def refuse(records: Records, owner: Owner, word: str) -> None:
    """Keep a refused request of an owner with this word in it."""
    writer = RefusedWriter(records, 1, 100)
    writer.add(Refused(owner, bad_request(word), {"input": word}, "", await records.now()))
    await writer.write()


async def use(records: Records, owner: Owner, word: str) -> None:
    """Count usage of an owner with this word in the metadata, in the tables and of a response that is not in them."""
    partitions, now = partitions_of(records), await records.now()
    archive = Archive(records, at_end=[partial(count, "k", Placement(partitions))])
    for number in range(2):
        ended = Ended(
            response(id=f"resp_{number}_{owner.principal}", metadata={"k": word}), owner, None, now - 86_400 * number
        )
        await archive.ends.unstored(ended)
    for partition in range(partitions):
        while await Tables(records, Decoder(), Bounds(9, 9), 400).add_some(now - 3600, partition):
            pass


@asynccontextmanager
async def nothing_of_the_host(*_: Any) -> AsyncIterator[Any]:
    """Open what a host keeps for users where it keeps nothing."""
    yield SimpleNamespace(left=[], kinds=[])


async def rows(records: Records) -> AsyncIterator[tuple[str, str]]:
    """Yield all rows: the key, and the value as text."""
    for first in map(chr, range(ord("a"), ord("z") + 1)):
        async for page in pages_of(records, first):
            for key, record in page:
                try:
                    yield key, str(codec.decode(record.value))
                except Exception:  # noqa: BLE001 - it is encoded in another way
                    yield key, record.value.decode("latin-1")


async def found(records: Records, *words: str) -> list[str]:
    """Return the keys of the rows that have one of these words, in the key or the value."""
    return [key async for key, value in rows(records) if any(word in f"{key} {value}" for word in words)]


@pytest.mark.parametrize("usage", [True, False], ids=["with usage", "without usage"])
async def test_deleted_owner_is_in_no_row(
    records: Records, tmp_path: Path, place: BackendLocation, capsys: pytest.CaptureFixture[str], usage: bool
) -> None:
    users, demand = SwitchedAccess(), Demand(records)
    await demand.ask()
    await fill(records, users, BOB, "fish")
    others = {key: value async for key, value in rows(records)}
    await fill(records, users, ADA, WORD)
    if index := index_of(records):
        await Indexer(index, demand, Texts(records)).work()
        assert (await index.progress()).indexed
    words = (WORD, "birds", Hasher(ADA).owner)
    assert len(await found(records, *words)) > 10
    await records.close()
    (config := tmp_path / "config.yaml").touch()
    settings = ResponsesConfig(roles=ROLES)
    arguments = Namespace(
        ids=[],
        owner=ADA.principal,
        tenant="",
        yes=True,
        usage=usage,
        json=True,
        config=config,
        open_store=lambda *_, **__: (records, settings),
        open_host_data=nothing_of_the_host,
    )
    await asyncio.to_thread(delete, arguments)
    deleted = capsys.readouterr().out
    assert '"deleted keys": 1' in deleted
    assert '"deleted refused requests": 1' in deleted
    assert ('"deleted days of usage": 2' in deleted) == usage
    left = await found(records, *words)
    # By the hash of the name, the audit log keeps that the owner was deleted, and servers are told for a day to end the
    # owner's containers.
    assert [key for key in left if not key.startswith(("al/", "ce/") if usage else ("al/", "ce/", "us/"))] == []
    assert any(key.startswith("us/") for key in left) != usage
    if not usage:
        return
    assert WORD not in str([value async for key, value in rows(records) if key in left])
    now = {key: value async for key, value in rows(records)}
    kept = [key for key in others if not key.startswith(SHARED)]
    assert {key: now.get(key) for key in kept} == {key: others[key] for key in kept}
    await records.close()
    for file in place.folder.rglob("*"):
        if file.is_file() and file.read_bytes()[:15] == b"SQLite format 3":
            with closing(sqlite3.connect(file, isolation_level=None)) as database:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                database.execute("VACUUM")
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if file.is_file():
            assert WORD.encode() not in file.read_bytes(), file


async def test_response_that_a_server_stores_while_its_owner_is_deleted_is_listed() -> None:
    parts = [MemoryRecords() for _ in range(8)]
    server, of = PartitionedRecords(parts), Hasher(ADA).owner
    deleted, stored = (listing(of, f"6{number}", new_id("resp", 3)) for number in range(2))

    class Command(PartitionedRecords):
        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            await super().commit(ops, conditions)
            if any(isinstance(op, Delete) and op.key.startswith("up/") for op in ops):
                await server.commit([Put(stored, b""), *used(ADA, 3)])

    assert home_of(of) % 8 != 3
    await server.commit([Put(deleted, b""), *used(ADA, 3)])
    command = Command(parts)
    await command.commit([Delete(deleted)])
    await store_view.StoreView(command).forget(ADA)
    assert [key for key, _ in await server.range(f"l/{of}/", f"l/{of}0", limit=9)] == [stored]


async def test_conversation_that_a_server_stores_while_its_owner_is_deleted_is_found() -> None:
    """Its items are, by their ids: the owner is known to have its tag."""
    parts = [MemoryRecords() for _ in range(8)]
    server = PartitionedRecords(parts)

    class Command(PartitionedRecords):
        async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
            await super().commit(ops, conditions)
            if any(isinstance(op, Delete) and op.key.startswith("up/") for op in ops):
                talk = Conversation(new_id("conv", 3), ADA, 1790000000, {})
                await Archive(server).conversations.create(talk, [{"type": "message", "id": "msg_own"}])

    assert home_of(Hasher(ADA).owner) % 8 != 3
    await server.commit([Put("c/none", Conversation("none", ADA, 1790000000, {}).encode()), *used(ADA, 3)])
    await store_view.StoreView(Command(parts)).forget(ADA)
    assert [item_id async for item_id, _ in Archive(server).find_items(ADA, ["msg_own"])] == ["msg_own"]


async def test_responses_that_lists_lack_after_a_failover_are_deleted_with_their_owner() -> None:
    records = PartitionedRecords([MemoryRecords() for _ in range(8)])
    owned = [response(id=new_id("resp", tag)) for tag in (0, 3, 5)]
    for each in owned:
        await Archive(records).save(each, owner=ADA, base=None, input_items=[])
    await records.commit([Delete(each.key) for each in used(ADA, 5)])
    found = [each async for each in store_view.StoreView(records).responses_of(ADA)]
    assert found == [each["id"] for each in owned]
