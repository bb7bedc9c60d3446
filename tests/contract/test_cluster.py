"""A store in a cluster, while its partition moves, its primary is replaced or dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, cast

import pytest
from redis.asyncio import Redis
from redis.crc import key_slot
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from benchmarks.node_logs import NODE_OPTIONS, Audit
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.store import redis, redis_cluster, redis_pubsub
from llama_stack_responses.store.layout import used
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Conflict, Delete, Notify, Op, Put, Unanswered, VersionIs
from llama_stack_responses.store.redis import RedisRecords, cluster_parts
from llama_stack_responses.store.redis_scripts import IN_CLUSTER
from llama_stack_responses.store.routing import tag_of_key
from tests.contract.backends import SECONDS
from tests.contract.test_server_faults import hearing
from tests.support.cluster import Cluster, Node, OneNode, state_of
from tests.support.valkey import Valkey
from tests.support.waiting import until, until_found

PASSWORD: Final = "secret"
MOVING: Final = "The response store's cluster is moving these responses to another node."


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--appendfsync", "no", *NODE_OPTIONS)
    with Cluster(tmp_path_factory.mktemp("cluster"), *options, password=PASSWORD) as running:
        yield running


class Store(RedisRecords):
    """A store in a cluster, with its place there."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        super().__init__(cluster.url, prefix=prefix, timeout=SECONDS, partition=0)
        self.prefix = prefix
        self.tag = f"{{{prefix}0}}:"
        self.slot = key_slot(self.tag.encode())


@pytest.fixture
async def records(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Store]:
    opened = Store(cluster, tmp_path.name)
    yield opened
    await opened.close()


@asynccontextmanager
async def writing(records: RedisRecords) -> AsyncIterator[list[int]]:
    """Commit two rows together, again and again, on condition that nothing of it is lost; yield how often.

    A commit that failed may have been applied; one that was acknowledged has been.
    """
    acknowledged, done = [0], asyncio.Event()

    async def write() -> None:
        known: int | None = None
        while not done.is_set():
            if known is None:
                known = await versions(records)
            try:
                wanted = VersionIs("one", known or None)
                await records.commit([Put("one", b"x"), Put("other", b"x"), Put(f"new/{known}", b"")], [wanted])
            except ApiError:
                known = None
            else:
                known += 1
                acknowledged[0] += 1

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        yield acknowledged
        done.set()
    assert await versions(records) >= acknowledged[0] > 0


async def versions(records: RedisRecords) -> int:
    """Return how often both rows were written, as soon as the store answers."""
    while True:
        try:
            found = await records.get_many(["one", "other"])
        except ApiError:
            await asyncio.sleep(0.05)
            continue
        first, second = (found[key].version if key in found else 0 for key in ("one", "other"))
        assert first == second
        return first


async def goes_on(count: list[int]) -> None:
    """Wait for another acknowledged commit."""
    before = count[0]
    await until(lambda: count[0] > before)


@asynccontextmanager
async def taking_over(cluster: Cluster, slot: int, key: str) -> AsyncIterator[tuple[Node, Node]]:
    """Mark the slot of a key as on its way to another primary; let that one have it in the end."""
    source = cluster.owner(key)
    target = next(node for node in cluster.nodes if node.runs and node.is_primary and node is not source)
    target.told("CLUSTER SETSLOT", slot, "IMPORTING", source.name)
    source.told("CLUSTER SETSLOT", slot, "MIGRATING", target.name)
    yield source, target
    for node in (target, source):
        node.told("CLUSTER SETSLOT", slot, "NODE", target.name)


