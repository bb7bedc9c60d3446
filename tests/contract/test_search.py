"""The index of words, on every store that has one."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, cast

import asyncpg
import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.page.lists import Lists, restricted_to
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.search.box import searched
from llama_stack_responses.features.page.search.demand import KEPT_DAYS, Demand
from llama_stack_responses.features.page.search.finding import Search
from llama_stack_responses.features.page.search.indexer import Indexer
from llama_stack_responses.features.page.search.texts import Texts
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.store import sqlite_search
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.ends import Ended, OnEnd
from llama_stack_responses.store.layout import listing
from llama_stack_responses.store.records import Delete, Put, Records, after_prefix
from llama_stack_responses.store.search_index import (
    NO_PROGRESS,
    Document,
    Noted,
    Progress,
    SearchIndex,
    Term,
    index_of,
    indexed_words,
    words_of,
)
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.backends import Backend, BackendLocation, Clock, schema_of
from tests.contract.conversations import CREATED, Json, assistant, response, user
from tests.support import former_search

pytestmark = [pytest.mark.needs("search"), pytest.mark.every_store]

ALICE: Final = Owner("alice")
BOB: Final = Owner("bob")
DROPPED: Final = "DROP TRIGGER search_inserted; DROP TRIGGER search_updated; DROP TRIGGER search_deletion;"


def key_of(number: int, owner: Owner = ALICE) -> str:
    return listing(Hasher(owner).owner, f"{number:014x}", f"resp_{number}")


def opened(records: Records) -> SearchIndex:
    index = index_of(records)
    assert index is not None
    return index


async def prepared(records: Records) -> SearchIndex:
    index = opened(records)
    while not await index.prepare():
        pass
    return index


async def store(records: Records, index: SearchIndex, texts: dict[str, str]) -> None:
    """Write rows with these texts, and index them."""
    await records.commit([Put(key, b"row") for key in texts])
    noted = await index.claim(1000)
    await index.put([Document(each, indexed_words(texts[each.key])) for each in noted])


async def found(index: SearchIndex, *words: str, owner: Owner = ALICE, limit: int = 100) -> list[str]:
    """Return the keys of an owner's rows with all these words or phrases, newest first; `*` ends a prefix."""
    terms = [Term(tuple(words_of(each)), each.endswith("*")) for each in words]
    prefix = f"l/{Hasher(owner).owner}/"
    return [key for key, _ in await index.find(terms, prefix, after_prefix(prefix), limit=limit, reverse=True)]


async def test_row_is_found_by_each_of_its_words(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "Why is the sky blue?", key_of(2): "Grass is green."})
    assert await found(index, "SKY") == [key_of(1)]
    assert await found(index, "is") == [key_of(2), key_of(1)]
    assert await found(index, "is", "green") == [key_of(2)]
    assert await found(index, "sky", "green") == []


@pytest.mark.parametrize(
    ("text", "words", "is_found"),
    [
        ("a microphone", "micro*", True),
        ("a microphone", "micro", False),
        ("the sky is blue", "sky is*", True),
        ("the sky was blue", "sky is", False),
        ("call_9f3Ab failed", "call_9f3ab", True),
        ("un café crème", "cafe", True),
        ("un cafe", "Café", True),
        ("die Straße", "STRASSE", False),
        ("die Straße", "straße", True),
        ("今天天气很好", "天气", True),
        ("今天天气很好", "气天", False),
        ("날씨가 좋다", "날씨가", True),
        ("мой вопрос", "мой", True),
        ("ガラス", "ガラス", True),
        ("it's 3.14", "3.14", True),
        ("' OR 1=1 --", "' OR 1=1 --", True),
        ("NEAR(a b) AND NOT c", "near(a b) and not c", True),
    ],
)
async def test_text_is_found_by_words_of_any_form(records: Records, text: str, words: str, is_found: bool) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): text})
    assert (await found(index, words) == [key_of(1)]) == is_found


