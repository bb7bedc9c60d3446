"""Zip archives of skills: those that are read, and hostile ones."""

from __future__ import annotations

import struct
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Mapping
from io import BytesIO

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llama_stack_responses.features.code.skills.archive import InvalidSkill, SkillArchive
from tests.support.skills import FILES, MANIFEST, archive, entry

MIB = 2**20


def contents(zipped: bytes) -> Mapping[str, bytes]:
    """Return the content of each file of a skill."""
    opened = SkillArchive(zipped)
    return {file.path: opened.read(file) for file in opened.files}


def refusal(zipped: bytes) -> str:
    """Return why an archive is refused."""
    with pytest.raises(InvalidSkill) as refused:
        SkillArchive(zipped).check()
    return str(refused.value)


def edited(zipped: bytes, mark: bytes, offset: int, value: bytes, number: int = 0) -> bytes:
    """Return the archive with other bytes in the header with this mark and number."""
    at = -1
    for _ in range(number + 1):
        at = zipped.index(mark, at + 1)
    return zipped[: at + offset] + value + zipped[at + offset + len(value) :]


LOCAL, ENTRY, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


@pytest.mark.parametrize("folder", ["", "sums/"], ids=["files at the top", "one folder"])
def test_files_are_read_with_paths_in_skill_folder(folder: str) -> None:
    zipped = archive({f"{folder}SKILL.md": MANIFEST, f"{folder}a/b.sh": b"echo", f"{folder}a/c/d": b""})
    assert contents(zipped) == {"SKILL.md": MANIFEST, "a/b.sh": b"echo", "a/c/d": b""}
    opened = SkillArchive(zipped)
    assert [file.path for file in opened.files if file.executable] == ["a/b.sh"]
    assert (opened.bytes, opened.folders) == (len(MANIFEST) + 4, 2)


def test_manifest_gets_its_usual_name() -> None:
    assert contents(archive({"x/Skill.MD": MANIFEST})) == {"SKILL.md": MANIFEST}


def test_archive_of_macos_is_read_without_its_attributes() -> None:
    zipped = archive({"s/SKILL.md": MANIFEST, "__MACOSX/s/._SKILL.md": b"attributes"})
    assert contents(zipped) == {"SKILL.md": MANIFEST}


