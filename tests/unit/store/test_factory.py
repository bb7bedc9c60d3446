"""The store that a configuration selects, and validation errors that do not reveal its address."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.setting_values import WrongConfiguration
from llama_stack_responses.host.keyvalue import backend
from llama_stack_responses.store.factory import open_records
from llama_stack_responses.store.host_keyvalue import KeyValueRecords
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.postgres import PostgresRecords
from llama_stack_responses.store.redis import RedisRecords
from llama_stack_responses.store.sqlite import SqliteRecords

REDIS = {"type": "redis", "url": "redis://localhost:6379/0"}
CLUSTER = {"type": "cluster", "url": "rediss://me@one:6379,two:6379?ssl_ca_certs=ca.pem"}
POSTGRES = {"type": "postgres", "url": "postgresql://me@localhost/responses?sslmode=verify-full"}


@pytest.mark.parametrize(
    ("store", "kind"),
    [
        ({"type": "memory"}, MemoryRecords),
        ({"type": "sqlite", "path": "~/responses.db"}, SqliteRecords),
        (REDIS, RedisRecords),
        (REDIS | {"url": "rediss://me@redis.internal", "password": "secret", "prefix": "a:"}, RedisRecords),
        (CLUSTER | {"password": "secret", "partitions": 1}, PartitionedRecords),
        (POSTGRES | {"password": "secret", "schema_name": "mine"}, PostgresRecords),
        (POSTGRES | {"partitions": 64}, PartitionedRecords),
        ({"type": "host"}, KeyValueRecords),
    ],
)
async def test_each_store_opens_without_its_server(store: dict[str, Any], kind: type) -> None:
    records = open_records(ResponsesConfig(store=store).store, backend)
    assert isinstance(records, kind)
    await records.close()


@pytest.mark.parametrize(
    ("store", "why"),
    [
        (REDIS | {"url": "redis://:sesame@localhost"}, "set the password as 'password'"),
        (CLUSTER | {"url": "redis://:sesame@one,two"}, "set the password as 'password'"),
        (
            {"type": "redis", "url": "redis://one:7001,two:7002"},
            "this store has one host: set its type to 'cluster', or name Sentinels",
        ),
        (
            CLUSTER | {"url": "redis://sesame,two/3"},
            "a cluster has no databases: this address must end after its hosts",
        ),
        (CLUSTER | {"url": "redis+sentinel://sesame/responses"}, "begins with redis://HOST"),
        (CLUSTER | {"prefix": "{a}"}, "prefix"),
        (CLUSTER | {"partitions": 12}, "the number of partitions is a power of two"),
        (POSTGRES | {"partitions": 12}, "the number of partitions is a power of two"),
        (POSTGRES | {"partitions": 2048}, "less than or equal to 1024"),
        (POSTGRES | {"url": "postgresql://me:sesame@localhost"}, "set the password as 'password'"),
        (REDIS | {"url": "sesame:6379"}, "begins with redis://HOST"),
        (POSTGRES | {"url": "mysql://sesame/x"}, "begins with postgresql://HOST"),
        (POSTGRES | {"schema_name": "a; drop"}, "schema_name"),
        ({"type": "host", "prefix": "a*"}, "prefix"),
    ],
)
def test_invalid_store_address_is_refused_without_repeating_it(store: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError) as error:
        ResponsesConfig(store=store)
    assert why in str(error.value)
    assert "sesame" not in str(error.value)


def test_settings_of_host_provider_are_refused_with_advice() -> None:
    of_host = {"persistence": {"responses": {"table_name": "responses"}}, "memory_config": {}}
    with pytest.raises(
        ValueError, match=r"(?s)persistence\n  a setting of the host's own provider, take it out.*memory_config\n  a "
    ):
        ResponsesConfig.model_validate(of_host)


@pytest.mark.parametrize("store", [REDIS, CLUSTER])
@pytest.mark.parametrize(
    ("query", "name"),
    [
        ("ssl_ca_cert=/sesame.pem", "ssl_ca_cert"),
        ("ssl_ca_certs=/ours.pem&ssl_cert_reqs=sesame", "ssl_cert_reqs"),
        ("socket_timeout=sesame", "socket_timeout"),
        ("retry=3", "retry"),
    ],
)
def test_settings_that_the_package_redis_does_not_take_are_named(store: dict[str, Any], query: str, name: str) -> None:
    url = f"rediss://localhost:6379/?{query}"
    with pytest.raises(WrongConfiguration, match=f"store.url: .*'{name}'") as error:
        open_records(ResponsesConfig(store=store | {"url": url}).store, backend)
    assert "sesame" not in str(error.value)


@pytest.mark.parametrize("store", [REDIS, CLUSTER])
async def test_settings_of_pools_and_connections_are_taken(store: dict[str, Any]) -> None:
    url = "redis://localhost:6379/?max_connections=3&timeout=9&socket_timeout=60&client_name=responses"
    await open_records(ResponsesConfig(store=store | {"url": url}).store, backend).close()