async def test_range_of_keys_bounds_what_is_found(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(number): "same text" for number in range(1, 6)})
    terms = [Term(("same",), prefix=False)]
    rows = await index.find(terms, key_of(2), key_of(5), limit=2, reverse=False)
    assert [(key, record.value) for key, record in rows] == [(key_of(2), b"row"), (key_of(3), b"row")]
    rows = await index.find(terms, key_of(2), key_of(5), limit=9, reverse=True)
    assert [key for key, _ in rows] == [key_of(4), key_of(3), key_of(2)]


async def test_owner_finds_nothing_of_others(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "a secret", key_of(2, BOB): "a secret"})
    assert await found(index, "secret") == [key_of(1)]
    assert await found(index, "secret", owner=BOB) == [key_of(2, BOB)]
    assert await found(index, "secret", Hasher(BOB).owner) == []


async def test_changed_row_is_found_by_its_new_text_only(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "a draft"})
    await store(records, index, {key_of(1): "the end"})
    assert await found(index, "draft") == []
    assert await found(index, "end") == [key_of(1)]


async def test_deleted_row_leaves_index_in_same_commit(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "gone soon", key_of(2): "stays"})
    await records.commit([Delete(key_of(1))])
    assert await found(index, "gone") == []
    assert await found(index, "stays") == [key_of(2)]


async def test_row_deleted_while_it_is_indexed_is_not_indexed(records: Records) -> None:
    index = await prepared(records)
    await records.commit([Put(key_of(1), b"row")])
    [noted] = await index.claim(10)
    await records.commit([Delete(key_of(1))])
    await index.put([Document(noted, ["gone"])])
    assert (await found(index, "gone"), (await index.progress()).indexed) == ([], 0)


async def test_row_changed_while_it_is_indexed_is_indexed_again(records: Records) -> None:
    index = await prepared(records)
    await records.commit([Put(key_of(1), b"row")])
    [noted] = await index.claim(10)
    await records.commit([Put(key_of(1), b"row")])
    await index.put([Document(noted, ["draft"])])
    [again] = await index.claim(10)
    assert (again.key, await found(index, "draft")) == (key_of(1), [])


async def test_rows_written_before_index_are_noted(records: Records) -> None:
    keys = [key_of(number) for number in range(3)]
    await records.commit([Put(key, b"row") for key in keys])
    index = await prepared(records)
    assert {each.key for each in await index.claim(10)} == set(keys)
    assert await index.progress() == Progress(complete=True, indexed=0, waiting=3)


async def test_other_rows_are_not_noted(records: Records) -> None:
    index = await prepared(records)
    await records.commit([Put("k/x", b""), Put("m/x", b""), Put("l0", b"")])
    assert await index.claim(10) == []


async def test_claimed_row_is_not_claimed_again_soon(records: Records) -> None:
    index = await prepared(records)
    await records.commit([Put(key_of(1), b"row")])
    first = await index.claim(10)
    assert (len(first), await index.claim(10)) == (1, [])


async def test_index_of_closed_store_is_still_there(
    backend: Backend, place: BackendLocation, clock: Clock, records: Records
) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "kept words"})
    await records.commit([Put(key_of(2), b"row")])
    again = backend.open(place, clock)
    try:
        index = opened(again)
        assert await found(index, "kept") == [key_of(1)]
        assert [each.key for each in await index.claim(10)] == [key_of(2)]
    finally:
        await again.close()


async def test_dropped_index_has_nothing_and_is_made_anew(records: Records) -> None:
    index = await prepared(records)
    await store(records, index, {key_of(1): "some words"})
    await index.drop()
    await index.drop()
    assert (await found(index, "words"), await index.claim(9), await index.progress()) == ([], [], NO_PROGRESS)
    await records.commit([Put(key_of(2), b"row"), Delete(key_of(1))])
    index = await prepared(records)
    assert [each.key for each in await index.claim(9)] == [key_of(2)]


async def test_two_servers_claim_different_rows(
    backend: Backend, place: BackendLocation, clock: Clock, records: Records
) -> None:
    index = await prepared(records)
    await records.commit([Put(key_of(number), b"row") for number in range(4)])
    other = backend.open(place, clock)
    try:
        claims: Sequence[Sequence[Noted]] = [await index.claim(2), await opened(other).claim(2), await index.claim(2)]
    finally:
        await other.close()
    assert [[each.key for each in claim] for claim in claims] == [[key_of(3), key_of(2)], [key_of(1), key_of(0)], []]


