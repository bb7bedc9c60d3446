"""The names of files in containers: those that clients give, and those that code makes."""

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
from llama_stack_responses.sandbox.containers import Containers, Entry, _file_name, files, open_file, write_file
from llama_stack_responses.sandbox.places import Places
from tests.unit.sandbox.test_container import BOUNDS, jail, volumes


@pytest.fixture
async def entry(tmp_path: Path) -> AsyncIterator[Entry]:
    made = Containers(jail(), BOUNDS, volumes(), tmp_path / "containers", idle_seconds=60, places=Places(2, 3))
    yield await made.create(Owner("anna", {}))
    await made.close()


@pytest.mark.parametrize(
    "name", ["..", "a/..", "a\\..", "a\0b", "a\nb", "\x1b[2J", "x" * 256, "\u00e4" * 128, "\udcff.txt", "\u202ea"]
)
async def test_a_name_that_no_file_can_have_is_a_400(entry: Entry, name: str) -> None:
    with pytest.raises(ApiError, match="The file cannot have this name") as caught:
        await write_file(entry, name, BytesIO(b"a"))
    assert (caught.value.status, caught.value.param) == (400, "file")
    assert await files(entry) == []


async def test_the_name_of_a_folder_is_a_400(entry: Entry) -> None:
    (entry.container.folder / "made").mkdir()
    with pytest.raises(ApiError, match="a folder of this name is in the container already: 'made'"):
        await write_file(entry, "made", BytesIO(b"a"))


@pytest.mark.parametrize(
    ("name", "base"),
    [("", "file"), (".", "file"), ("/", "file"), ("/etc/passwd", "passwd"), ("C:\\a b.txt", "a b.txt")],
)
def test_a_name_counts_by_its_last_part(name: str, base: str) -> None:
    assert _file_name(name) == base


@given(st.text(max_size=300))
def test_a_name_is_refused_or_is_one_of_a_file(name: str) -> None:
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
async def test_a_file_that_code_has_named_oddly_is_shown_and_read(entry: Entry, name: bytes, shown: str) -> None:
    """No encoder of JSON takes a name that is no UTF-8, so neither a client nor a model server would get it."""
    (entry.container.folder / os.fsdecode(name)).write_bytes(b"inside")
    [file] = await files(entry)
    assert (file.path, file.name) == (f"/mnt/data/{shown}", shown)
    assert orjson.dumps(file.path)
    opened = await open_file(entry, file)
    assert opened
    with opened[0] as content:
        assert content.read() == b"inside"


async def test_files_with_odd_names_have_ids_of_their_own(entry: Entry) -> None:
    for name in (b"\xff", b"\xfe", b"?"):
        (entry.container.folder / os.fsdecode(name)).write_bytes(b"")
    assert len({file.id for file in await files(entry)}) == 3
