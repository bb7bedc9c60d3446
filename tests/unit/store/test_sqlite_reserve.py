"""Deletions on a full disk: a real file system of a few megabytes, in a mount namespace of its own."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

from llama_stack_responses.store.records import Put
from llama_stack_responses.store.sqlite import SqliteRecords
from llama_stack_responses.store.sqlite_reserve import RESERVE_BYTES, Reserve

ROOT: Final = Path(__file__).parents[3]
DISK: Final = "40m"

PROGRAM: Final = """
import asyncio, os, sys
from pathlib import Path
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.store.records import Delete, Put
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.conversation_store import Conversation
from llama_stack_responses.store.sqlite import SqliteRecords
from tests.contract.conversations import assistant, response, user

FOLDER = Path(sys.argv[1])
BIG = os.urandom(2**20)
FILLER = FOLDER / "filler"

def fill():
    "Fill the disk to its last byte, as another program may do."
    with FILLER.open("ab", buffering=0) as file:
        try:
            while file.write(BIG[:4096]):
                pass
        except OSError:
            pass

async def refused(records, size):
    "Add rows until the store finds no more room in what it holds already."
    for number in range(100):
        try:
            await records.commit([Put(f"new/{number}", BIG[:size])])
        except ApiError as error:
            assert (error.status, "full" in error.message) == (503, True), error
            return
    raise AssertionError("the commits have found room")

async def main():
    records = SqliteRecords(FOLDER / "records.db")
    await records.sweep(0.0)
{body}
    await records.close()

