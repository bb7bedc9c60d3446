"""Open the store that the configuration selects, and the place of its secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final

from ..config.stores import (
    ClusterStore,
    HostStore,
    MemoryStore,
    OtherStore,
    PostgresStore,
    RedisStore,
    SqliteStore,
    Store,
)
from ..core.owner import ANONYMOUS, Owner
from ..core.setting_values import WrongConfiguration
from ..sealing.sealer import SecretKeeper
from .kept_secret import SecretFile, SecretInMemory, SecretRow
from .records import Records

if TYPE_CHECKING:
    from .host_keyvalue import KeyValue

STORES: Final = "llama_stack_responses.stores"
"""The group of entry points of the stores of other distributions: functions from settings to `Records`."""


def open_records(
    store: Store,
    host_backend: Callable[[str], Callable[[], Awaitable[KeyValue]]],
    current_user: Callable[[], Owner] = lambda: ANONYMOUS,
) -> Records:
    """Return the records of `store`; no connection is opened before the first call.

    Args:
        host_backend: returns, for the name of the host's key-value backend, the function that connects to it.
        current_user: returns the user who is served.

    Raises:
        WrongConfiguration: a setting of the store is wrong.
    """
    match store:
        case MemoryStore():
            return _memory(store, current_user)
        case SqliteStore():
            return _sqlite(store)
        case RedisStore():
            return _redis(store)
        case ClusterStore():
            return _cluster(store)
        case PostgresStore():
            return _postgres(store)
        case HostStore():
            return _host(store, host_backend)
        case OtherStore():
            return _other(store)


def secret_keeper(store: Store, records: Records) -> SecretKeeper:
    """Return what keeps the secret of the servers of `store`.

    Args:
        records: the opened store.
    """
    match store:
        case MemoryStore():
            return SecretInMemory()
        case SqliteStore():
            path = store.path.expanduser()
            return SecretFile(path.with_name(f"{path.name}.secret"))
        case _:
            return SecretRow(records)


# A server imports only the store that it has.


def _memory(store: MemoryStore, current_user: Callable[[], Owner]) -> Records:
    from .memory import MemoryRecords

    return MemoryRecords(store.max_records, store.max_bytes, current_user=current_user)


def _sqlite(store: SqliteStore) -> Records:
    from .sqlite import SqliteRecords

    return SqliteRecords(store.path.expanduser())


def _host(store: HostStore, host_backend: Callable[[str], Callable[[], Awaitable[KeyValue]]]) -> Records:
    from .host_keyvalue import KeyValueRecords

    return KeyValueRecords(host_backend(store.backend), prefix=store.prefix)


def _other(store: OtherStore) -> Records:
    found = {each.name: each for each in entry_points(group=STORES)}
    if store.name not in found:
        names = ", ".join(sorted(found)) or "none"
        raise WrongConfiguration(
            f"store.name: no installed package has a store '{store.name}'; those of this installation are: {names}"
        )
    open_store: Callable[[Mapping[str, Any]], Records] = found[store.name].load()
    try:
        return open_store(store.settings)
    except ValueError as error:
        raise WrongConfiguration(f"store.settings of '{store.name}': {error}") from error


def _redis(store: RedisStore) -> Records:
    from .redis import RedisRecords

    _check_settings(store.url)
    password = store.password.get_secret_value() if store.password else None
    return RedisRecords(
        store.url,
        password=password,
        prefix=store.prefix,
        connections=store.connections,
        replicas=store.replicas_acknowledged,
        sentinel_password=store.sentinel_password.get_secret_value() if store.sentinel_password else None,
    )


def _cluster(store: ClusterStore) -> Records:
    from .partitions import PartitionedRecords
    from .redis import cluster_parts

    _check_settings(store.url)
    password = store.password.get_secret_value() if store.password else None
    parts = cluster_parts(
        store.url,
        store.partitions,
        password=password,
        prefix=store.prefix,
        connections=store.connections,
        replicas=store.replicas_acknowledged,
    )
    return PartitionedRecords(parts)


def _check_settings(url: str) -> None:
    from .redis_connections import check_settings

    try:
        check_settings(url)
    except ValueError as error:
        raise WrongConfiguration(f"store.url: {error}") from error


def _postgres(store: PostgresStore) -> Records:
    from .partitions import PartitionedRecords
    from .postgres import PostgresRecords, postgres_parts

    password = store.password.get_secret_value() if store.password else None
    if store.partitions == 1:
        return PostgresRecords(store.url, password=password, schema=store.schema_name, connections=store.connections)
    parts = postgres_parts(
        store.url, store.partitions, password=password, schema=store.schema_name, connections=store.connections
    )
    return PartitionedRecords(parts)
