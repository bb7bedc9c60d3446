"""The backends that the contract applies to. Add a new one to `BACKENDS`."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from tempfile import mkdtemp
from typing import Final, Literal
from urllib.parse import urlsplit

from llama_stack.core.storage.datatypes import PostgresKVStoreConfig, RedisKVStoreConfig, SqliteKVStoreConfig
from llama_stack.core.storage.kvstore.postgres import PostgresKVStoreImpl
from llama_stack.core.storage.kvstore.redis import RedisKVStoreImpl
from llama_stack.core.storage.kvstore.sqlite import SqliteKVStoreImpl

from llama_stack_responses.store.host_keyvalue import KeyValueRecords
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.postgres import PostgresRecords, postgres_parts
from llama_stack_responses.store.records import Records
from llama_stack_responses.store.redis import RedisRecords, cluster_parts
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.support.valkey import PATIENCE

SECONDS: Final = 60.0
"""How long a server may take for an answer on a busy machine."""


@dataclass
class Clock:
    """A clock that a test sets."""

    now: float

    def __call__(self) -> float:
        return self.now


@dataclass(frozen=True)
class BackendLocation:
    """Where a backend stores its records: a separate folder, and a separate part of a server.

    Attributes:
        url_of: returns the address of the test run's server of a kind, and starts it on first use.
    """

    folder: Path
    url_of: Callable[[str], str]

    def fresh(self) -> BackendLocation:
        """Return an unused part of this place."""
        return BackendLocation(Path(mkdtemp(dir=self.folder)), self.url_of)

    @property
    def name(self) -> str:
        """The folder as an identifier."""
        return "".join(letter if letter.isalnum() else "_" for letter in str(self.folder))


type Capability = Literal["many_calls", "transactions", "notifications", "own_clock", "in_memory", "search"]


@dataclass(frozen=True)
class Backend:
    """How to open a backend at a place, and its capabilities beyond those that all backends have.

    Attributes:
        capabilities: "many_calls": it handles thousands of calls in about a second; "transactions": it is transactional,
            so it can hold a job queue; "notifications": a commit notifies subscribers in other processes;
            "own_clock": it is a server, whose clock counts; "in_memory": its calls take the least time, and its records are
            gone after reopening; "search": it has an index of words.
    """

    name: str
    open: Callable[[BackendLocation, Clock], Records]
    capabilities: Collection[Capability] = ("many_calls", "transactions")

    @property
    def persistent(self) -> bool:
        """Whether records are still there after reopening."""
        return "in_memory" not in self.capabilities


def _redis(place: BackendLocation, clock: Clock) -> Records:
    return RedisRecords(place.url_of("redis"), prefix=f"{place.name}:", timeout=SECONDS, clock=clock)


def _cluster(place: BackendLocation, clock: Clock) -> Records:
    url = place.url_of("cluster")
    return PartitionedRecords(cluster_parts(url, 8, prefix=place.name, timeout=SECONDS, clock=clock))


def _partitions(_: BackendLocation, clock: Clock) -> Records:
    return PartitionedRecords([MemoryRecords(clock=clock) for _ in range(8)])


def _postgres(place: BackendLocation, clock: Clock) -> Records:
    return PostgresRecords(place.url_of("postgres"), schema=schema_of(place), timeout=SECONDS, clock=clock)


def _postgres_partitions(place: BackendLocation, clock: Clock) -> Records:
    url = place.url_of("postgres")
    return PartitionedRecords(postgres_parts(url, 8, schema=schema_of(place), timeout=SECONDS, clock=clock))


def schema_of(place: BackendLocation) -> str:
    """Return a name that PostgreSQL accepts."""
    return f"s{blake2b(place.name.encode(), digest_size=8).hexdigest()}"


def _host_sqlite(place: BackendLocation, clock: Clock) -> Records:
    async def connect() -> SqliteKVStoreImpl:
        opened = SqliteKVStoreImpl(SqliteKVStoreConfig(db_path=str(place.folder / "host.db")))
        await opened.initialize()
        return opened

    return KeyValueRecords(connect, clock=clock)


class PatientRedisConfig(RedisKVStoreConfig):  # type: ignore[misc]  # the host has no types
    """The host's configuration with longer timeouts than the five seconds of the client library."""

    @property
    def url(self) -> str:
        return f"{super().url}?{PATIENCE}"


def _host_redis(place: BackendLocation, clock: Clock) -> Records:
    async def connect() -> RedisKVStoreImpl:
        address = urlsplit(place.url_of("host-redis"))
        opened = RedisKVStoreImpl(PatientRedisConfig(host=address.hostname, port=address.port))
        await opened.initialize()
        return opened

    return KeyValueRecords(connect, prefix=f"{place.name}:", clock=clock)


def _host_postgres(place: BackendLocation, clock: Clock) -> Records:
    async def connect() -> PostgresKVStoreImpl:
        address = urlsplit(place.url_of("postgres"))
        config = PostgresKVStoreConfig(
            host=address.hostname or "",
            port=address.port or 0,
            db=address.path.removeprefix("/"),
            user=address.username or "",
            password=address.password,
            table_name=schema_of(place),
        )
        opened = PostgresKVStoreImpl(config)
        await opened.initialize()
        return opened

    return KeyValueRecords(connect, clock=clock)


BACKENDS: Final = [
    Backend(
        "memory",
        lambda _, clock: MemoryRecords(clock=clock),
        capabilities=("many_calls", "transactions", "in_memory"),
    ),
    Backend("partitions", _partitions, capabilities=("many_calls", "transactions", "in_memory")),
    Backend(
        "sqlite",
        lambda place, clock: SqliteRecords(place.folder / "records.db", clock=clock),
        capabilities=("many_calls", "transactions", "notifications", "search"),
    ),
    Backend("redis", _redis, capabilities=("many_calls", "transactions", "notifications", "own_clock")),
    Backend("cluster", _cluster, capabilities=("many_calls", "transactions", "notifications", "own_clock")),
    Backend(
        "postgres",
        _postgres,
        capabilities=("many_calls", "transactions", "notifications", "own_clock", "search"),
    ),
    Backend(
        "postgres-partitions",
        _postgres_partitions,
        capabilities=("many_calls", "transactions", "notifications", "own_clock"),
    ),
    Backend("host-sqlite", _host_sqlite, capabilities=()),
    Backend("host-redis", _host_redis, capabilities=["many_calls"]),
    Backend("host-postgres", _host_postgres, capabilities=()),
]
EMBEDDED: Final = frozenset({"memory", "sqlite"})
"""The backends without a server or parts. Each test that can runs on them in every run; on the others it takes turns."""
FIXED: Final = EMBEDDED | {"redis", "postgres"}
"""Those of tests with `every_store`. The host's take turns."""
RELATED: Final = frozenset({"host-redis", "host-postgres", "postgres-partitions"})
"""Those that have the adapter of `host-sqlite`, or of `cluster` and `postgres`: only tests with `every_store` run on them.
"""
IN_PARTITIONS: Final = frozenset({"partitions", "cluster", "postgres-partitions"})
"""Those with several partitions."""
