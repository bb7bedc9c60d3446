"""Behaviour that every backend of `Records` has."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Notify,
    Op,
    Persistent,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    get_or_floors,
    ranges_in,
)
from tests.contract.backends import Backend, BackendLocation, Clock
from tests.contract.conversations import CREATED
from tests.contract.model import Model

pytestmark = pytest.mark.every_store


async def values(records: Records, *keys: str) -> dict[str, bytes]:
    return {key: record.value for key, record in (await records.get_many(keys)).items()}


async def everything(records: Records) -> dict[str, bytes]:
    return {key: record.value for key, record in await records.range("!", "~", limit=10_000)}


async def test_store_exists_from_its_first_commit(backend: Backend, clock: Clock, place: BackendLocation) -> None:
    if not backend.persistent:
        pytest.skip("each process makes its own")
    for expected in (False, False, True):
        records = backend.open(place, clock)
        assert isinstance(records, Persistent)
        assert await records.exists() is expected, "the question does not make it"
        await records.close()
        if clock() > CREATED:
            await records.commit([Put("a/1", b"")])
            await records.close()
        clock.now += 1


async def test_missing_keys_come_with_what_is_before_them(records: Records) -> None:
    pages = {"p/a/": b"first", "p/a/3": b"second", "q/": b"other"}
    expired = Put("p/a/5", b"expired", CREATED - 1.0)
    await records.commit([Put("a/1", b"one"), expired, *(Put(key, value) for key, value in pages.items())])
    floors = {f"a/{number}": ("p/a/", f"p/a/{number}\0") for number in (0, 1, 2, 6, 7)} | {"c/1": ("r/", "s/")}

    async def read(*keys: str, max_bytes: int | None = None) -> dict[str, bytes]:
        found = await get_or_floors(records, keys, floors, max_bytes=max_bytes)
        return {key: record.value for key, record in found.items()}

    assert await read("a/1") == {"a/1": b"one"}
    assert await read("a/0", "b/1", "c/1") == {"p/a/": b"first"}
    assert await read("a/1", "a/2", "a/6", "a/7") == {"a/1": b"one", "p/a/": b"first", "p/a/3": b"second"}
    assert await read("a/0", "a/1", "a/7", max_bytes=3) == {"a/1": b"one", "p/a/": b"first"}
    assert await read() == {}


async def test_store_without_any_records_left_exists(backend: Backend, records: Records) -> None:
    """As at a new server whose responses were deleted, or have all expired."""
    if not backend.persistent:
        pytest.skip("it ends with its process")
    await records.commit([Put("a/1", b""), Put("a/2", b"", CREATED - 1.0)])
    await records.commit([Delete("a/1")])
    while await records.sweep(CREATED + 10.0):
        """Delete what has expired."""
    assert await everything(records) == {}
    assert isinstance(records, Persistent)
    assert await records.exists()


async def test_only_transactional_stores_support_jobs(backend: Backend, records: Records) -> None:
    assert records.transactional == ("transactions" in backend.capabilities)
    assert (records.pubsub() is not None) == ("notifications" in backend.capabilities)


async def test_get_many_leaves_out_absent_keys(records: Records) -> None:
    await records.commit([Put("a", b"1"), Put("b", b"2")])
    assert await records.get_many(["a", "b", "c"]) == {"a": Record(b"1", 1), "b": Record(b"2", 1)}
    assert await records.get_many(["b", "b"]) == {"b": Record(b"2", 1)}
    assert await records.get_many(["c"]) == {}
    assert await records.get_many([]) == {}


@pytest.mark.needs("many_calls")
async def test_get_many_takes_thousands_of_keys(records: Records) -> None:
    await records.commit([Put(f"k/{index:05}", b"%d" % index) for index in range(1500)])
    found = await records.get_many([f"k/{index:05}" for index in range(0, 6000, 2)])
    assert len(found) == 750
    assert found["k/01498"].value == b"1498"


async def test_version_counts_puts_since_creation(records: Records) -> None:
    for version in (1, 2, 3):
        await records.commit([Put("a", b"%d" % version)])
        assert await records.get_many(["a"]) == {"a": Record(b"%d" % version, version)}
    await records.commit([Delete("a")])
    await records.commit([Put("a", b"again")])
    assert await records.get_many(["a"]) == {"a": Record(b"again", 1)}


async def test_ensure_writes_only_absent_keys(records: Records) -> None:
    await records.commit([Ensure("a", b"first")])
    await records.commit([Ensure("a", b"second", 1.0), Ensure("b", b"third")])
    assert await records.get_many(["a", "b"]) == {"a": Record(b"first", 1), "b": Record(b"third", 1)}


async def test_ops_apply_in_order(records: Records) -> None:
    await records.commit([Put("a", b"1"), Delete("a"), Ensure("a", b"2"), Ensure("a", b"3"), Put("b", b"4")])
    assert await values(records, "a", "b") == {"a": b"2", "b": b"4"}
    await records.commit([Delete("a"), Delete("a"), Delete("never")])
    assert await values(records, "a", "b") == {"b": b"4"}


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (VersionIs("a", 2), True),
        (VersionIs("a", 1), False),
        (VersionIs("a", 3), False),
        (VersionIs("a", None), False),
        (VersionIs("z", None), True),
        (VersionIs("z", 1), False),
        (Empty("f/x/"), False),
        (Empty("f/"), False),
        (Empty("f/x/", but="f/x/1"), True),
        (Empty("f/x/", but="f/x/0"), False),
        (Empty("f/y/"), True),
        (Empty("f/x/11"), True),
    ],
    ids=str,
)
async def test_commit_is_applied_only_if_condition_holds(records: Records, condition: Condition, holds: bool) -> None:
    await records.commit([Put("a", b"1"), Put("a", b"2"), Put("f/x/1", b""), Put("f/x0", b"")])
    if holds:
        await records.commit([Put("new", b"")], [condition])
    else:
        with pytest.raises(Conflict) as conflict:
            await records.commit([Put("new", b"")], [VersionIs("a", 2), condition])
        assert conflict.value.failed == (condition,)
    assert ("new" in await everything(records)) == holds


async def test_conflict_names_all_failed_conditions_and_writes_nothing(records: Records) -> None:
    await records.commit([Put("a", b"1"), Put("f/1", b"")])
    before = await everything(records)
    failed: list[Condition] = [VersionIs("a", 7), Empty("f/")]
    with pytest.raises(Conflict) as conflict:
        await records.commit(
            [Put("a", b"2"), Ensure("b", b""), Delete("f/1")], [failed[0], VersionIs("b", None), failed[1]]
        )
    assert conflict.value.failed == tuple(failed)
    assert await everything(records) == before


async def test_conditions_apply_to_state_before_ops(records: Records) -> None:
    await records.commit([Put("a", b"1"), Put("f/1", b"")], [VersionIs("a", None), Empty("f/")])
    with pytest.raises(Conflict):
        await records.commit([Delete("f/1")], [Empty("f/")])
    assert await values(records, "f/1") == {"f/1": b""}


async def test_concurrent_commits_on_one_version_have_one_winner(records: Records) -> None:
    await records.commit([Put("a", b"")])

    async def runner(index: int) -> bool:
        try:
            await records.commit([Put("a", b"%d" % index), Put(f"won/{index}", b"")], [VersionIs("a", 1)])
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*map(runner, range(100)))
    assert sum(won) == 1
    assert await everything(records) == {"a": b"%d" % won.index(True), f"won/{won.index(True)}": b""}


async def test_concurrent_increments_are_not_lost(records: Records) -> None:
    await records.commit([Put("count", b"0")])

    async def count() -> None:
        while True:
            record = (await records.get_many(["count"]))["count"]
            try:
                await records.commit(
                    [Put("count", b"%d" % (int(record.value) + 1))], [VersionIs("count", record.version)]
                )
            except Conflict:
                continue
            return

    await asyncio.gather(*(count() for _ in range(20)))
    assert await records.get_many(["count"]) == {"count": Record(b"20", 21)}


async def test_reference_and_deletion_of_content_never_both_succeed(records: Records) -> None:
    for turn in range(20):
        content, reference = f"b/{turn}", f"f/{turn}/"
        await records.commit([Put(content, b"")])
        results = await asyncio.gather(
            records.commit([Put(reference + "x", b"")], [VersionIs(content, 1)]),
            records.commit([Delete(content)], [Empty(reference)]),
            return_exceptions=True,
        )
        assert sum(isinstance(result, Conflict) for result in results) == 1
        found = await values(records, content, reference + "x")
        assert found in ({}, {content: b"", reference + "x": b""})


async def test_range_is_ordered_limited_and_half_open(records: Records) -> None:
    keys = ["a", "a/", "a/1", "a/10", "a/2", "a/A", "a/_", "a/a", "a0", "b"]
    await records.commit([Put(key, key.encode()) for key in reversed(keys)])
    inside = keys[1:8]
    assert keys == sorted(keys)

    async def between(start: str, end: str, limit: int = 100, *, reverse: bool = False) -> list[str]:
        found = await records.range(start, end, limit=limit, reverse=reverse)
        assert all(record == Record(key.encode(), 1) for key, record in found)
        return [key for key, _ in found]

    assert await between("a/", after_prefix("a/")) == inside
    assert await between("a/", after_prefix("a/"), 3) == inside[:3]
    assert await between("a/", after_prefix("a/"), 3, reverse=True) == inside[:-4:-1]
    assert await between("a/1", "a/2") == ["a/1", "a/10"]
    assert await between("a/1\0", "a/2") == ["a/10"]
    assert await between("a/2", "a/1") == []
    assert await between("c", "d") == []


@pytest.mark.parametrize(
    ("max_bytes", "ends_with"),
    [(1, "b"), (10, "b"), (11, "c"), (30, "c"), (31, "a"), (60, "a"), (61, "a"), (10**9, "a")],
)
async def test_get_many_stops_at_record_that_reaches_byte_limit(
    records: Records, max_bytes: int, ends_with: str
) -> None:
    await records.commit([Put("a", b"1" * 30), Put("b", b"2" * 10), Put("c", b"3" * 20)])
    found = await records.get_many(["b", "none", "c", "a", "b"], max_bytes=max_bytes)
    assert list(found) == ["b", "c", "a"][: ["b", "c", "a"].index(ends_with) + 1]
    assert found == {key: record for key, record in (await records.get_many(["a", "b", "c"])).items() if key in found}


@pytest.mark.parametrize("reverse", [False, True])
async def test_ranges_are_each_as_if_read_alone(records: Records, reverse: bool) -> None:
    rows = {f"a/{number}": b"%d" % number for number in range(6)}
    gone = [Put(f"a/{number}x", b"expired", CREATED - 1.0) for number in (0, 2, 5)]
    await records.commit([*(Put(*row) for row in rows.items()), *gone])
    spans = [("a/", "a0"), ("a/2", "a/4"), ("a/3", "a/30"), ("a/5x", "a/9"), ("b/", "b0")]
    for limit in (1, 2, 9):
        found = await ranges_in(records, 0, spans, limit=limit, reverse=reverse)
        assert found == [await records.range(*span, limit=limit, reverse=reverse) for span in spans]
    assert await ranges_in(records, 0, [], limit=1) == []


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("max_bytes", "count"), [(1, 1), (10, 1), (11, 2), (30, 3), (31, 4), (10**9, 5)])
async def test_range_stops_at_record_that_reaches_byte_limit(
    records: Records, max_bytes: int, count: int, reverse: bool
) -> None:
    await records.commit([Put(f"k/{number}", b"x" * 10) for number in range(6)])
    whole = await records.range("k/", "k0", limit=5, reverse=reverse)
    assert await records.range("k/", "k0", limit=5, reverse=reverse, max_bytes=max_bytes) == whole[:count]


@pytest.mark.parametrize("keys", [["large"], ["small", "large"], ["large", *(f"none {n}" for n in range(100))]])
async def test_large_value_is_read_whole(records: Records, keys: list[str]) -> None:
    await records.commit([Put("small", b"s"), Put("large", b"l" * 300_000)])
    found = await records.get_many(keys, max_bytes=10**9)
    assert found["large"].value == b"l" * 300_000
    assert await records.range("large", "larges", limit=5) == [("large", found["large"])]


async def test_expired_record_is_absent_everywhere(records: Records, clock: Clock) -> None:
    await records.commit([Put("f/1", b"old", clock.now + 10), Put("f/1", b"old", clock.now + 10)])
    clock.now += 9.5
    assert await values(records, "f/1") == {"f/1": b"old"}
    clock.now += 0.5
    assert await records.get_many(["f/1"]) == await records.get_many(["f/1", "x"]) == {}
    assert await records.range("f/", "f0", limit=9) == []
    await records.commit([], [VersionIs("f/1", None), Empty("f/")])
    with pytest.raises(Conflict):
        await records.commit([], [VersionIs("f/1", 2)])
    await records.commit([Ensure("f/1", b"new")])
    assert await records.get_many(["f/1"]) == {"f/1": Record(b"new", 1)}


async def test_put_on_expired_key_restarts_version(records: Records, clock: Clock) -> None:
    await records.commit([Put("a", b"", clock.now + 1), Put("a", b"", clock.now + 1)])
    clock.now += 1
    await records.commit([Put("a", b"new")])
    clock.now += 100
    assert await records.get_many(["a"]) == {"a": Record(b"new", 1)}


async def test_size_is_unknown_or_grows_with_the_records(records: Records) -> None:
    before = await records.size()
    for number in range(64):
        await records.commit([Put(f"k/{number:04}", bytes(16_384))])
    after = await records.size()
    assert (before is None) == (after is None)
    assert after is None or (after > 500_000 and before is not None and after > before)


async def test_sweep_removes_only_expired_records(records: Records, clock: Clock) -> None:
    ops: list[Op] = [Put(f"k/{index}", b"", clock.now + index) for index in range(10)]
    await records.commit([*ops, Put("keep", b""), Put("k/9", b"", clock.now + 100), Put("k/8", b"")])
    assert await records.sweep(clock.now + 4) == 5
    assert sorted(await everything(records)) == ["k/5", "k/6", "k/7", "k/8", "k/9", "keep"]
    assert await records.sweep(clock.now + 50) == 3
    assert await records.sweep(clock.now + 50) == 0


@pytest.mark.needs("many_calls")
async def test_sweep_is_bounded_and_continues_next_time(records: Records, clock: Clock) -> None:
    await records.commit([Put(f"k/{index}", b"", clock.now + 1) for index in range(1100)])
    swept = [await records.sweep(clock.now + 1) for _ in range(3)]
    assert sum(swept) == 1100
    assert max(swept) < 1100


def test_records_created_in_one_event_loop_work_in_another(
    backend: Backend, clock: Clock, place: BackendLocation
) -> None:
    async def write(records: Records) -> None:
        await asyncio.gather(*(records.commit([Put(f"k/{index}", b"")]) for index in range(5)))
        assert len(await records.range("k/", "k0", limit=10)) == 5
        await records.close()

    async def make() -> Records:
        return backend.open(place, clock)

    records = asyncio.run(make())
    asyncio.run(write(records))
    asyncio.run(write(records))


async def test_persistent_records_survive_close(backend: Backend, clock: Clock, place: BackendLocation) -> None:
    first = backend.open(place, clock)
    await first.commit([Put("a", b"1"), Put("b", b"2", clock.now + 5)])
    written = await first.get_many(["a", "b"])
    await first.close()
    second = backend.open(place, clock)
    assert await second.get_many(["a", "b"]) == (written if backend.persistent else {})
    await second.close()


async def test_records_reopen_on_use_after_close(records: Records) -> None:
    await records.commit([Put("a", b"1")])
    await records.close()
    await records.commit([Put("a", b"2")])
    assert await records.get_many(["a"]) == {"a": Record(b"2", 2)}
    await records.close()
    await records.close()


KEYS = st.sampled_from(["a", "a/1", "a/2", "b", "b/1", "c"])
TIMES = st.none() | st.integers(0, 6)
OPS = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=3), TIMES),
    st.builds(Ensure, KEYS, st.binary(max_size=3), TIMES),
    st.builds(Delete, KEYS),
    st.builds(Notify, KEYS),
)
CONDITIONS = st.one_of(
    st.builds(VersionIs, KEYS, st.none() | st.integers(1, 3)),
    st.builds(Empty, st.sampled_from(["a/", "b/", "c", "d"]), st.none() | KEYS),
)
STEPS = st.lists(
    st.tuples(st.lists(OPS, max_size=5), st.lists(CONDITIONS, max_size=2), st.booleans(), st.booleans()), max_size=12
)


@pytest.mark.needs("many_calls")
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_backend_behaves_like_model(
    backend: Backend,
    place: BackendLocation,
    steps: list[tuple[list[Op], list[Condition], bool, bool]],
) -> None:
    async def run() -> None:
        clock, model = Clock(0.0), Model()
        records = backend.open(place.fresh(), clock)
        for ops, conditions, tick, sweep in steps:
            clock.now = model.now = clock.now + tick
            failed = model.failed(conditions)
            if failed:
                with pytest.raises(Conflict) as conflict:
                    await records.commit(ops, conditions)
                assert list(conflict.value.failed) == failed
            else:
                await records.commit(ops, conditions)
                for op in ops:
                    model.apply(op)
            if sweep:
                await records.sweep(clock.now)
            found = await records.range("a", "z", limit=3)
            assert found == list(model.live().items())[:3]
            found = await records.range("a", "b/1", limit=3, reverse=True)
            assert found == [(key, record) for key, record in model.live().items() if key < "b/1"][::-1][:3]
            assert await records.get_many(["a", "a/1", "c", "z"]) == {
                key: record for key, record in model.live().items() if key in ("a", "a/1", "c")
            }
        await records.close()

    asyncio.run(run())
