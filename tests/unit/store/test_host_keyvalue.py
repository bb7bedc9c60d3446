"""Specifics of records over single keys: interrupted commits, and stores with a key order of their own."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.host_keyvalue import KeyValueRecords
from llama_stack_responses.store.records import Conflict, Delete, Ensure, Op, Put, Record, Unanswered, VersionIs
from tests.contract.conversations import CREATED, assistant, response, user

MANY = 1000


class WorstCaseKeyValue:
    """A worst-case store: a range is unordered, includes its end, repeats values, and takes the start as a pattern."""

    def __init__(self, rank: Callable[[str], str] = str) -> None:
        """`rank` maps keys to what ranges compare."""
        self.rows: dict[str, str] = {}
        self.left = MANY  # calls until it is away
        self.last_call_is_made = False  # whether the first call that fails has its effect
        self.connections = 0
        self._rank = rank

    async def connect(self) -> WorstCaseKeyValue:
        self.connections += 1
        return self

    async def get(self, key: str) -> str | None:
        await self._call()
        return self.rows.get(key)

    async def set(self, key: str, value: str) -> None:
        if self._happens():
            self.rows[key] = value
        await self._call()

    async def delete(self, key: str) -> None:
        if self._happens():
            self.rows.pop(key, None)
        await self._call()

    async def values_in_range(self, start_key: str, end_key: str) -> list[str]:
        await self._call()
        rank = self._rank
        found = [
            key for key in self.rows if key.startswith(start_key) and rank(start_key) <= rank(key) <= rank(end_key)
        ]
        return [self.rows[key] for key in random.Random(1).sample(found * 2, 2 * len(found))]

    async def shutdown(self) -> None:
        """Do nothing: the store holds no connection."""

    def _happens(self) -> bool:
        happens = self.left > 0 or self.last_call_is_made
        self.last_call_is_made &= self.left > 0
        return happens

    async def _call(self) -> None:
        await asyncio.sleep(0)
        if self.left <= 0:
            raise ConnectionError("at secret-host")
        self.left -= 1


async def everything(records: KeyValueRecords) -> list[tuple[str, Record]]:
    return await records.range("!", "~", limit=MANY)


BEFORE: Sequence[Op] = [Put("a", b"1"), Put("b", b"1"), Put("e", b"", expires_at=50.0)]
CHANGE: Sequence[Op] = [Put("a", b"2"), Delete("b"), Ensure("c", b"2", 99.0), Put("d", b"\n "), Put("e", b"", 70.0)]


@pytest.mark.parametrize("died", [True, False], ids=["died", "away"])
async def test_interrupted_commit_is_atomic(died: bool) -> None:
    outcomes = []
    for calls in range(40):
        keys = WorstCaseKeyValue()
        records = KeyValueRecords(keys.connect, clock=lambda: 10.0)
        await records.commit(BEFORE)
        before = await everything(records)
        keys.left = calls
        try:
            await records.commit(CHANGE, [VersionIs("a", 1)])
            answered = True
        except ApiError:
            answered = False
        keys.left = MANY
        if died:
            records = KeyValueRecords(keys.connect, clock=lambda: 10.0)
        await records.commit([Put("z", b"")])
        now = [(key, record) for key, record in await everything(records) if key != "z"]
        whole = {"a": Record(b"2", 2), "c": Record(b"2", 1), "d": Record(b"\n ", 1), "e": Record(b"", 2)}
        assert now in (before, [*whole.items()])
        assert now != before or not answered
        outcomes.append((answered, now != before))
        assert [key for key in keys.rows if ":c:" in key] == []
        assert sorted(key for key in keys.rows if ":e:" in key) == (
            ["responses:e:50.0/e"] if now == before else ["responses:e:70.0/e", "responses:e:99.0/c"]
        )
    assert {(False, False), (False, True), (True, True)} == set(outcomes)


@pytest.mark.parametrize("ops", [CHANGE, [Put("a", b"2")], [Delete("b")]], ids=["several", "put", "deletion"])
@pytest.mark.parametrize("calls_are_made", [False, True])
async def test_settling_a_failed_commit_tells_whether_it_was_applied(ops: Sequence[Op], calls_are_made: bool) -> None:
    applied = set()
    for calls in range(40):
        keys = WorstCaseKeyValue()
        records = KeyValueRecords(keys.connect, clock=lambda: 10.0)
        await records.commit(BEFORE)
        before = await everything(records)
        keys.left, keys.last_call_is_made = calls, calls_are_made
        [failed] = await asyncio.gather(records.commit(ops, [VersionIs("a", 1)]), return_exceptions=True)
        if isinstance(failed, Unanswered):
            keys.left = MANY
            if calls % 2:  # another commit, or the deletion of what has expired, may come first
                await records.commit([Put("z", b"")])
                await records.sweep(40.0)
            applied.add(await failed.settle())
            now = [(key, record) for key, record in await everything(records) if key != "z"]
            assert (now != before) == await failed.settle()
    assert applied == ({True, False} if len(ops) > 1 and not calls_are_made else {calls_are_made})


async def test_cancelled_commit_is_finished_by_next_commit() -> None:
    keys = WorstCaseKeyValue()
    records = KeyValueRecords(keys.connect)
    await records.commit([Put("a", b"1")])
    for pause in range(12):
        committing = asyncio.create_task(records.commit([Put(f"{pause}/{number}", b"") for number in range(3)]))
        for _ in range(pause):
            await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        await records.commit([Put("a", b"2")])
        assert len(await records.range(f"{pause}/", f"{pause}0", limit=9)) in (0, 3)


async def test_acknowledged_response_survives_server_death() -> None:
    owner, kept = Owner("alice"), response(assistant("kept"))
    for calls in range(120):
        keys = WorstCaseKeyValue()
        archive = Archive(KeyValueRecords(keys.connect), clock=lambda: CREATED)
        await archive.save(kept, owner=owner, base=None, input_items=[user("q")])
        created = response(assistant("made"))
        keys.left = calls
        try:
            await archive.save(created, owner=owner, base=None, input_items=[user("other")])
            answered = True
        except ApiError:
            answered = False
        keys.left = MANY
        archive = Archive(KeyValueRecords(keys.connect), clock=lambda: CREATED)
        for each in (kept, created):
            stored = await archive.load(each["id"])
            assert stored is not None or (each is created and not answered)
            if stored:
                assert stored.response == each
                assert len(await archive.history(stored.history)) == 2
                assert await archive.delete(each["id"])
        left = await KeyValueRecords(keys.connect).range("!", "~", limit=MANY)
        assert [key for key, _ in left if not key.startswith("x/")] == []


async def test_error_hides_text_of_store(caplog: pytest.LogCaptureFixture) -> None:
    keys = WorstCaseKeyValue()
    keys.left = 0
    records = KeyValueRecords(keys.connect)
    for call in (records.get_many(["a"]), records.range("a", "b", limit=1), records.commit([]), records.sweep(1.0)):
        with caplog.at_level(logging.ERROR), pytest.raises(ApiError) as error:
            await call
        assert (error.value.status, error.value.retry_after) == (503, 1)
        assert error.value.message == (
            "The response store, a key-value backend of the stack, does not answer (ConnectionError)."
        )
    assert "at secret-host" in caplog.text
    keys.left = MANY
    await records.commit([Put("a", b"")])
    with pytest.raises(Conflict):
        await records.commit([Put("a", b"")], [VersionIs("a", None)])


async def test_range_is_sorted_for_any_order_of_store() -> None:
    records = KeyValueRecords(WorstCaseKeyValue(str.casefold).connect)
    await records.commit([Put("Z", b""), Put("a", b""), Put("_", b"")])
    assert [key for key, _ in await everything(records)] == ["Z", "_", "a"]


async def test_store_with_wrong_ranges_is_refused() -> None:
    """A database's locale may ignore some characters."""
    records = KeyValueRecords(WorstCaseKeyValue(lambda key: key.replace("\x7f", "")).connect)
    with pytest.raises(ApiError, match="not in the order of their bytes"):
        await records.commit([Put("a", b"")])


async def test_store_reconnects_once_after_failure() -> None:
    keys = WorstCaseKeyValue()
    records = KeyValueRecords(keys.connect)
    await records.commit([Put("a", b"1")])
    keys.left = 0
    for _ in range(2):
        with pytest.raises(ApiError):
            await records.get_many(["a"])
    keys.left, before = MANY, keys.connections
    await asyncio.gather(*(records.commit([Put(f"b/{number}", b"")]) for number in range(8)))
    assert (await records.get_many(["a"]))["a"].value == b"1"
    assert keys.connections == before + 1
