"""The file of a store's secret, and which store keeps its secret where."""

from __future__ import annotations

import logging
import multiprocessing
import stat
from base64 import b64decode, b64encode
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.store.factory import secret_keeper
from llama_stack_responses.store.kept_secret import SecretFile, SecretInMemory, SecretRow
from llama_stack_responses.store.memory import MemoryRecords

PROCESSES: Final = 6


@pytest.fixture
def kept(tmp_path: Path) -> SecretFile:
    return SecretFile(tmp_path / "new" / "folder" / "responses.db.secret")


async def test_file_of_the_secret_is_made_for_its_user_alone(kept: SecretFile) -> None:
    assert await kept.read() is None
    assert not kept.path.parent.exists(), "only a secret that is needed is made"
    secret = await kept.make()
    assert stat.S_IMODE(kept.path.stat().st_mode) == 0o600
    assert b64decode(kept.path.read_bytes()) == secret
    assert [*kept.path.parent.iterdir()] == [kept.path]
    assert await kept.make() == await kept.read() == await SecretFile(kept.path).make() == secret


async def test_secret_that_an_operator_writes_is_used(kept: SecretFile) -> None:
    kept.path.parent.mkdir(parents=True)
    kept.path.write_text(f"{b64encode(bytes(SECRET_BYTES)).decode()}\n")
    assert await kept.make() == bytes(SECRET_BYTES)


def _make(path: Path, at_once: Barrier, made: Any) -> None:
    import asyncio

    at_once.wait()
    made.put(asyncio.run(SecretFile(path).make()))


@pytest.mark.extended
def test_processes_that_make_the_secret_at_once_get_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for number in range(5):
        at_once, made = context.Barrier(PROCESSES), context.Queue()
        path = tmp_path / f"{number}.secret"
        processes = [context.Process(target=_make, args=(path, at_once, made)) for _ in range(PROCESSES)]
        for process in processes:
            process.start()
        secrets = {made.get(timeout=60) for _ in processes}
        for process in processes:
            process.join()
        assert secrets == {b64decode(path.read_bytes())}
    assert len([*tmp_path.iterdir()]) == 5


@pytest.mark.parametrize("content", [b"", b"short", b64encode(bytes(31)), b"\xff" * 44, b64encode(bytes(99))])
async def test_file_without_a_secret_is_an_error_that_names_it(kept: SecretFile, content: bytes) -> None:
    kept.path.parent.mkdir(parents=True)
    kept.path.write_bytes(content)
    for call in (kept.read, kept.make):
        with pytest.raises(ApiError, match=f"no secret of 32 bytes in {kept.path}: restore it, or remove it") as caught:
            await call()
        assert caught.value.status == 503
    assert kept.path.read_bytes() == content


async def test_folder_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "secret", tmp_path):
        with pytest.raises(ApiError, match=f"The file {path} with the secret of the response store cannot be"):
            await SecretFile(path).make()


async def test_secret_in_memory_stays_until_the_process_ends(caplog: pytest.LogCaptureFixture) -> None:
    kept = SecretInMemory()
    assert await kept.read() is None
    assert await kept.make() == await kept.make() == await kept.read()
    assert await SecretInMemory().make() != await kept.make()
    assert [each.levelno for each in caplog.records] == [logging.WARNING] * 2


STORES: Final[dict[str, tuple[dict[str, Any], type, bool]]] = {
    "memory": ({"type": "memory"}, SecretInMemory, True),
    "sqlite": ({"type": "sqlite", "path": "~/x/responses.db"}, SecretFile, True),
    "redis": ({"type": "redis", "url": "redis://localhost"}, SecretRow, False),
    "cluster": ({"type": "cluster", "url": "redis://localhost"}, SecretRow, False),
    "postgres": ({"type": "postgres", "url": "postgresql://me@localhost/x"}, SecretRow, False),
    "host": ({"type": "host"}, SecretRow, False),
}


@pytest.mark.parametrize("name", STORES)
def test_secret_protects_stored_values_unless_it_is_in_the_same_store(name: str) -> None:
    store, kind, apart = STORES[name]
    keeper = secret_keeper(ResponsesConfig(store=store).store, MemoryRecords())
    assert isinstance(keeper, kind)
    assert Sealer([], keeper).protects_rows == apart
    assert Sealer([bytes(SECRET_BYTES)], keeper).protects_rows
    assert not Sealer([]).protects_rows
    if isinstance(keeper, SecretFile):
        assert keeper.path == Path("~/x/responses.db.secret").expanduser()
