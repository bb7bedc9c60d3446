"""Open the store that the configuration selects, and the place of its secret."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

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
from .host_keyvalue import KeyValue, KeyValueRecords
from .kept_secret import SecretFile, SecretInMemory, SecretRow
from .memory import MemoryRecords
from .partitions import PartitionedRecords
from .records import Records
from .sqlite import SqliteRecords

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
    """
    match store:
        case MemoryStore():
            return MemoryRecords(store.max_records, store.max_bytes, current_user=current_user)
        case SqliteStore():
            return SqliteRecords(store.path.expanduser())
        case RedisStore():
            return _redis(store)
        case ClusterStore():
            return _cluster(store)
        case PostgresStore():
            return _postgres(store)
        case HostStore():
            return KeyValueRecords(host_backend(store.backend), prefix=store.prefix)
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
    from .redis import cluster_parts

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


def _postgres(store: PostgresStore) -> Records:
    from .postgres import PostgresRecords

    password = store.password.get_secret_value() if store.password else None
    return PostgresRecords(store.url, password=password, schema=store.schema_name, connections=store.connections)
