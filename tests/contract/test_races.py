"""Concurrent commits are serializable: they have the effect of some sequential order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from copy import deepcopy
from itertools import permutations
from typing import Final

import asyncpg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_stack_responses.store.records import (
    Condition,
    Conflict,
    Delete,
    Empty,
    Ensure,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
)
from tests.contract.backends import Backend, BackendLocation, Clock, schema_of
from tests.contract.model import Model

pytestmark = pytest.mark.every_store

type Commit = tuple[list[Op], list[Condition]]
type Outcome = tuple[list[list[Condition]], dict[str, Record]]
"""The conditions that failed of each commit, and the records stored after all of them."""

KEYS: Final = ("a", "g/1", "g/1/a", "g/1/b", "g/2/a", *(f"h/1/{number}" for number in range(7)))
OPS: Final = st.one_of(
    st.builds(Put, st.sampled_from(KEYS), st.binary(max_size=1)),
    st.builds(Ensure, st.sampled_from(KEYS), st.binary(max_size=1)),
    st.builds(Delete, st.sampled_from(KEYS)),
)
CONDITIONS: Final = st.one_of(
    st.builds(VersionIs, st.sampled_from(KEYS), st.none() | st.integers(1, 2)),
    st.builds(Empty, st.sampled_from(["g/1/", "g/2/", "h/1/", "g", "h/1/3"]), st.none() | st.sampled_from(KEYS)),
)
COMMITS: Final = st.tuples(st.lists(OPS, max_size=8), st.lists(CONDITIONS, max_size=3))
BATCHES: Final = st.lists(st.lists(COMMITS, min_size=2, max_size=4), max_size=4)


SLOW: Final = """
CREATE FUNCTION {schema}.pause() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.001); RETURN NULL; END $$;
CREATE TRIGGER pause AFTER INSERT OR UPDATE OR DELETE ON {schema}.partition_rows
FOR EACH STATEMENT EXECUTE FUNCTION {schema}.pause()
"""


async def slow_down(backend: Backend, place: BackendLocation, records: Records) -> None:
    """Slow down commits on PostgreSQL, which run concurrently, so that they overlap."""
    if backend.name == "postgres":
        await records.get_many(["a"])
        connection = await asyncpg.connect(place.url_of("postgres"))
        await connection.execute(SLOW.format(schema=schema_of(place)))
        await connection.close()


@pytest.fixture
async def racing(backend: Backend, place: BackendLocation, records: Records) -> Records:
    await slow_down(backend, place, records)
    return records


async def failed(records: Records, commit: Commit) -> list[Condition]:
    """Return the failed conditions of a commit, or an empty list if it is applied."""
    try:
        await records.commit(*commit)
    except Conflict as conflict:
        return list(conflict.failed)
    return []


def outcome(model: Model, commits: Sequence[Commit], order: Sequence[int]) -> Outcome:
    """Return the outcome of the commits in this order."""
    found: dict[int, list[Condition]] = {}
    for number in order:
        ops, conditions = commits[number]
        found[number] = model.failed(conditions)
        model.commit(ops, conditions)
    return [found[number] for number in range(len(commits))], model.live()


@pytest.mark.extended
@pytest.mark.needs("many_calls")
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(batches=BATCHES)
def test_concurrent_commits_are_serializable(
    backend: Backend, place: BackendLocation, batches: list[list[Commit]]
) -> None:
    async def run() -> None:
        model, fresh = Model(), place.fresh()
        records = backend.open(fresh, Clock(0.0))
        try:
            await slow_down(backend, fresh, records)
            for commits in batches:
                refused = await asyncio.gather(*(failed(records, commit) for commit in commits))
                came = list(refused), dict(await records.range("!", "~", limit=100))
                for order in permutations(range(len(commits))):
                    after = deepcopy(model)
                    if outcome(after, commits, order) == came:
                        model = after
                        break
                else:
                    raise AssertionError(f"in no order do {commits} come to {came}")
        finally:
            await records.close()

    asyncio.run(run())


async def test_mutually_exclusive_commits_have_one_winner(racing: Records) -> None:
    for number in range(30):
        first, second = f"k/{number}/first", f"l/{number}/second"
        commits = await asyncio.gather(
            committed(racing, [Put(first, b"")], [VersionIs(second, None)]),
            committed(racing, [Put(second, b"")], [VersionIs(first, None)]),
        )
        assert sorted(commits) == [False, True]
        assert len(await racing.get_many([first, second])) == 1


async def test_version_counts_each_commit_on_that_version(racing: Records) -> None:
    async def count() -> int:
        commits = 0
        for _ in range(10):
            found = (await racing.get_many(["k/1/n"])).get("k/1/n")
            version = found.version if found else None
            commits += await committed(racing, [Put("k/1/n", b"")], [VersionIs("k/1/n", version)])
        return commits

    commits = await asyncio.gather(*(count() for _ in range(6)))
    assert (await racing.get_many(["k/1/n"]))["k/1/n"].version == sum(commits)


@pytest.mark.relatives
@pytest.mark.parametrize("seed", range(3))
async def test_content_is_dropped_only_without_references(racing: Records, seed: int) -> None:
    chance = random.Random(seed)

    async def refer(name: str, source: str) -> None:
        """Ensure that the content exists and refer to it, or drop a reference."""
        content = (await racing.get_many([f"n/{name}"])).get(f"n/{name}")
        condition = VersionIs(f"n/{name}", content.version if content else None)
        ops: list[Op] = [] if content else [Put(f"n/{name}", b"")]
        if chance.random() < 0.5:
            await committed(racing, [*ops, Put(f"f/{name}/{source}", b"")], [condition])
        else:
            await racing.commit([Delete(f"f/{name}/{source}")])

    async def drop(name: str) -> None:
        await committed(racing, [Delete(f"n/{name}")], [Empty(f"f/{name}/")])

    for _ in range(12):
        references = (refer(chance.choice("xy"), chance.choice("12")) for _ in range(4))
        await asyncio.gather(*references, *(drop(chance.choice("xy")) for _ in range(3)))
        for name in "xy":
            prefix = f"f/{name}/"
            referred = await racing.range(prefix, after_prefix(prefix), limit=9)
            assert not referred or await racing.get_many([f"n/{name}"])