def hand_over(source: Node, target: Node, slot: int, chosen: Callable[[str], bool]) -> None:
    """Move these keys of a slot."""
    keys = [key for key in source.told("CLUSTER GETKEYSINSLOT", slot, 10_000) if chosen(key)]
    if keys:
        source.told("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "AUTH", PASSWORD, "KEYS", *keys)


async def test_keys_of_a_partition_are_in_one_slot(cluster: Cluster, records: Store) -> None:
    await records.commit([Put("a", b"1"), Put("b/c", b"2", expires_at=2e10), Notify("a")])
    owner = cluster.owner(records.tag)
    names = {key.removeprefix(records.tag) for key in owner.told("CLUSTER GETKEYSINSLOT", records.slot, 100)}
    assert {name for name in names if not name.startswith("c:")} == {"index", "expiry", "made", "r:a", "r:b/c"}
    assert len(names) == 6


async def test_script_is_refused_a_key_of_another_slot_on_the_same_node(cluster: Cluster, records: Store) -> None:
    await records.commit([Put("a", b"1")])
    owner = cluster.owner(records.tag)
    others = (f"{{{number}}}:" for number in range(1000))
    other = next(tag for tag in others if tag != records.tag and cluster.owner(tag) is owner)
    async with Redis.from_url(owner.url) as client:
        with pytest.raises(ResponseError, match="do not hash to the same slot"):
            await IN_CLUSTER.range.run(client, [f"{records.tag}index"], [other, "", "a", "b", 1, "", ""])


async def test_replaced_primary_loses_no_commit(cluster: Cluster, records: Store) -> None:
    there = Store(cluster, records.prefix)
    async with writing(records) as commits:
        for _ in range(2):
            await goes_on(commits)
            async with hearing(there) as pubsub:
                replica = cluster.replica_of(cluster.owner(records.tag))
                replica.told("CLUSTER FAILOVER")
                with pytest.raises(ApiError, match=MOVING):
                    await pubsub.receive()
            await goes_on(commits)
            async with hearing(there) as pubsub:
                await records.commit([Notify("a")])
                assert await pubsub.receive() == "a"
    assert await versions(records) == commits[0]
    await there.close()


async def test_former_primary_is_not_asked_whether_it_keeps_records(cluster: Cluster, records: Store) -> None:
    primary = cluster.owner(records.tag)
    replica = cluster.replica_of(primary)
    assert await records.losses() == {}
    replica.told("CLUSTER FAILOVER")
    await until(lambda: cluster.owner(records.tag) is replica and not primary.is_primary)
    primary.told("CONFIG SET", "appendonly", "no")  # as while a replica copies from its primary
    try:
        assert await records.losses() == {}
    finally:
        primary.told("CONFIG SET", "appendonly", "yes")


async def test_moving_slot_splits_no_commit(cluster: Cluster, records: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis_cluster, "MAX_RETRIES", 1)
    await records.commit([Put("a", b"1"), Put("b", b"1")])
    async with taking_over(cluster, records.slot, records.tag) as (source, target):
        for moved in (lambda key: key.endswith("r:a"), lambda key: key.endswith("r:b"), lambda key: "made" in key):
            changes: list[list[Op]] = [[Put("a", b"2"), Put("b", b"2")], [Put("new", b""), Delete("b")]]
            for change in changes:
                with pytest.raises(ApiError) as error:
                    await records.commit(change)
                assert (error.value.status, error.value.message) == (503, MOVING)
            hand_over(source, target, records.slot, moved)
        with pytest.raises(ApiError, match=MOVING):
            await records.range("a", "z", limit=10)
        hand_over(source, target, records.slot, lambda _: True)
        # All of it is there: each call is for that node now, though the slot is not.
        found = await records.range("a", "z", limit=10)
        assert [(key, record.value, record.version) for key, record in found] == [("a", b"1", 1), ("b", b"1", 1)]
    await records.commit([Put("a", b"2"), Put("b", b"2"), Put("new", b"")], [VersionIs("a", 1), VersionIs("b", 1)])
    assert cluster.owner(records.tag) is target


async def keys_in_range(records: Store) -> list[str]:
    return [key for key, _ in await records.range("e/", "e0", limit=10)]


async def keys_in_ranges(records: Store) -> list[str]:
    [rows, _] = await records.ranges([("e/", "e0"), ("e/1", "e/2")], limit=10)
    return [key for key, _ in rows]


async def keys_after_sweep(records: Store) -> list[str]:
    assert await records.sweep(5.0) == 1
    return await keys_in_range(records)


@pytest.mark.parametrize("read", [keys_in_range, keys_in_ranges, keys_after_sweep])
async def test_rows_that_follow_their_index_to_another_node_are_not_missed(
    cluster: Cluster, records: Store, read: Callable[[Store], Awaitable[list[str]]]
) -> None:
    await records.commit([*(Put(f"e/{number}", b"") for number in range(3)), Put("expired", b"", 1.0)])
    source = cluster.owner(records.tag)
    target = next(node for node in cluster.nodes if node.is_primary and node is not source)

    def move(*keys: str) -> None:
        source.told("MIGRATE", "127.0.0.1", target.port, "", 0, 60_000, "AUTH", PASSWORD, "KEYS", *keys)

    target.told("CLUSTER SETSLOT", records.slot, "IMPORTING", source.name)
    source.told("CLUSTER SETSLOT", records.slot, "MIGRATING", target.name)
    move(f"{records.tag}index", f"{records.tag}expiry")
    reading = asyncio.ensure_future(read(records))
    await asyncio.wait({reading}, timeout=0.2)
    move(*source.told("CLUSTER GETKEYSINSLOT", records.slot, 100))
    for node in (target, source):
        node.told("CLUSTER SETSLOT", records.slot, "NODE", target.name)
    assert await reading == ["e/0", "e/1", "e/2"]
    assert target.told("EXISTS", f"{records.tag}r:expired") == (read is not keys_after_sweep)


async def test_commits_and_notifications_go_on_after_their_slot_has_moved(cluster: Cluster, records: Store) -> None:
    there = Store(cluster, records.prefix)
    async with writing(records) as commits, hearing(there) as pubsub:
        await goes_on(commits)
        async with taking_over(cluster, records.slot, records.tag) as (source, target):
            await asyncio.to_thread(hand_over, source, target, records.slot, lambda _: True)
        await goes_on(commits)
        with pytest.raises(ApiError) as error:
            await pubsub.receive()
        assert (error.value.status, error.value.message) == (503, MOVING)
        async with hearing(there) as again:
            await records.commit([Notify("a")])
            assert await again.receive() == "a"
    await there.close()


@pytest.mark.extended
async def test_partitions_of_a_dead_primary_answer_503_and_the_others_go_on(tmp_path: Path) -> None:
    with Cluster(tmp_path / "nodes", "--appendfsync", "no") as cluster:
        parts = cluster_parts(cluster.url, 8, prefix="p", timeout=SECONDS)
        records = PartitionedRecords(parts)
        jobs = JobQueue(records, 100)
        await jobs.heartbeat("worker")
        ids = [new_id("resp", tag) for tag in range(8)]
        for each in ids:
            async with jobs.enqueued(each, ANONYMOUS, {"model": "m"}) as ops:
                await records.commit(ops)
        dead = cluster.owner("{p0}:")
        away = {tag for tag in range(8) if cluster.owner(f"{{p{tag}}}:") is dead}
        cluster.replica_of(dead).kill()
        dead.kill()
        claimed = []
        with suppress(ApiError):
            while job := await jobs.claim("worker"):
                claimed.append(job.response_id)
        assert set(claimed) == {each for tag, each in enumerate(ids) if tag not in away}
        for tag, each in enumerate(ids):
            if tag in away:
                with pytest.raises(ApiError) as error:
                    await records.get_many([f"j/{each}"])
                assert (error.value.status, error.value.retry_after) == (503, 1)
            else:
                # What it writes in a partition that is away follows.
                await records.commit([Delete(f"k/{each}"), Put("us/p/1", b"")])
        await jobs.heartbeat("worker", claimed)
        dead.start()
        await until(lambda: "cluster_state:ok" in state_of(dead))
        for each in ids:
            await records.commit([Put(f"k/{each}", b"")])
        await records.sweep(0)
        assert len(await records.get_many(["us/p/1"])) == 1
        await records.close()


@pytest.mark.extended
async def test_replica_takes_over_from_a_dead_primary(cluster: Cluster, records: Store) -> None:
    there = Store(cluster, records.prefix)
    async with writing(records) as commits:
        await goes_on(commits)
        owner = cluster.owner(records.tag)
        owner.kill()
        await until(lambda: cluster.owner(records.tag) is not owner)
        await goes_on(commits)
        async with hearing(there) as pubsub:
            await records.commit([Notify("a")])
            assert await pubsub.receive() == "a"
        owner.start()  # in this thread, with which it would end
        await until(partial(lambda node: not node.is_primary, owner))
        await goes_on(commits)
    await there.close()


def primary_of(slot: int, says: Node) -> int:
    """Return the port of the primary that has a slot, as a node says."""
    port: int = next(nodes[0][1] for first, last, *nodes in says.told("CLUSTER SLOTS") if first <= slot <= last)
    return port


@pytest.mark.extended
async def test_subscription_on_a_primary_that_hangs_ends_once_another_one_is_known(
    cluster: Cluster, records: Store
) -> None:
    owner = cluster.owner(records.tag)
    replica, others = cluster.replica_of(owner), [node for node in cluster.nodes if node is not owner]
    async with hearing(records) as pubsub:
        await records.commit([Put("a", b"")])
        waits = asyncio.ensure_future(pubsub.receive())
        owner.freeze()
        replica.told("CLUSTER FAILOVER", "TAKEOVER")
        await until(lambda: {primary_of(records.slot, node) for node in others} == {replica.port})
        connections = cast("redis_cluster.ClusterConnections", records._connections.ready())
        connections._doubt(redis_cluster._Node("127.0.0.1", owner.port), RedisTimeoutError())  # as a call does
        assert await records.get_many(["a"])
        with pytest.raises(ApiError, match=MOVING):
            await asyncio.wait_for(waits, redis_pubsub.PUBSUB_SILENCE_SECONDS / 2)
    owner.thaw()
    await until(lambda: owner.follows)


@pytest.mark.extended
async def test_tag_of_a_user_that_a_dead_primary_alone_had_is_written_again(cluster: Cluster, tmp_path: Path) -> None:
    records = PartitionedRecords(
        cluster_parts(cluster.url, 8, password=PASSWORD, prefix=tmp_path.name, timeout=SECONDS)
    )
    [tag] = used(ANONYMOUS, 5)
    home = tag_of_key(tag.key)
    assert home % 8 != 5
    await records.commit([tag, Put(f"r/{new_id('resp', 5)}", b"")])
    await records.parts[home % 8].commit([Delete(tag.key)])  # as if no replica had it
    owner = cluster.owner(f"{{{tmp_path.name}{home % 8}}}:")
    owner.kill()
    other = Put(f"r/{new_id('resp', home)}", b"")

    async def is_there() -> bool:
        with suppress(ApiError):
            await records.commit([other])
            return bool(await records.get_many([tag.key]))
        return False

    await until_found(is_there)
    await records.close()
    owner.start()
    await until(lambda: owner.follows)


@pytest.fixture
async def acknowledging(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RedisRecords]:
    monkeypatch.setattr(redis, "_ACKNOWLEDGED_SECONDS", 0.1)
    opened = RedisRecords(cluster.url, prefix=tmp_path.name, timeout=SECONDS, partition=0, replicas=1)
    yield opened
    await opened.close()


async def unanswered(records: RedisRecords) -> Unanswered:
    """Commit what too few replicas acknowledge."""
    with pytest.raises(Unanswered, match="too few replicas") as error:
        await records.commit([Put("a", b"")])
    assert (error.value.status, error.value.retry_after) == (503, 1)
    return error.value


async def test_commit_that_too_few_replicas_have_is_503_and_applied_once(
    cluster: Cluster, acknowledging: RedisRecords, tmp_path: Path
) -> None:
    await acknowledging.commit([Put("a", b"")])
    replica = cluster.replica_of(cluster.owner(f"{{{tmp_path.name}0}}:"))
    replica.freeze()
    try:
        error = await unanswered(acknowledging)
        with pytest.raises(ApiError, match="too few replicas"):
            await error.settle()
        # If the primary died now, there would be no conflict.
        with pytest.raises(ApiError, match="too few replicas"):
            await acknowledging.commit([Put("b", b"")], [VersionIs("a", 1)])
    finally:
        replica.thaw()
    await until(lambda: replica.follows)
    assert await error.settle()
    with pytest.raises(Conflict):
        await acknowledging.commit([Put("b", b"")], [VersionIs("a", 1)])
    assert not await acknowledging.replicated(0, ""), "it is not known who was read from"
    await acknowledging.commit([Put("b", b"")], [VersionIs("a", 2)])


async def test_events_are_read_once_replicas_have_them(
    cluster: Cluster, acknowledging: RedisRecords, tmp_path: Path
) -> None:
    async def no_job() -> None:
        return None

    async def lasts() -> bool:
        return True

    log, response_id = EventLog(acknowledging, Notifier()), new_id("resp")
    begun, ended = (
        [{"type": f"response.{name}", "sequence_number": number}] for number, name in enumerate(["created", "failed"])
    )
    await acknowledging.commit(await log.batch(response_id, begun))
    replica = cluster.replica_of(cluster.owner(f"{{{tmp_path.name}0}}:"))
    replica.freeze()
    try:
        with pytest.raises(Unanswered):
            await acknowledging.commit(await log.batch(response_id, ended))
        with pytest.raises(ApiError, match="too few replicas"):
            await anext(log.follow(response_id, 0, 60, lasts, no_job))
    finally:
        replica.thaw()
    await until(lambda: replica.follows)
    assert [events async for events in log.follow(response_id, 0, 60, lasts, no_job)] == [ended]


@pytest.mark.extended
async def test_commit_that_a_dead_primary_alone_had_can_be_made_again(
    cluster: Cluster, acknowledging: RedisRecords, tmp_path: Path
) -> None:
    await acknowledging.commit([Put("a", b"")])
    owner = cluster.owner(f"{{{tmp_path.name}0}}:")
    replica = cluster.replica_of(owner)
    replica.kill()
    error = await unanswered(acknowledging)
    owner.kill()
    replica.start()
    await until(lambda: cluster.owner(f"{{{tmp_path.name}0}}:") is owner)  # it knows the others again
    replica.told("CLUSTER FAILOVER", "TAKEOVER")
    await until(lambda: replica.is_primary)
    owner.start()
    await until(lambda: owner.follows)
    assert not await error.settle()
    await acknowledging.commit([Put("a", b"")], [VersionIs("a", 1)])
    assert (await acknowledging.get_many(["a"]))["a"].version == 2


@pytest.mark.extended
async def test_audit_finds_the_commits_that_a_dead_primary_alone_had(cluster: Cluster, records: Store) -> None:
    """It is what the durability program trusts."""
    audit, [kept, lost] = Audit(cluster, 1), [new_id("resp", number) for number in range(2)]
    audit.mark()
    await records.commit([Put(f"r/{kept}", b"")])
    owner = cluster.owner(records.tag)
    replica = cluster.replica_of(owner)
    await until(lambda: owner.info("replication")["slave0"]["lag"] == 0)
    replica.freeze()
    owner.told("CLIENT", "KILL", "TYPE", "REPLICA")
    await records.commit([Put(f"r/{lost}", b""), Put("us/d/1", b""), Delete(f"r/{kept}")])
    owner.kill()
    replica.thaw()
    replica.told("CLUSTER", "FAILOVER", "TAKEOVER")
    await until(lambda: replica.is_primary)
    owner.start()
    await until(lambda: owner.follows)
    await records.commit([Put("after", b"")])
    audit.mark()
    assert set(await records.get_many([f"r/{kept}", f"r/{lost}", "after"])) == {f"r/{kept}", "after"}
    losses = audit.losses
    assert (losses.commits, losses.usage, losses.unaudited) == (1, 1, 0)
    assert losses.responses == {kept, lost}
    assert (losses.nodes[lost], losses.usage_nodes) == (1, 1), "the dead primary"
    assert losses.stored >= {kept, lost}, "beside those of tests before"
    audit.mark()
    assert losses.commits == 1


async def test_store_keeps_the_number_of_its_partitions(cluster: Cluster, tmp_path: Path) -> None:
    first, again, one = (
        PartitionedRecords(cluster_parts(cluster.url, number, prefix=tmp_path.name, timeout=SECONDS))
        for number in (8, 8, 1)
    )
    await asyncio.gather(*(records.commit([Put(f"{number}", b"")]) for number, records in enumerate((first, again))))
    assert len(await again.range("0", "9", limit=9)) == 2
    with pytest.raises(ApiError, match="was made with 8 partitions, and its settings have 1"):
        await one.get_many(["0"])
    old = Store(cluster, f"{tmp_path.name}-old")
    await old.commit([Put("0", b"")])
    several = PartitionedRecords(cluster_parts(cluster.url, 8, prefix=old.prefix, timeout=SECONDS))
    with pytest.raises(ApiError, match="was made with 1 partitions, and its settings have 8"):
        await several.commit([Put("1", b"")])
    for records in (first, again, one, old, several):
        await records.close()


async def test_user_without_publish_permission_can_write_in_a_cluster(tmp_path: Path) -> None:
    with OneNode(tmp_path / "server") as server:
        server.told("ACL", "SETUSER", "mute", "on", ">pw", "~*", "+@all", "resetchannels")
        mute = RedisRecords(server.url.replace("//", "//mute:pw@"), partition=0)
        await mute.commit([Notify("a"), Put("k", b"1"), Notify("b")])
        assert (await mute.get_many(["k"]))["k"].value == b"1"
        with pytest.raises(ApiError, match="or to listen to these channels"):
            async with mute.pubsub():
                pass
        await mute.close()


async def test_single_server_is_refused_as_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    with Valkey(tmp_path / "server") as server:
        alone = RedisRecords(server.url, partition=0)
        with pytest.raises(ApiError, match="server is no cluster: set the store's type to 'redis'") as error:
            await alone.get_many(["a"])
        assert error.value.status == 503
        await alone.close()


async def test_cluster_is_refused_as_a_single_server(cluster: Cluster) -> None:
    records = RedisRecords(cluster.nodes[0].url)
    calls = [records.commit([Put("a", b"")]), *(records.get_many([key]) for key in "abcdefghij")]
    refused = [error for error in await asyncio.gather(*calls, return_exceptions=True) if error]
    assert {str(error) for error in refused if isinstance(error, ApiError)} == {
        "The response store's server is part of a cluster: set the store's type to 'cluster'."
    }
    await records.close()


async def test_command_is_told_that_its_single_server_is_part_of_a_cluster(cluster: Cluster) -> None:
    alone = RedisRecords(cluster.owner("responses:made").url)
    with pytest.raises(ApiError, match="part of a cluster: set the store's type to 'cluster'"):
        await alone.exists()
    await alone.close()


async def test_wrong_password_of_a_cluster_is_reported_at_once(cluster: Cluster) -> None:
    records = RedisRecords(cluster.url.replace(PASSWORD, "sesame"), partition=0)
    with pytest.raises(ApiError, match="does not accept the password") as error:
        await records.get_many(["a"])
    assert "sesame" not in str(error.value)
    await records.close()


async def test_notifications_of_all_partitions_come_over_one_connection_to_each_primary(
    cluster: Cluster, tmp_path: Path
) -> None:
    here, there = (
        PartitionedRecords(cluster_parts(cluster.url, 8, prefix=tmp_path.name, timeout=SECONDS)) for _ in range(2)
    )
    names, own = {new_id("resp", number) for number in range(8)}, new_id("resp", 7)
    listening = there.pubsub()
    assert listening
    async with asyncio.timeout(60), listening as pubsub:
        await pubsub.subscribe({*names, own})
        assert {await pubsub.receive() for _ in (*names, own)} == {*names, own}
        primaries = [node for node in cluster.nodes if node.is_primary]
        owners = {cluster.owner(f"{{{tmp_path.name}{number}}}:") for number in range(8)}
        clients = [len(node.told("CLIENT", "LIST", "TYPE", "pubsub").splitlines()) for node in primaries]
        assert clients == [int(node in owners) for node in primaries]
        await there.commit([Notify(own)])
        await here.commit([Notify(name) for name in sorted(names)])
        assert {await pubsub.receive() for _ in names} == names, "not its own"
        cluster.replica_of(cluster.owner(f"{{{tmp_path.name}7}}:")).told("CLUSTER FAILOVER")
        with pytest.raises(ApiError, match=MOVING):
            await pubsub.receive()
    await here.close()
    await there.close()