class NoJobs:
    """No response waits in a queue."""

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Any]:
        return {}


async def save(archive: Archive, question: str, answer: str, number: int = 0, **fields: Any) -> str:
    made = response(assistant(answer), created_at=CREATED + number, **fields)
    await archive.save(made, owner=ALICE, base=None, input_items=[user(question)])
    return str(made["id"])


class Searched:
    """A store in which somebody searches."""

    def __init__(self, archive: Archive, records: Records) -> None:
        self.index = opened(records)
        self.demand, texts = Demand(records), Texts(records)
        self.indexer = Indexer(self.index, self.demand, texts)
        found = Search(self.index, self.demand, texts, self.index.progress)
        self.lists = Lists(archive, cast("BackgroundJobs", NoJobs()), RefusedRequests(records), found)

    async def work(self) -> None:
        """Index all that is noted, as a server does on which somebody has searched."""
        await self.demand.ask()
        await self.indexer.work()

    async def ids(self, text: str, owner: Owner = ALICE, limit: int = 50) -> list[str]:
        """Return the ids of all that a search finds."""
        return (await search(self.lists, text, owner, limit))[0]


async def search(lists: Lists, text: str, owner: Owner = ALICE, limit: int = 50) -> tuple[list[str], Json]:
    """Return the ids of all that a search finds, and the last page."""
    ids, after = list[str](), None
    while True:
        page = await lists.page(owner, restricted_to(searched(text)), after, limit, "desc")
        ids += [row["id"] for row in page["data"]]
        if not (after := page["next"]):
            return ids, page


async def test_stored_response_is_found_by_all_that_it_says(archive: Archive, records: Records) -> None:
    long = "x " * 500
    first = await save(archive, f"{long} Why is the sky blue?", f"{long} Rayleigh scattering.")
    second = await save(archive, "Why?", "Because.", 1, metadata={"team": "poems"}, model="local/b")
    stack = Searched(archive, records)
    await stack.work()
    for text, ids in [
        ("rayleigh sky", [first]),
        ('"is the sky"', [first]),
        ('"sky the is"', []),
        (second, [second]),
        (second[:-1], [second]),
        (f'"{second[:-1]}"', []),
        ("why", [second, first]),
        ('"why is" rayleigh', [first]),
        ("why team:poems", [second]),
        ("why model:b", [second]),
        ("why status:failed", []),
        ("why after:2090-01-01", []),
        ("sky poems", []),
    ]:
        assert (text, await stack.ids(text, limit=1)) == (text, ids)
    assert await stack.ids("why", BOB) == []
    for text in ("rayleigh", '"rayleigh scattering"'):
        _, page = await search(stack.lists, text)
        shown = "".join(each["text"] for each in page["data"][0]["snippet"] if each["match"])
        assert shown.lower() == text.strip('"')
        assert page["search"] == {"covers": "everything", "indexed": 2, "waiting": 0}


async def test_phrase_is_found_behind_pages_of_candidates(archive: Archive, records: Records) -> None:
    wanted = await save(archive, "A question", "the last words")
    for number in range(1, 8):
        await save(archive, "A question", "words that last", number)
    stack = Searched(archive, records)
    await stack.work()
    assert await stack.ids('"last words"', limit=2) == [wanted]


async def test_store_in_which_nobody_searches_has_no_index(archive: Archive, records: Records) -> None:
    stack = Searched(archive, records)
    await save(archive, "A question", "An answer.")
    await stack.indexer.work()
    assert await stack.index.progress() == NO_PROGRESS
    assert await stack.index.claim(1) == []


