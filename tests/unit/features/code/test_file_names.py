"""File names in containers: those of clients and those of code."""

import os
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.code.containers.entries import (
    ContainerEntry,
    Containers,
    _file_name,
    files,
    open_file,
    write_file,
)
from tests.unit.features.code.test_container import BOUNDS, admission, jail, volumes


@pytest.fixture
async def entry(tmp_path: Path) -> AsyncIterator[ContainerEntry]:
    containers = Containers(
        jail(), BOUNDS, volumes(), tmp_path / "containers", idle_seconds=60, admission=admission(2, 3)
    )
    yield await containers.create(Owner("anna", {}))
    await containers.close()


@pytest.mark.parametrize(
    "name", ["..", "a/..", "a\\..", "a\0b", "a\nb", "\x1b[2J", "x" * 256, "\u00e4" * 128, "\udcff.txt", "\u202ea"]
)
async def test_impossible_file_name_is_400(entry: ContainerEntry, name: str) -> None:
    with pytest.raises(ApiError, match="The file cannot have this name") as caught:
        await write_file(entry, name, BytesIO(b"a"))
    assert (caught.value.status, caught.value.param) == (400, "file")
    assert await files(entry) == []


async def test_file_name_of_existing_folder_is_400(entry: ContainerEntry) -> None:
    (entry.container.folder / "made").mkdir()
    with pytest.raises(ApiError, match="a folder of this name is in the container already: 'made'"):
        await write_file(entry, "made", BytesIO(b"a"))


@pytest.mark.parametrize(
    ("name", "base"),
    [("", "file"), (".", "file"), ("/", "file"), ("/etc/passwd", "passwd"), ("C:\\a b.txt", "a b.txt")],
)
def test_only_last_part_of_file_name_counts(name: str, base: str) -> None:
    assert _file_name(name) == base


@given(st.text(max_size=300))
def test_arbitrary_file_name_is_valid_or_refused(name: str) -> None:
    try:
        base = _file_name(name)
    except ApiError as error:
        orjson.dumps(error.body())
    else:
        assert base not in ("", ".", "..")
        assert "/" not in base
        assert "\0" not in base
        assert len(os.fsencode(base)) <= 255


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"\xff.txt", "\\xff.txt"),
        (b"a\nb", "a\\nb"),
        (b"\x1b[2J", "\\x1b[2J"),
        ("\u00e4 b.txt".encode(), "\u00e4 b.txt"),
    ],
)
async def test_oddly_named_file_is_listed_and_read(entry: ContainerEntry, name: bytes, shown: str) -> None:
    """JSON cannot encode a name that is not UTF-8, so neither a client nor a model server would receive it."""
    (entry.container.folder / os.fsdecode(name)).write_bytes(b"inside")
    [file] = await files(entry)
    assert (file.path, file.name) == (f"/mnt/data/{shown}", shown)
    assert orjson.dumps(file.path)
    opened = await open_file(entry, file)
    assert opened
    with opened[0] as content:
        assert content.read() == b"inside"


async def test_oddly_named_files_have_separate_ids(entry: ContainerEntry) -> None:
    for name in (b"\xff", b"\xfe", b"?"):
        (entry.container.folder / os.fsdecode(name)).write_bytes(b"")
    assert len({file.id for file in await files(entry)}) == 3
