"""Where the partitions of a store are and how full they are, as the command `partitions` shows it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from redis.crc import key_slot

from llama_stack_responses.cli import main
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.admin.partitions_view import PartitionsView
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Put, Records
from llama_stack_responses.store.redis import cluster_parts
from tests.contract.backends import SECONDS
from tests.support.cluster import Cluster
from tests.support.stack import REPOSITORY

pytestmark = [pytest.mark.extended, pytest.mark.day(4)]

PARTITIONS: Final = 8
VALUE: Final = bytes(1000)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), "--appendfsync", "no", "--maxmemory", "200mb") as running:
        yield running


def opened(cluster: Cluster, prefix: str) -> PartitionedRecords:
    return PartitionedRecords(cluster_parts(cluster.url, PARTITIONS, prefix=prefix, timeout=SECONDS))


@pytest.fixture
async def records(cluster: Cluster, tmp_path: Path) -> AsyncIterator[PartitionedRecords]:
    store = opened(cluster, tmp_path.name)
    yield store
    await store.close()


async def fill(records: Records) -> None:
    """Write 300 rows to partition 5, jobs to partition 6, and leases of two workers."""
    await records.commit([Put(f"r/resp_p005{number:024x}", VALUE) for number in range(300)])
    await records.commit([Put(f"q/{number}/resp_p006{number:024x}", b"") for number in range(3)])
    await records.commit([Put(f"h/worker_1/resp_p006{9:024x}", b"")])
    await records.commit([Put("p/worker_1", b"9"), Put("p/worker_2", b"9")])
    await records.commit([Put("p/worker_1.005", b"9")])


def at(rows: list[dict[str, Any]], name: str) -> list[Any]:
    return [row[name] for row in rows]


async def test_each_partition_is_shown_where_it_is_with_what_it_holds(
    cluster: Cluster, records: PartitionedRecords, tmp_path: Path
) -> None:
    await fill(records)
    found, servers = await PartitionsView(records).read()
    assert at(found, "partition") == list(range(PARTITIONS))
    for number, row in enumerate(found):
        key = f"{{{tmp_path.name}{number}}}:made"
        primary = cluster.owner(key)
        assert row["slot"] == key_slot(key.encode())
        assert row["primary"] == f"127.0.0.1:{primary.port}"
        assert row["replicas"] == [f"127.0.0.1:{cluster.replica_of(primary).port}"]
    assert at(found, "rows") == [2, 0, 0, 0, 0, 301, 4, 0]
    assert 300 * len(VALUE) < found[5]["bytes"] < 2 * 300 * len(VALUE)
    assert found[1]["bytes"] == 0
    assert (found[6]["waiting"], found[6]["held"], found[5]["waiting"]) == (3, 1, 0)
    assert set(at(found, "worker")) == {"worker_1", "worker_2"}
    assert Counter({row["server"]: row["partitions"] for row in servers}) == Counter(at(found, "primary"))
    assert all(row["bytes"] > 0 and 0 < row["free"] < 200 * 2**20 for row in servers)


def test_command_prints_both_tables_and_lines_of_json(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"type": "cluster", "url": cluster.url, "partitions": PARTITIONS, "prefix": tmp_path.name}

    def configured(**changes: Any) -> str:
        config = yaml.safe_load((REPOSITORY / "templates" / "redis" / "config.yaml").read_text())
        config["providers"]["responses"][0]["config"]["store"] = store | changes
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
        return str(tmp_path / "config.yaml")

    async def make() -> None:
        records = opened(cluster, tmp_path.name)
        await fill(records)
        await records.close()

    asyncio.run(make())
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    assert main(["partitions", "--config", configured()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + PARTITIONS + 1 + 1 + 3
    assert lines[0].split()[:4] == ["PARTITION", "SLOT", "PRIMARY", "REPLICAS"]
    assert main(["partitions", "--json", "--config", configured()]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["rows"] for row in printed if "partition" in row] == [2, 0, 0, 0, 0, 301, 4, 0]
    assert main(["partitions", "--config", configured(partitions=4)]) == 1
    assert "was made with 8 partitions, and its settings have 4" in capsys.readouterr().err
    assert main(["partitions", "--config", configured(prefix="none")]) == 1
    assert "There is no store with the prefix 'none' in this cluster" in capsys.readouterr().err


async def test_user_who_may_not_ask_for_memory_sees_the_rest(cluster: Cluster, tmp_path: Path) -> None:
    for node in cluster.nodes:
        node.told("ACL", "SETUSER", "few", "on", "nopass", "~*", "&*", "+@all", "-memory|usage", "-info")
    url = cluster.url.replace("redis://", "redis://few@")
    store = PartitionedRecords(cluster_parts(url, PARTITIONS, prefix=tmp_path.name, timeout=SECONDS))
    await fill(store)
    found, servers = await PartitionsView(store).read()
    await store.close()
    assert (found[5]["rows"], found[5]["bytes"], found[5]["replicas"]) == (301, None, None)
    assert at(servers, "bytes") == [None] * 3


async def test_single_store_is_one_partition() -> None:
    records = MemoryRecords()
    await fill(records)
    [found], [server] = await PartitionsView(records).read()
    assert (found["partition"], found["slot"], found["waiting"], found["held"]) == (0, None, 3, 1)
    assert found["bytes"] == server["bytes"] == await records.size()


async def test_partitions_of_a_dead_primary_are_away_and_others_are_shown(cluster: Cluster, tmp_path: Path) -> None:
    """It is the last test of the cluster."""
    store = opened(cluster, tmp_path.name)
    await fill(store)
    dead = cluster.owner(f"{{{tmp_path.name}5}}:made")
    cluster.replica_of(dead).kill()
    dead.kill()
    found, servers = await PartitionsView(store).read()
    assert found[5]["state"] == "away"
    assert found[5]["rows"] is None
    assert {row["state"] for row in found if row["primary"] != f"127.0.0.1:{dead.port}"} == {"ok"}
    assert sorted(at(servers, "state")) == ["away", "ok", "ok"]
    for node in cluster.nodes:
        if node.runs:
            node.kill()
    with pytest.raises(ApiError, match="cannot be reached"):
        await PartitionsView(store).read()
    with suppress(ApiError):
        await store.close()
