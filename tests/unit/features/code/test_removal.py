"""Folders of hostile code are removed completely, and listed within bounds."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from llama_stack_responses.features.code.sandbox.folder import listed_files
from llama_stack_responses.features.code.sandbox.removal import Removal, remove_some

NOBODY = 65534


def as_ordinary_user(call: Callable[[], Any], *folders: Path) -> Any:
    """Run the call in a thread with the file permissions of an ordinary user who owns the places."""
    if os.geteuid() == 0:
        for folder in folders:
            os.chown(folder, NOBODY, NOBODY)
    result: list[Any] = []

    def run() -> None:
        if os.geteuid() == 0:
            ctypes.CDLL(None).setfsuid(NOBODY)  # of this thread only
        try:
            result.append(call())
        except OSError as error:
            result.append(error)

    thread = Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


@pytest.fixture
def root() -> Iterator[Path]:
    """A folder that an ordinary user can access, unlike those of pytest."""
    with_removal = Path(os.path.realpath("/tmp")) / f"removal-{os.getpid()}"
    with_removal.mkdir()
    if os.geteuid() == 0:
        os.chown(with_removal, NOBODY, NOBODY)
    yield with_removal
    while not remove_some(with_removal, 1000):
        pass


def chain(top: Path, depth: int) -> None:
    """Create nested folders, with a file in the innermost."""
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 20, dir_fd=here)
        outer, here = here, os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(outer)
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)


def removed(folder: Path, most: int = 100) -> int:
    """Return the number of calls needed to remove the folder."""
    calls = 1
    while not remove_some(folder, most):
        calls += 1
        assert calls < 10_000
    assert not folder.exists()
    return calls


@pytest.mark.extended
def test_very_deep_folder_is_listed_and_removed(tmp_path: Path) -> None:
    chain(tmp_path / "deep", 3_000)
    (tmp_path / "deep" / "shallow.txt").write_text("hi")
    assert [each.path for each in listed_files(tmp_path / "deep", 10)] == ["shallow.txt"]
    removed(tmp_path / "deep")


def test_removal_proceeds_in_bounded_steps(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    for number in range(30):
        (wide / str(number)).mkdir(parents=True)
        for inner in range(30):
            (wide / str(number) / str(inner)).touch()
    before = sum(len(files) for _, _, files in os.walk(wide))
    assert not remove_some(wide, 100)
    after = sum(len(files) for _, _, files in os.walk(wide))
    assert before - 100 <= after < before
    assert removed(wide) >= 8


def test_removal_of_deep_folder_opens_few_files(tmp_path: Path) -> None:
    chain(tmp_path / "deep", 300)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, most[1]))
    try:
        removed(tmp_path / "deep")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, most)


def test_folders_without_permissions_are_removed_by_ordinary_user(root: Path) -> None:
    top = root / "top"
    folders = [top, top / "closed", top / "closed" / "inner", top / "read-only", top / "read-only" / "inner"]
    for folder in folders:
        folder.mkdir()
    (top / "closed" / "file").touch()
    (top / "read-only" / "inner" / "file").touch()
    for folder, mode in ((folders[4], 0o500), (folders[3], 0o500), (folders[2], 0), (folders[1], 0), (top, 0)):
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        folder.chmod(mode)
    assert as_ordinary_user(lambda: remove_some(top, 100)) is True
    assert not top.exists()


def test_unremovable_file_raises_error_after_removing_others(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can make what an ordinary user cannot remove")
    top = root / "top"
    (top / "another-users").mkdir(parents=True)
    (top / "another-users" / "file").touch()
    (top / "own").touch()
    result = as_ordinary_user(lambda: remove_some(top, 100), top)
    assert isinstance(result, PermissionError)
    assert [each.name for each in top.iterdir()] == ["another-users"]
    removed(top)


def test_links_are_removed_and_never_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept.txt").write_text("kept")
    top = tmp_path / "top"
    (top / "sub").mkdir(parents=True)
    (top / "link").symlink_to(outside)
    (top / "sub" / "link").symlink_to(outside)
    (top / "file").symlink_to(outside / "kept.txt")
    os.mkfifo(top / "pipe")
    assert listed_files(top, 10) == []
    removed(top)
    assert (outside / "kept.txt").read_text() == "kept"


def test_folder_that_is_link_is_not_removed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(NotADirectoryError):
        remove_some(tmp_path / "link", 10)
    assert (tmp_path / "outside").exists()


def test_names_that_are_not_text_are_removed(tmp_path: Path) -> None:
    inner = tmp_path / "top" / os.fsdecode(b"\xff\xfe\n") / os.fsdecode(b"\x80")
    inner.mkdir(parents=True)
    (inner / os.fsdecode(b"\xc3")).touch()
    removed(tmp_path / "top")


async def test_folders_are_removed_round_robin(tmp_path: Path) -> None:
    order: list[str] = []
    for name, files in (("large", 200), ("small", 5)):
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / str(number)).touch()
    removal = Removal(entries=10)

    async def remove(name: str) -> None:
        await removal.remove(tmp_path / name)
        order.append(name)

    await asyncio.gather(remove("large"), remove("small"), remove("not there"))
    removal.close()
    assert order[-1] == "large"
    assert not (tmp_path / "large").exists()


def test_listing_is_limited_and_begins_with_outer_files(tmp_path: Path) -> None:
    here = tmp_path
    for level in range(5):
        (here / "file").touch()
        here = here / "sub"
        here.mkdir()
    assert len(listed_files(tmp_path, 100)) == 5
    assert [each.path for each in listed_files(tmp_path, 2)] == ["file", "sub/file"]
    assert [each.path for each in listed_files(tmp_path, 100, depth=1)] == ["file", "sub/file"]
    assert [each.path for each in listed_files(tmp_path, 100, entries=4)] == ["file", "sub/file"]
    assert listed_files(tmp_path / "not there", 100) == []
