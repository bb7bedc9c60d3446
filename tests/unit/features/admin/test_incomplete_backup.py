"""A backup and an export go on beside damaged content of an object store, and name what they lack."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from llama_stack_responses.commands.command_error import CommandError
from llama_stack_responses.commands.host_data import HostData
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.features.admin.backup_commands import backup, restore
from llama_stack_responses.features.admin.store_commands import export
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.records import Records
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import CREATED, user
from tests.contract.test_cold import ALICE, chain
from tests.support.cold import ColdStore, in_folder


def opened(folder: Path) -> ColdStore:
    return ColdStore(SqliteRecords(folder / "records.db"), in_folder(folder), lambda: CREATED)


def given(folder: Path, file: Path, since: Path | None = None) -> Namespace:
    """Return the arguments of a command."""

    def open_store(config: Path, *, new: bool) -> tuple[Records, ResponsesConfig]:
        del config, new
        return opened(folder).records, ResponsesConfig()

    config = folder / "config.yaml"
    config.touch()
    return Namespace(
        file=file, config=config, open_store=open_store, json=True, merge=False, live=since is not None, since=since
    )


async def packed(folder: Path) -> tuple[list[str], list[str]]:
    """Pack two chains, and damage one; return the ids of its responses and those of the other one."""
    here = opened(folder)
    made = [[each.response["id"] for each in await chain(here.archive, 2, first)] for first in (0, 10)]
    await here.packing.work()
    [file] = (folder / "cold").rglob("*.pack")
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    reading = Archive(here.records.reader(), clock=lambda: CREATED)
    lost = [ids for ids in made if await is_lost(reading, ids[0])]
    assert len(await here.packed()) == 4
    await here.hot.close()
    [damaged] = lost
    [whole] = [ids for ids in made if ids != damaged]
    return damaged, whole


async def is_lost(archive: Archive, response_id: str) -> bool:
    try:
        return await archive.load(response_id) is None
    except Exception as error:  # noqa: BLE001 - what is damaged says so
        return "damaged" in str(error)


def test_damaged_chain_is_named_and_all_else_is_in_the_backup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    damaged, whole = asyncio.run(packed(source))
    first = tmp_path / "first"
    with pytest.raises(CommandError) as failure:
        backup(given(source, first))
    assert all(each in str(failure.value) for each in damaged)
    assert not any(each in str(failure.value) for each in whole)
    restore(given(target, first))
    with pytest.raises(CommandError, match="--since would delete"):
        restore(given(target, first, since=first))
    [saved, restored] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert saved["rows"] == restored["rows"] + restored["expired"]

    async def check() -> None:
        there = opened(target)
        assert [await is_lost(there.archive, each) for each in whole] == [False, False]
        assert [await is_lost(there.archive, each) for each in damaged] == [True, True]
        await there.hot.close()

    asyncio.run(check())


@asynccontextmanager
async def nothing_of_the_host(*_: object) -> AsyncIterator[HostData]:
    """Open what a host keeps for users where it keeps nothing."""
    yield HostData()


async def filled(folder: Path) -> tuple[list[str], str]:
    """Store a chain and a conversation whose object is gone, and a response that is readable; return the ids."""
    here = opened(folder)
    lost = [each.response["id"] for each in await chain(here.archive, 2, 0)]
    talk = Conversation(new_id("conv"), ALICE, int(CREATED), {})
    await here.archive.conversations.create(
        talk, [{**user(f"item {number}"), "id": f"msg_{number}"} for number in range(4)]
    )
    await here.packing.work()
    for name in await here.stored():
        await here.objects.delete(name)
    [left] = await chain(here.archive, 1, 10)
    await here.hot.close()
    return [*lost, talk.id], left.response["id"]


@pytest.mark.parametrize("to_file", [True, False])
def test_export_has_all_but_what_is_damaged_and_names_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], to_file: bool
) -> None:
    lost, left = asyncio.run(filled(tmp_path))
    out = tmp_path / "out" if to_file else None
    of_alice = {
        "owner": ALICE.principal,
        "tenant": "",
        "usage": False,
        "out": out,
        "open_host_data": nothing_of_the_host,
    }
    with pytest.raises(CommandError, match="damaged or missing of") as failure:
        export(Namespace(**vars(given(tmp_path, tmp_path)) | of_alice))
    assert all(each in str(failure.value) for each in lost)
    assert left not in str(failure.value)
    text = out.read_text() if out else capsys.readouterr().out
    first, talk = map(json.loads, text.splitlines())
    assert (first["response"]["id"], talk["conversation"]["id"], talk["items"]) == (left, lost[-1], [])
