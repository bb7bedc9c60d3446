"""The containers of a user of whom everything was deleted end on each server, with their files."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.code.containers.deleted_owners import DeletedOwners
from llama_stack_responses.features.code.containers.entries import Containers, write_file
from llama_stack_responses.features.code.stored import open_store
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.memory import MemoryRecords
from tests.contract.counting_proxy import CountingProxy
from tests.unit.features.code.test_container import BOUNDS, admission, jail, volumes

ADA, BOB = Owner("ada", {"teams": ["search"]}), Owner("bob")


async def test_containers_of_a_deleted_user_end_on_every_server(tmp_path: Path) -> None:
    records = MemoryRecords()
    servers = [
        Containers(jail(), BOUNDS, volumes(), tmp_path / name, idle_seconds=3600, admission=admission(9, 9))
        for name in ("a", "b")
    ]
    for server in servers:
        for owner in (ADA, BOB):
            await write_file(await server.create(owner), "notes.txt", BytesIO(b"canary"))
    entries = [entry for server in servers for entry in server.all()]
    await open_store(records, Decoder()).forget(Owner("ada"))
    for server in servers:
        await DeletedOwners(records, server).end()
        assert [each.owner for each in server.all()] == [BOB]
    assert [entry.container.volume.folder.exists() for entry in entries] == [False, True, False, True]
    for server in servers:
        await server.close()


async def test_containers_of_a_user_who_comes_back_stay(tmp_path: Path) -> None:
    records, now = MemoryRecords(), await MemoryRecords().now()
    await open_store(records, Decoder()).forget(ADA)
    server = Containers(
        jail(),
        BOUNDS,
        volumes(),
        tmp_path / "containers",
        idle_seconds=3600,
        admission=admission(9, 9),
        clock=lambda: now + 120,
    )
    await server.create(ADA)
    await DeletedOwners(records, server).end()
    assert len(server.all()) == 1
    await server.close()


async def test_server_without_containers_does_not_ask_the_store(tmp_path: Path) -> None:
    records = CountingProxy(MemoryRecords())
    server = Containers(jail(), BOUNDS, volumes(), tmp_path / "c", idle_seconds=60, admission=admission(9, 9))
    await DeletedOwners(records, server).end()
    assert records.reads == 0
    await server.close()
