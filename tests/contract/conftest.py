from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

import pytest
from redis import Redis

from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Records
from tests.contract.backends import (
    BACKENDS,
    EMBEDDED,
    FIXED,
    IN_PARTITIONS,
    RELATED,
    Backend,
    BackendLocation,
    Clock,
)
from tests.contract.conversations import CREATED, TAGS
from tests.contract.counting_proxy import CountingProxy
from tests.support.cluster import Cluster
from tests.support.database import DatabaseServer
from tests.support.postgres import Postgres
from tests.support.valkey import Valkey

SERVERS: Final[dict[str, Callable[[Path], AbstractContextManager[DatabaseServer | Cluster]]]] = {
    # No test here checks what a killed server has kept.
    "redis": lambda folder: Valkey(folder, "--appendfsync", "no"),
    "cluster": lambda folder: Cluster(folder, "--appendfsync", "no"),
    "postgres": lambda folder: Postgres(folder, "fsync=off", "synchronous_commit=off"),
    # A separate server: the host's ranges go through all keys of a server.
    "host-redis": lambda folder: Valkey(folder, "--appendfsync", "no"),
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on the backends that have the capability required by its `needs` mark, or its module's.

    The runs on all backends except `EMBEDDED`, or `FIXED` with the mark `every_store`, are `extended`, if one of these
    has the capability.
    """
    if "backend" in metafunc.fixturenames:
        needs = metafunc.definition.get_closest_marker("needs")
        able = [each for each in BACKENDS if needs is None or needs.args[0] in each.capabilities]
        assert able, f"no backend has the capability {needs and needs.args[0]}: the test would never run"
        every = metafunc.definition.get_closest_marker("every_store")
        able = [each for each in able if every or each.name not in RELATED]
        names = FIXED if every else EMBEDDED
        fixed = names.intersection(each.name for each in able) or {each.name for each in able}
        marks = {each.name: [] if each.name in fixed else [pytest.mark.extended] for each in able}
        metafunc.parametrize("backend", [pytest.param(each, id=each.name, marks=marks[each.name]) for each in able])


@pytest.fixture(autouse=True)
def _tags(request: pytest.FixtureRequest) -> Iterator[None]:
    """Give the responses of a test a tag if its store has several partitions, so that they are not in the first one."""
    backend = getattr(request.node, "callspec", None) and request.node.callspec.params.get("backend")
    TAGS.append(5 if backend and backend.name in IN_PARTITIONS else 0)
    yield
    TAGS.pop()


@pytest.fixture
def clock() -> Clock:
    return Clock(CREATED)


@pytest.fixture(scope="session")
def url_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Return the addresses of real servers by kind. Each starts on first use and ends with the test run."""
    urls: dict[str, str] = {}

    with ExitStack() as running:

        def url(kind: str) -> str:
            if kind not in urls:
                urls[kind] = running.enter_context(SERVERS[kind](tmp_path_factory.mktemp(kind))).url
            return urls[kind]

        yield url


@pytest.fixture
def place(tmp_path: Path, url_of: Callable[[str], str]) -> Iterator[BackendLocation]:
    requested: set[str] = set()

    def url(kind: str) -> str:
        requested.add(kind)
        return url_of(kind)

    yield BackendLocation(tmp_path, url)
    if "host-redis" in requested:
        # Leftovers of a test would slow down every range of the next test.
        with Redis.from_url(url_of("host-redis")) as client:
            client.flushall()


@pytest.fixture
async def records(backend: Backend, clock: Clock, place: BackendLocation) -> AsyncIterator[Records]:
    opened = backend.open(place, clock)
    yield opened
    await opened.close()


@pytest.fixture
def counting(records: Records) -> CountingProxy:
    return CountingProxy(records)


@pytest.fixture
def archive(counting: CountingProxy, clock: Clock) -> Archive:
    return Archive(counting, clock=clock)