asyncio.run(main())
"""


def on_small_disk(folder: Path, body: str) -> None:
    """Run `body` as a coroutine, with a store `records` on a disk of its own."""
    program = PROGRAM.replace("{body}", textwrap.indent(textwrap.dedent(body), "    "))
    disk = f'mount -t tmpfs -o size={DISK} tmpfs "$0" && exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", disk, str(folder)]
    done = subprocess.run(
        [*command, sys.executable, "-c", program, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_deletion_on_full_disk_succeeds_and_returns_room(tmp_path: Path) -> None:
    body = """
    for number in range(12):
        await records.commit([Put(f"k/{number:02}", BIG), Put(f"small/{number:02}", b"x" * 2000)])
    fill()
    await refused(records, len(BIG))
    await records.commit([Delete(key) for key, _ in await records.range("new/", "new0", limit=100)])
    for number in range(12):
        await records.commit([Delete(f"k/{number:02}"), Delete(f"small/{number:02}"), Put(f"g/{number}", b"left")])
        await records.commit([Delete(f"g/{number}")])
    assert await records.range("!", "~", limit=100) == []
    await records.commit([Put("new", BIG)])
    """
    on_small_disk(tmp_path, body)


def test_responses_and_conversation_are_deleted_on_full_disk(tmp_path: Path) -> None:
    body = """
    archive = Archive(records)
    stored = []
    for number in range(12):
        created = response(assistant(os.urandom(400_000).hex()))
        await archive.save(created, owner=Owner("ada"), base=None, input_items=[user(str(number))])
        stored.append(created["id"])
    talk = Conversation("conv_1", Owner("ada"), 1, {})
    await archive.conversations.create(talk, [user("hello", id="msg_1")])
    fill()
    await refused(records, len(BIG))
    for each in stored:
        assert await archive.delete(each)
    assert await archive.conversations.delete(talk.id)
    left = [key for key, _ in await records.range("!", "~", limit=100) if not key.startswith(("x/", "new/"))]
    assert left == [], left
    """
    on_small_disk(tmp_path, body)


def test_deletion_is_written_to_the_audit_log_on_full_disk(tmp_path: Path) -> None:
    body = """
    from llama_stack_responses.store.audit_log import Act, AuditLog
    log = AuditLog(records, 3600)
    fill()
    await refused(records, 1)
    await log.write(Act("owner.deleted", {"type": "machine"}, "allowed", "", Owner("ada")))
    [entry], _ = await log.page(9)
    assert entry["type"] == "owner.deleted"
    try:
        await log.write(Act("owner.exported", {"type": "machine"}, "allowed", "", Owner("ada")))
    except ApiError as error:
        assert "full" in error.message
    else:
        raise AssertionError("it has used the room that is kept for deletions")
    """
    on_small_disk(tmp_path, body)


def test_what_precedes_deletions_leaves_them_most_of_the_reserve(tmp_path: Path) -> None:
    body = """
    from llama_stack_responses.store.sqlite_reserve import LEAST_BYTES
    for number in range(12):
        await records.commit([Put(f"k/{number:02}", BIG)])
    await records.close()
    fill()
    for number in range(1_000):
        try:
            await records.commit([Put(f"p/{number:04}", BIG[:30_000], uses_reserve=True)])
        except ApiError as error:
            assert "full" in error.message
            break
    assert 10 < number < 120, number
    assert (FOLDER / "records.db-reserve").stat().st_size > LEAST_BYTES - 2**20
    await records.commit([Put("lease", b"x", uses_reserve=True)])
    await records.commit([Delete(f"k/{number:02}") for number in range(12)])
    await records.commit([Put("p/last", BIG[:30_000], uses_reserve=True)])
    await records.commit([Put("new", BIG)])
    """
    on_small_disk(tmp_path, body)


def test_idle_responses_are_packed_on_full_disk(tmp_path: Path) -> None:
    """Without a WAL that has room in itself, as after a start."""
    body = """
    from llama_stack_responses.features.cold.packing import Packing
    from tests.contract.conversations import CREATED
    from tests.support.cold import AFTER, ColdStore, in_folder
    cold = ColdStore(records, in_folder(FOLDER.parent), lambda: CREATED)
    for _ in range(30):
        made = response(assistant(os.urandom(10_000).hex()))
        await cold.archive.save(made, owner=Owner("ada"), base=None, input_items=[])
    await records.close()
    fill()
    await refused(records, 2000)
    packing = Packing(records, cold.objects, AFTER, least_bytes=1, keep_seconds=0)
    await packing.work()
    assert len(await cold.packed()) == 30
    await packing.release()
    await records.commit([Put("new", BIG[:20_000])])
    assert await cold.archive.load(made["id"])
    """
    on_small_disk(tmp_path, body)


def test_reserve_is_not_used_by_additions_between_deletions(tmp_path: Path) -> None:
    body = """
    for number in range(20):
        await records.commit([Put(f"k/{number:02}", b"x" * 3000)])
    fill()
    for number in range(20):
        await records.commit([Delete(f"k/{number:02}")])
        fill()
        await refused(records, 6000)
    assert not await records.range("k/", "k0", limit=100)
    """
    on_small_disk(tmp_path, body)


def test_store_opened_on_full_disk_deletes_and_is_read(tmp_path: Path) -> None:
    body = """
    await records.commit([Put("a", BIG), Put("b", b"1")])
    await records.close()
    fill()
    again = SqliteRecords(FOLDER / "records.db")
    assert (await again.get_many(["b"]))["b"].value == b"1"
    await refused(again, 100)
    await again.commit([Delete("a")])
    assert list(await again.get_many(["a", "b"])) == ["b"]
    await again.close()
    """
    on_small_disk(tmp_path, body)


def test_expired_records_are_swept_on_full_disk(tmp_path: Path) -> None:
    body = """
    for number in range(12):
        await records.commit([Put(f"k/{number:02}", BIG, 5e9)])
    fill()
    while await records.sweep(6e9):
        pass
    assert await records.range("!", "~", limit=100) == []
    await records.commit([Put("new", BIG)])
    """
    on_small_disk(tmp_path, body)


async def test_sweep_makes_reserve_which_holds_its_room(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")
    await records.sweep(0.0)
    held = tmp_path / "records.db-reserve"
    assert held.stat().st_blocks * 512 >= RESERVE_BYTES
    assert held.stat().st_mode & 0o777 == 0o600
    await records.close()


async def test_used_reserve_is_filled_before_next_addition(tmp_path: Path) -> None:
    records = SqliteRecords(tmp_path / "records.db")
    await records.sweep(0.0)
    reserve = Reserve(tmp_path / "records.db")
    reserve.release()
    assert reserve.is_used()
    await records.commit([Put("a", b"1")])
    assert not reserve.is_used()
    await records.close()