def test_stored_files_folders_comments_and_streamed_sizes_are_read() -> None:
    class Stream(BytesIO):
        def seekable(self) -> bool:
            return False

    written = Stream()
    with zipfile.ZipFile(written, "w") as zipped:
        zipped.writestr(entry("s/", 0o040755), b"")
        zipped.writestr("s/SKILL.md", MANIFEST)
        zipped.writestr(entry("s/ü.txt"), b"text")
        zipped.comment = b"a comment"
    assert contents(written.getvalue()) == {"SKILL.md": MANIFEST, "ü.txt": b"text"}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/etc/passwd", "not a relative path"),
        ("../SKILL.md", "not a relative path"),
        ("a/../../b", "not a relative path"),
        ("a//b", "not a relative path"),
        ("./a", "not a relative path"),
        ("a\\b", "not a relative path"),
        ("a\nb", "not a relative path"),
        ("a" * 256, "longer than 512 bytes"),
        ("/".join(["a" * 200] * 3), "longer than 512 bytes"),
        ("/".join("a" * 17), "16 levels deep"),
        ("SKILL.md", "one file 'SKILL.md'"),
        ("a", "the same path"),
        ("skill.md", "one file 'SKILL.md'"),
        ("a/b", "the same path"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_path_that_is_not_safe_or_not_distinct_is_refused(path: str, why: str) -> None:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        for each in ("SKILL.md", "a", path):
            zipped.writestr(entry(each), b"content")
    assert why in refusal(content.getvalue())


def test_name_that_is_not_utf8_is_refused() -> None:
    zipped = archive({"SKILL.md": MANIFEST, "aa": b""}).replace(b"aa", b"a\xff")
    assert "not UTF-8" in refusal(zipped)


@pytest.mark.parametrize(
    "mode", [0o120777, 0o020666, 0o060666, 0o010644, 0o140644], ids=["link", "character", "block", "pipe", "socket"]
)
def test_link_and_device_are_refused(mode: int) -> None:
    content = BytesIO()
    with zipfile.ZipFile(content, "w") as zipped:
        zipped.writestr(entry("SKILL.md"), MANIFEST)
        zipped.writestr(entry("a", mode), "/etc/passwd")
    assert "is a link or a device" in refusal(content.getvalue())


@pytest.mark.parametrize("zipped", [b"", b"text", b"PK\x05\x06", END + bytes(17), LOCAL * 100], ids=repr)
def test_data_without_archive_is_refused(zipped: bytes) -> None:
    assert "not a zip archive" in refusal(zipped)


def test_archive_without_manifest_is_refused() -> None:
    for files in ({}, {"a": b""}, {"a/SKILL.md": b"", "b": b""}, {"a/b/SKILL.md": b""}):
        assert "one file 'SKILL.md'" in refusal(archive(files))


@pytest.mark.parametrize(
    ("mark", "offset", "value", "why"),
    [
        (ENTRY, 8, b"\x01\x00", "is encrypted"),
        (ENTRY, 8, b"\x40\x00", "is encrypted"),
        (ENTRY, 10, b"\x0c\x00", "another method"),
        (ENTRY, 16, b"\x00\x00\x00\x00", "size and checksum"),
        (ENTRY, 20, b"\xff\xff\xff\xff", "zip64"),
        (ENTRY, 20, b"\xff\xff\xff\x7f", "damaged"),
        (ENTRY, 24, b"\xff\xff\xff\xff", "zip64"),
        (ENTRY, 24, b"\xff\xff\xff\x7f", "more than 25 MiB"),
        (ENTRY, 24, b"\x00\x00\x00\x00", "size and checksum"),
        (ENTRY, 28, b"\xff\xff", "damaged"),
        (ENTRY, 30, b"\xff\xff", "damaged"),
        (ENTRY, 42, b"\xff\xff\xff\x7f", "damaged"),
        (ENTRY, 42, b"\x01\x00\x00\x00", "damaged"),
        (LOCAL, 26, b"\x01\x00", "damaged"),
        (LOCAL, 28, b"\xff\xff", "damaged"),
        (LOCAL, 30, b"other", "damaged"),
        (END, 4, b"\x01\x00", "several parts"),
        (END, 8, b"\x01\x00", "several parts"),
        (END, 8, b"\xff\xff\xff\xff", "zip64"),
        (END, 8, b"\xd1\x07\xd1\x07", "500 files, or 2000 entries"),
        (END, 8, b"\x01\x00\x01\x00", "one file 'SKILL.md'"),
        (END, 8, b"\x03\x00\x03\x00", "damaged"),
        (END, 12, b"\xff\xff\xff\x7f", "500 files"),
        (END, 12, b"\x01\x00\x00\x00", "damaged"),
        (END, 16, b"\xff\xff\xff\xff", "zip64"),
        (END, 16, b"\x00\x00\x00\x00", "damaged"),
        (END, 20, b"\x01\x00", "damaged"),
    ],
)
def test_archive_with_wrong_header_is_refused(mark: bytes, offset: int, value: bytes, why: str) -> None:
    zipped = archive({"scripts/run.sh": b"echo" * 100, "SKILL.md": MANIFEST})
    assert why in refusal(edited(zipped, mark, offset, value))


def test_entries_of_same_content_are_refused() -> None:
    zipped = archive({"SKILL.md": MANIFEST, "aa": b"x" * 100, "ab": b"x" * 100})
    first = zipped.index(LOCAL, 1)
    for number, name in ((1, b"ab"), (2, b"ab")):
        zipped = edited(zipped, ENTRY, 46, name, number)
        zipped = edited(zipped, ENTRY, 42, struct.pack("<L", first), number)
    zipped = edited(zipped, LOCAL, 30, b"ab", 1)
    assert "overlap" in refusal(zipped)


def test_bomb_is_read_no_further_than_its_declared_size() -> None:
    zipped = archive({"SKILL.md": MANIFEST, "bomb": bytes(24 * MIB)})
    assert len(zipped) < MIB
    short = edited(zipped, ENTRY, 24, struct.pack("<L", 1000), 1)
    tracemalloc.start()
    assert "size and checksum" in refusal(short)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MIB
    assert "more than 25 MiB" in refusal(archive({"SKILL.md": MANIFEST, "bomb": bytes(25 * MIB + 1)}))
    SkillArchive(zipped).check()


def test_content_after_end_of_compressed_data_is_refused() -> None:
    packed = zlib.compress(MANIFEST, wbits=-15)
    zipped = archive({"SKILL.md": MANIFEST})
    at = zipped.index(packed)
    begin = at + len(packed)
    longer = zipped[:begin] + b"rest" + zipped[begin:]
    longer = edited(longer, ENTRY, 20, struct.pack("<L", len(packed) + 4))
    longer = edited(longer, END, 16, struct.pack("<L", begin + 4))
    assert "size and checksum" in refusal(longer)
    cut = edited(zipped, ENTRY, 20, struct.pack("<L", len(packed) - 1))
    assert "size and checksum" in refusal(cut)


def test_number_of_files_is_bounded() -> None:
    files = {f"s/{number}": b"" for number in range(499)}
    assert len(contents(archive({"s/SKILL.md": MANIFEST, **files}))) == 500
    assert "500 files" in refusal(archive({"s/SKILL.md": MANIFEST, **files, "s/more": b""}))
    many = archive({f"s/{number}": b"" for number in range(30_000)})
    began = time.thread_time()
    assert "500 files" in refusal(many)
    assert time.thread_time() - began < 15


def test_huge_list_of_entries_is_refused_unread() -> None:
    header = ENTRY + bytes(42)
    listed = header * 1_000_000
    zipped = listed + struct.pack("<4s4H2LH", END, 0, 0, 2_000, 2_000, len(listed), 0, 0)
    began = time.thread_time()
    assert "500 files" in refusal(zipped)
    assert time.thread_time() - began < 1


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_damaged_archive_is_refused_or_read_whole(data: st.DataObject) -> None:
    zipped = bytearray(archive(FILES))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(zipped) - 1))
        change: Callable[[], object] = data.draw(
            st.sampled_from(
                [
                    lambda at=at: zipped.__setitem__(at, data.draw(st.integers(0, 255))),
                    lambda at=at: zipped.__delitem__(slice(at, at + 1)),
                    lambda at=at: zipped.insert(at, data.draw(st.integers(0, 255))),
                ]
            )
        )
        change()
    try:
        read = contents(bytes(zipped))
    except InvalidSkill:
        return
    assert "SKILL.md" in read
    assert all(not path.startswith("/") and ".." not in path.split("/") for path in read)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200), st.binary(max_size=64))
def test_any_bytes_with_marks_are_refused(middle: bytes, after: bytes) -> None:
    for zipped in (middle, LOCAL + middle + ENTRY + after, middle + END + after, ENTRY * 5 + END + middle):
        try:
            SkillArchive(zipped).check()
        except InvalidSkill:
            continue
        raise AssertionError("it has no manifest")