async def test_first_search_finds_first_words_and_has_index_made(archive: Archive, records: Records) -> None:
    stack, server = Searched(archive, records), Searched(archive, records)
    ids = [await save(archive, f"An early question {'x ' * 100}", f"{'y ' * 100} Late.", n) for n in range(3)][::-1]
    found, page = await search(stack.lists, "early", limit=2)
    assert (found, page["search"]) == (ids, {"covers": "first_words", "indexed": 0, "waiting": 0})
    await server.indexer.work()
    assert await server.ids("late") == ids


async def test_index_that_nobody_uses_is_dropped(archive: Archive, records: Records, clock: Clock) -> None:
    stack = Searched(archive, records)
    await save(archive, "A question", "An answer.")
    await stack.work()
    clock.now += (KEPT_DAYS - 1) * 86_400
    server = Searched(archive, records)
    await server.indexer.work()
    assert (await server.index.progress()).complete
    clock.now += 2 * 86_400
    server = Searched(archive, records)
    await server.indexer.work()
    assert await server.index.progress() == NO_PROGRESS


async def test_first_words_of_response_that_is_not_indexed_yet_are_searched(archive: Archive, records: Records) -> None:
    ids = [await save(archive, f"An early question {'x ' * 100}", f"{'y ' * 100} Late.", n) for n in range(5)][::-1]
    stack = Searched(archive, records)
    await prepared(records)
    found, page = await search(stack.lists, "early", limit=2)
    assert (found, page["search"]) == (ids, {"covers": "everything", "indexed": 0, "waiting": 5})
    assert await stack.ids("late") == []
    await stack.work()
    for text in ("early", "late", "late early"):
        found, page = await search(stack.lists, text, limit=2)
        assert (found, page["search"]) == (ids, {"covers": "everything", "indexed": 5, "waiting": 0})


async def test_many_rows_that_are_not_indexed_yet_are_found_in_their_order(records: Records) -> None:
    keys = [key_of(number) for number in range(1, 1_200)]
    await records.commit([Put(key, b"row") for key in keys])
    index = await prepared(records)
    rows = await index.noted(key_of(5), key_of(9), limit=3, reverse=True)
    assert [key for key, _ in rows] == [key_of(8), key_of(7), key_of(6)]


async def test_rows_of_one_moment_are_found_in_the_order_of_their_keys(records: Records) -> None:
    index = await prepared(records)
    keys = sorted(listing(Hasher(ALICE).owner, f"{1:014x}", f"resp_{number:02d}") for number in range(40))
    await store(records, index, dict.fromkeys([*keys[20:], *keys[:20], key_of(2)], "same text"))
    prefix, found_keys, end = f"l/{Hasher(ALICE).owner}/", list[str](), after_prefix(keys[0][:-7])
    while rows := await index.find([Term(("same",), prefix=False)], prefix, end, limit=3, reverse=True):
        found_keys += [key for key, _ in rows]
        end = rows[-1][0]
    assert found_keys == [key_of(2), *reversed(keys)][-len(found_keys) :]
    assert len(found_keys) >= len(keys)


