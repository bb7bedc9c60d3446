"""Processes that share an SQLite file notify each other, whatever becomes of one of them."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.sqlite_pubsub import SqliteNotifications
from tests.support.waiting import turns, until

NAMES = [f"resp_{number:04d}" for number in range(64)]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "records.db"


def sockets(database: Path) -> list[str]:
    folder = database.with_name("records.db-notify")
    return [path.name for path in folder.iterdir()] if folder.exists() else []


async def test_names_that_find_a_full_socket_arrive_once_it_has_room(database: Path) -> None:
    here, there = SqliteNotifications(database), SqliteNotifications(database)
    async with there.opened() as pubsub, asyncio.timeout(60):
        await pubsub.subscribe(NAMES)
        assert {await pubsub.receive() for _ in NAMES} == set(NAMES)
        loop = asyncio.get_running_loop()
        loop.remove_reader(pubsub._socket)  # type: ignore[attr-defined]  # it does not read
        for name in NAMES:
            here.send([name])
            await turns(2)
        loop.add_reader(pubsub._socket, pubsub._read)  # type: ignore[attr-defined]
        assert {await pubsub.receive() for _ in NAMES} == set(NAMES)
    here.close()


async def test_process_that_stands_still_holds_no_other_up(database: Path) -> None:
    here, there, stands = (SqliteNotifications(database) for _ in range(3))
    async with AsyncExitStack() as listening, asyncio.timeout(60):
        stuck = await listening.enter_async_context(stands.opened())
        asyncio.get_running_loop().remove_reader(stuck._socket)  # type: ignore[attr-defined]
        pubsub = await listening.enter_async_context(there.opened())
        await pubsub.subscribe(NAMES)
        assert {await pubsub.receive() for _ in NAMES} == set(NAMES)
        for name in NAMES:
            here.send([name])
            assert await pubsub.receive() == name
    here.close()


async def test_socket_of_a_killed_process_is_removed_by_the_next_sender(database: Path) -> None:
    here, there = SqliteNotifications(database), SqliteNotifications(database)
    async with there.opened() as pubsub, asyncio.timeout(60):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
            killed.bind(str(database.with_name("records.db-notify") / "killed"))
        assert len(sockets(database)) == 2
        await pubsub.subscribe(["a"])
        assert await pubsub.receive() == "a"
        here.send(["a"])
        assert await pubsub.receive() == "a"
        await until(lambda: len(sockets(database)) == 1)
    assert sockets(database) == []


async def test_folder_goes_with_the_last_process(database: Path) -> None:
    here, there = SqliteNotifications(database), SqliteNotifications(database)
    async with here.opened():
        async with there.opened():
            assert len(sockets(database)) == 2
        assert len(sockets(database)) == 1
    assert list(database.parent.iterdir()) == []


async def test_path_longer_than_an_address_is_notified_too(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    here, there = SqliteNotifications(folder / "records.db"), SqliteNotifications(folder / "records.db")
    async with there.opened() as pubsub, asyncio.timeout(60):
        await pubsub.subscribe(["a"])
        assert await pubsub.receive() == "a"
        here.send(["a"])
        assert await pubsub.receive() == "a"


async def test_names_are_sent_at_the_close_of_their_process(database: Path) -> None:
    here, there = SqliteNotifications(database), SqliteNotifications(database)
    async with there.opened() as pubsub, asyncio.timeout(60):
        await pubsub.subscribe(["a"])
        assert await pubsub.receive() == "a"
        here.send(["a"])
        here.close()
        assert await pubsub.receive() == "a"


async def test_folder_that_can_have_no_socket_is_503(database: Path) -> None:
    database.with_name("records.db-notify").write_text("in the way")
    with pytest.raises(ApiError, match="can have no socket") as refused:
        async with SqliteNotifications(database).opened():
            pass
    assert refused.value.status == 503
    SqliteNotifications(database).send(["a"])
