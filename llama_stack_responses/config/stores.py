"""Settings of the stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
)

from ..core.setting_values import address


class MemoryStore(BaseModel):
    """Keeps responses in the memory of this process, until it ends. At a limit, the oldest are dropped first.

    Attributes:
        max_records: maximum number of stored records; a response takes about eight.
        max_bytes: maximum size of the stored values in bytes.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["memory"]
    max_records: int = Field(default=200_000, ge=1)
    max_bytes: int = Field(default=256 * 2**20, ge=1)


class SqliteStore(BaseModel):
    """Keeps responses in one SQLite file, which all worker processes of a server share.

    Attributes:
        path: the file; its folder is created if necessary. `~` is the home folder.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["sqlite"] = "sqlite"
    path: Path = Path("~/.llama-stack-responses/responses.db")


def _one_host(url: str) -> str:
    parts = urlsplit(url)
    if "," in parts.netloc.rpartition("@")[2] and "sentinel" not in parts.scheme:
        raise ValueError("this store has one host: set its type to 'cluster', or name Sentinels with redis+sentinel://")
    return url


class RedisStore(BaseModel):
    """Keeps responses in a Redis or Valkey server, which any number of servers may share.

    Attributes:
        url: `redis://USER@HOST:PORT/DATABASE`, with TLS `rediss://`; its query holds settings of the `redis` package.
            Or `redis+sentinel://USER@SENTINEL:PORT,SENTINEL:PORT/SERVICE/DATABASE`, with TLS `rediss+sentinel://`.
        password: separate from the URL, because the host may log the URL.
        prefix: prefix of all keys.
        connections: maximum connections per server process.
        sentinel_password: the password of the Sentinels, if they need one.
        replicas_acknowledged: how many replicas must have what is written before a request counts as acknowledged; with
            fewer, requests return 503.
        volatile: whether a server is accepted that may lose acknowledged responses: in a restart, because it has no
            append-only file, or because it evicts keys when its memory is full.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["redis"]
    url: Annotated[
        str,
        AfterValidator(address("redis", "rediss", "redis+sentinel", "rediss+sentinel")),
        AfterValidator(_one_host),
    ] = Field(examples=["redis://localhost:6379/0"])
    password: SecretStr | None = None
    prefix: str = "responses:"
    connections: int = Field(default=16, ge=1)
    sentinel_password: SecretStr | None = None
    replicas_acknowledged: int = Field(default=0, ge=0, le=16)
    volatile: bool = False


def _without_database(url: str) -> str:
    if urlsplit(url).path not in ("", "/", "/0"):
        raise ValueError("a cluster has no databases: this address must end after its hosts")
    return url


def _power_of_two(partitions: int) -> int:
    if partitions & (partitions - 1):
        raise ValueError("the number of partitions is a power of two: 1, 2, 4 and so on, up to 1024")
    return partitions


class ClusterStore(BaseModel):
    """Keeps responses in a Redis or Valkey Cluster, which any number of servers may share.

    Attributes:
        url: `redis://USER@HOST:PORT,HOST:PORT`, some nodes of the cluster, by which the others are found; with TLS
            `rediss://`. Its query holds settings of the `redis` package.
        password: separate from the URL, because the host may log the URL.
        prefix: the beginning of all keys, in braces with the number of their partition.
        connections: maximum connections per server process to each node, beside one that reads the map of slots.
        partitions: the parts of the store, each of which lies on one primary: a power of two up to 1024, fixed when
            the store is made.
        replicas_acknowledged: how many replicas must have what is written before a request counts as acknowledged; with
            fewer, requests return 503.
        volatile: whether a node is accepted that may lose acknowledged responses: in a restart, because it has no
            append-only file, or because it evicts keys when its memory is full.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["cluster"]
    url: Annotated[str, AfterValidator(address("redis", "rediss")), AfterValidator(_without_database)] = Field(
        examples=["redis://node-1:6379,node-2:6379"]
    )
    password: SecretStr | None = None
    prefix: str = Field(default="responses:", pattern=r"^[^{}]*$")
    connections: int = Field(default=16, ge=1)
    partitions: Annotated[int, AfterValidator(_power_of_two)] = Field(default=1, ge=1, le=1024)
    replicas_acknowledged: int = Field(default=0, ge=0, le=16)
    volatile: bool = False


class PostgresStore(BaseModel):
    """Keeps responses in a PostgreSQL database, which any number of servers may share.

    Attributes:
        url: `postgresql://USER@HOST:PORT/DATABASE`, for TLS with `?sslmode=verify-full`.
        password: separate from the URL, because the host may log the URL.
        schema_name: the schema that holds the tables; it is created if necessary.
        connections: maximum connections per server process.
        partitions: the parts of the store, by which a distributed PostgreSQL could place its rows: a power of two up to
            1024, fixed when the store is made. With more than one, there is no index of words.
        volatile: whether a server is accepted that may lose acknowledged responses in a crash, because `fsync`,
            `full_page_writes` or `synchronous_commit` is off.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["postgres"]
    url: Annotated[str, AfterValidator(address("postgresql", "postgres"))] = Field(
        examples=["postgresql://responses@localhost:5432/responses"]
    )
    password: SecretStr | None = None
    schema_name: str = Field(default="responses", pattern=r"^[a-z_][a-z0-9_]{0,62}$")
    connections: int = Field(default=16, ge=1)
    partitions: Annotated[int, AfterValidator(_power_of_two)] = Field(default=1, ge=1, le=1024)
    volatile: bool = False


class HostStore(BaseModel):
    """Keeps responses in a key-value backend of the stack. It supports one server process and no background responses.

    Attributes:
        backend: name of the backend below `storage.backends`.
        prefix: prefix of all keys.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["host"]
    backend: str = "kv_default"
    # Some backends search for keys by a pattern, so characters with a meaning in patterns are excluded.
    prefix: str = Field(default="responses:", pattern=r"^[A-Za-z0-9_:./-]+$")


class OtherStore(BaseModel):
    """Keeps responses in a store of another distribution.

    Attributes:
        name: the name of its entry point in the group `llama_stack_responses.stores`.
        settings: its settings, which it checks.
    """

    model_config = ConfigDict(extra="forbid")

    type: Literal["other"]
    name: str = Field(examples=["acme"])
    settings: dict[str, Any] = Field(default_factory=dict)


Store = Annotated[
    MemoryStore | SqliteStore | RedisStore | ClusterStore | PostgresStore | HostStore | OtherStore,
    Field(discriminator="type"),
]


def accepts_losses(store: Store) -> bool:
    """Whether the store may lose what was committed because of the settings of its server."""
    return isinstance(store, RedisStore | ClusterStore | PostgresStore) and store.volatile