async def test_text_at_hand_is_indexed_without_loading_response(
    records: Records, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = list[OnEnd]()
    archive = Archive(records, clock=clock, on_end=ends)
    stack = Searched(archive, records)
    ends.append(stack.indexer.ended)
    await stack.work()
    read: list[str] = []
    load = Texts.of

    async def counted(self: Texts, ids: Sequence[str], max_bytes: int | None = None) -> dict[str, str]:
        read.extend(ids)
        return await load(self, ids, max_bytes)

    monkeypatch.setattr(Texts, "of", counted)
    history = [user("Earlier?"), assistant("So."), user("And now?")]
    made = response(assistant("Indeed."))
    await archive.save(made, owner=ALICE, base=None, input_items=history)
    large = await save(archive, "large " * 10_000, "An answer.", 1)
    await stack.work()
    assert read == [large]
    for text, found in [("now indeed", [made["id"]]), ("earlier", []), ("large answer", [large])]:
        assert (text, await stack.ids(text)) == (text, found)


async def test_background_response_is_found_by_its_question(records: Records, clock: Clock) -> None:
    ends = list[OnEnd]()
    archive = Archive(records, clock=clock, on_end=ends)
    stack = Searched(archive, records)
    ends.append(stack.indexer.ended)
    await stack.work()
    queued = response(status="queued", background=True)
    await archive.save(queued, owner=ALICE, base=None, input_items=[user(f"{'x ' * 500} A question")])
    stored = await archive.load(queued["id"])
    assert stored is not None
    done = queued | {"status": "completed", "output": [assistant("An answer.")]}
    await archive.save(done, owner=ALICE, base=stored.input, input_items=[])
    await stack.work()
    for text in ("question", "answer", "answer question"):
        assert (text, await stack.ids(text)) == (text, [queued["id"]])


async def test_busy_server_indexes_after_a_while_or_a_search(records: Records, clock: Clock) -> None:
    running, ends = [True], list[OnEnd]()
    archive = Archive(records, clock=clock, on_end=ends)
    stack = Searched(archive, records)
    server = Indexer(stack.index, stack.demand, Texts(records), lambda: bool(running), clock)
    ends.append(server.ended)
    await stack.work()

    async def is_indexed(rounds: int) -> bool:
        for _ in range(rounds):
            await server.work()
        return not (await stack.index.progress()).waiting

    await save(archive, "A question", "An answer.")
    assert not await is_indexed(299), "a response is running"
    assert await is_indexed(1)
    await save(archive, "A question", "An answer.")
    assert not await is_indexed(1)
    await stack.ids("question")
    assert await is_indexed(1), "somebody has searched"
    running.clear()
    await save(archive, "A question", "An answer.")
    assert not await is_indexed(1), "a response has just ended"
    clock.now += 30
    assert await is_indexed(1)
    running.append(True)
    for number in range(512):
        server.ended(Ended({"id": f"resp_{number}", "output": []}, ALICE, None, clock(), []))
    await save(archive, "A question", "An answer.")
    assert await is_indexed(1), "many texts wait"


async def test_search_has_last_responses_indexed_but_not_many(archive: Archive, records: Records) -> None:
    stack = Searched(archive, records)
    await stack.work()
    saved = await save(archive, "A question", f"{'y ' * 100} Late.")
    assert await stack.indexer.catch_up() == Progress(complete=True, indexed=1, waiting=0)
    assert await stack.ids("late") == [saved]
    await records.commit([Put(key_of(number), b"row") for number in range(257)])
    assert (await stack.indexer.catch_up()).waiting == 257


async def test_deleted_and_expired_responses_leave_index(records: Records, clock: Clock) -> None:
    archive = Archive(records, clock=clock, retention=100)
    stack = Searched(archive, records)
    deleted, expired = await save(archive, "A canary", "x"), await save(archive, "Another canary", "x", 1)
    await stack.work()
    assert await stack.ids("canary") == [expired, deleted]
    await archive.delete(deleted)
    assert await stack.ids("canary") == [expired]
    clock.now = CREATED + 1000
    assert await stack.ids("canary") == []
    assert await found(stack.index, "canary") != []
    await archive.sweep(archive.horizon(clock.now))
    assert await found(stack.index, "canary") == []


async def test_running_response_is_found_by_its_question_and_then_by_its_answer(
    archive: Archive, records: Records
) -> None:
    stack = Searched(archive, records)
    running = response(status="in_progress", output=[])
    await archive.save(running, owner=ALICE, base=None, input_items=[user("Why now?")])
    await stack.work()
    assert await stack.ids("now") == [running["id"]]
    ended = {**running, "status": "completed", "output": [assistant("Therefore.")]}
    await archive.save(ended, owner=ALICE, base=None, input_items=[user("Why now?")])
    assert await stack.ids("therefore") == [running["id"]], "its first words are searched until it is indexed"
    await stack.work()
    assert await stack.ids("now therefore") == [running["id"]]


async def test_index_of_earlier_version_is_replaced_without_search(
    backend: Backend, place: BackendLocation, archive: Archive, records: Records
) -> None:
    ids = [await save(archive, "A question", f"{'y ' * 100} Late.", number) for number in range(3)][::-1]
    former = "search_documents", "search_texts", "search_words", "search_waiting", "search_state"
    await make_former_index(backend, place)
    await archive.delete(ids.pop())
    server = Searched(archive, records)
    await server.indexer.work()
    assert not any([await has_table(backend, place, name) for name in former])
    assert await server.index.progress() == Progress(complete=True, indexed=2, waiting=0)
    ids.insert(0, await save(archive, "A question", f"{'y ' * 100} Late.", 9))
    await server.work()
    assert await server.ids("late") == ids


async def make_former_index(backend: Backend, place: BackendLocation) -> None:
    if backend.name == "sqlite":
        with closing(sqlite3.connect(place.folder / "records.db")) as connection:
            connection.executescript(former_search.SQLITE)
        return
    connection = await asyncpg.connect(place.url_of("postgres"))
    await connection.execute(former_search.POSTGRES.replace("$schema", schema_of(place)))
    await connection.close()


async def has_table(backend: Backend, place: BackendLocation, name: str) -> bool:
    if backend.name == "sqlite":
        with closing(sqlite3.connect(place.folder / "records.db")) as connection:
            return bool(connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchall())
    connection = await asyncpg.connect(place.url_of("postgres"))
    found = await connection.fetchval("SELECT to_regclass($1)", f"{schema_of(place)}.{name}")
    await connection.close()
    return found is not None


async def test_rows_that_are_indexed_together_are_written_together_in_sqlite(tmp_path: Path) -> None:
    records = SqliteRecords(file := tmp_path / "records.db")
    index = await prepared(records)
    await store(records, index, {key_of(number): f"some words {number}" for number in range(50)})
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT count(*) FROM search_terms_data WHERE id > 10").fetchone() == (1,)
    await records.close()


async def test_drop_of_sqlite_index_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    records = SqliteRecords(file := tmp_path / "records.db")
    index = await prepared(records)
    await store(records, index, {key_of(number): f"some words {number}" for number in range(100)})
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(f"{DROPPED} UPDATE search_progress SET filled = ''; DELETE FROM search_entries")
    assert await index.progress() == NO_PROGRESS
    assert (await found(index, "some"), await index.claim(9)) == ([], [])
    index = await prepared(records)
    await store(records, index, {key_of(number): f"other words {number}" for number in range(100)})
    assert (await found(index, "some"), await found(index, "other", "7")) == ([], [key_of(7)])
    await records.close()


@pytest.mark.parametrize(("small", "held"), [(10_000, 10_000), (1, 10_000), (10_000, 100)])
async def test_purge_leaves_no_deleted_word_in_file_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int, held: int
) -> None:
    """In a small index at once, in a larger one in parts; a few rows at a time if they have many words."""
    monkeypatch.setattr(sqlite_search, "_SMALL", small)
    monkeypatch.setattr(sqlite_search, "_DEAD", held)
    records = SqliteRecords(file := tmp_path / "records.db")
    index = await prepared(records)
    await store(
        records, index, {key_of(number): f"qzjxkvw{number} stays{number} all ünder 天气 ﬀ" for number in range(250)}
    )
    await store(records, index, {key_of(number): f"vkxjqzw{number} all" for number in range(250, 300)})
    await store(records, index, {key_of(299): "vkxjqzw299 all again"})
    await records.commit([Delete(key_of(number)) for number in range(250)])
    await index.purge(older_than=3600)
    with closing(sqlite3.connect(file)) as connection:
        terms = "SELECT count(*) FROM search_terms_data WHERE instr(block, 'qzjxkvw') > 0"
        assert connection.execute(terms).fetchone() != (0,)
    await index.purge()
    assert await found(index, "all") == [key_of(number) for number in reversed(range(250, 300))]
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("INSERT INTO search_terms(search_terms) VALUES ('integrity-check')")
        assert connection.execute("SELECT count(*) FROM search_deleted").fetchone() == (0,)
        assert connection.execute("SELECT DISTINCT doc FROM search_vocabulary WHERE doc <= 250").fetchall() == []
    await records.sweep(0)
    await records.close()
    assert b"qzjxkvw" not in file.read_bytes()
    assert b"vkxjqzw" in file.read_bytes()
