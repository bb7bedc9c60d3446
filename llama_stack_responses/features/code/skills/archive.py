"""The zip archive of a skill.

It comes from a client and is not trusted. All headers are checked before any content is read, and only files of the
plain format are accepted: no zip64, no encryption, no links. What a file decompresses to is bounded by its declared
size, which is bounded itself. The functions block.

The module `zipfile` is not used: it builds an object for each entry, of which there may be a million, before the first
one can be checked, and it accepts zip64 and data before the archive, so that a check ahead of it may see another list.
"""

from __future__ import annotations

import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from struct import Struct
from typing import Final

MANIFEST: Final = "SKILL.md"
"""The file that describes a skill to the model."""

MAX_SKILL_BYTES: Final = 64 * 2**20
"""Maximum size of the uncompressed files of all skills of one container."""

_MAX_FILES: Final = 500
_MAX_ENTRIES: Final = 2_000
"""Maximum number of entries, including folders and what macOS adds."""
_MAX_FILE_BYTES: Final = 25 * 2**20
_MAX_DEPTH: Final = 16
_MAX_PATH_BYTES: Final = 512
_MAX_NAME_BYTES: Final = 255
_MAX_DIRECTORY_BYTES: Final = 2**20
_MAX_COMMENT_BYTES: Final = 2**16 - 1

_END: Final = Struct("<4s4H2LH")
_ENTRY: Final = Struct("<4s6H3L5H2L")
_LOCAL: Final = Struct("<4s5H3L2H")
_END_MARK: Final = b"PK\x05\x06"
_ENTRY_MARK: Final = b"PK\x01\x02"
_LOCAL_MARK: Final = b"PK\x03\x04"

_ENCRYPTED: Final = 1 << 0 | 1 << 6 | 1 << 13
_STORED, _DEFLATED = 0, 8
_ZIP64_LONG: Final = 2**32 - 1
_ZIP64_SHORT: Final = 2**16 - 1

_APPLE: Final = "__MACOSX"
"""The folder in which macOS puts the attributes of the archived files."""


class InvalidSkill(Exception):  # noqa: N818
    """A skill cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class SkillFile:
    """A file of a skill.

    Attributes:
        path: its path in the skill's folder.
        bytes: its uncompressed size.
        executable: whether its owner may execute it.
        begin: where its content begins in the archive.
        end: where its content ends there.
        deflated: whether its content is compressed.
        checksum: the CRC-32 of its uncompressed content.
    """

    path: str
    bytes: int
    executable: bool
    begin: int
    end: int
    deflated: bool
    checksum: int


class SkillArchive:
    """The files of a skill. Their content is not checked before it is read.

    Args:
        archive: the zip archive.

    Attributes:
        files: all files; one at the top is `MANIFEST`.
        bytes: their uncompressed size.

    Raises:
        InvalidSkill: it is not a zip archive that this server accepts.
    """

    def __init__(self, archive: bytes | bytearray) -> None:
        self._archive = archive
        self.files = _at_top(list(_files(archive)))
        self.bytes = sum(file.bytes for file in self.files)
        check_size(self.bytes)

    @property
    def folders(self) -> int:
        """The number of folders in the skill's folder."""
        return len({folder for file in self.files for folder in _parents(file.path)})

    def read(self, file: SkillFile) -> bytes:
        """Return the content of a file.

        Raises:
            InvalidSkill: it is damaged.
        """
        packed = memoryview(self._archive)[file.begin : file.end]
        content = _inflated(packed, file) if file.deflated else bytes(packed)
        if len(content) != file.bytes or zlib.crc32(content) != file.checksum:
            raise _damaged(file)
        return content

    def check(self) -> None:
        """Read all files.

        Raises:
            InvalidSkill: one is damaged.
        """
        for file in self.files:
            self.read(file)


def check_size(size: int) -> None:
    """Raise `InvalidSkill` if this uncompressed size is too large for the skills of one container."""
    if size > MAX_SKILL_BYTES:
        raise InvalidSkill(f"The files of all skills may have {MAX_SKILL_BYTES // 2**20} MiB.")


def _inflated(packed: memoryview, file: SkillFile) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        inflated = inflater.decompress(packed, file.bytes + 1)
    except zlib.error:
        raise _damaged(file) from None
    if not inflater.eof or inflater.unused_data:
        raise _damaged(file)
    return inflated


def _damaged(file: SkillFile) -> InvalidSkill:
    return InvalidSkill(f"The content of its file '{file.path}' does not match its size and checksum.")


def _files(archive: bytes | bytearray) -> Iterator[SkillFile]:
    """Yield the files of an archive, with their paths in it."""
    begin, count = _directory(archive)
    spans = list[tuple[int, int]]()
    offset = begin
    for _ in range(count):
        offset, file, span = _entry(archive, offset, begin)
        spans.append(span)
        if file and not file.path.startswith(f"{_APPLE}/"):
            yield file
    spans.sort()
    if any(after[0] < before[1] for before, after in pairwise(spans)):
        raise InvalidSkill("Entries of its zip archive overlap.")


def _directory(archive: bytes | bytearray) -> tuple[int, int]:
    """Return where the list of entries begins, and the number of entries."""
    at = archive.rfind(_END_MARK, max(0, len(archive) - _END.size - _MAX_COMMENT_BYTES))
    if at < 0 or at + _END.size > len(archive):
        raise InvalidSkill("Its data is not a zip archive.")
    _, disk, first_disk, on_disk, count, size, begin, comment = _END.unpack_from(archive, at)
    if _ZIP64_SHORT in (count, on_disk) or _ZIP64_LONG in (size, begin):
        raise _zip64()
    if disk or first_disk or on_disk != count:
        raise InvalidSkill("Its zip archive has several parts.")
    if count > _MAX_ENTRIES or size > _MAX_DIRECTORY_BYTES:
        raise _too_many()
    if begin + size != at or at + _END.size + comment != len(archive):
        raise _inconsistent()
    return begin, count


def _entry(archive: bytes | bytearray, at: int, end: int) -> tuple[int, SkillFile | None, tuple[int, int]]:
    """Read an entry of the list.

    Returns:
        Where the next one begins, the file, if it is one, and where the entry's part of the archive begins and ends.
    """
    if at + _ENTRY.size > len(archive):
        raise _inconsistent()
    fields = _ENTRY.unpack_from(archive, at)
    mark, _, _, flags, method, _, _, checksum, packed, size = fields[:10]
    name_bytes, extra, comment, _, _, attributes, offset = fields[10:]
    after = at + _ENTRY.size
    raw = archive[after : after + name_bytes]
    if mark != _ENTRY_MARK or len(raw) != name_bytes:
        raise _inconsistent()
    if _ZIP64_LONG in (packed, size, offset):
        raise _zip64()
    path, is_folder = _path(raw)
    _check_kind(path, flags, method, attributes >> 16)
    if size > _MAX_FILE_BYTES:
        raise InvalidSkill(f"Its file '{path}' has more than {_MAX_FILE_BYTES // 2**20} MiB.")
    begin = _content(archive, offset, raw)
    if begin + packed > end or (is_folder and size):
        raise _inconsistent()
    executable = bool(attributes >> 16 & stat.S_IXUSR)
    file = SkillFile(path, size, executable, begin, begin + packed, method == _DEFLATED, checksum)
    return after + name_bytes + extra + comment, None if is_folder else file, (offset, begin + packed)


def _content(archive: bytes | bytearray, at: int, name: bytes | bytearray) -> int:
    """Return where the content of an entry begins, after the header that precedes it."""
    if at + _LOCAL.size > len(archive):
        raise _inconsistent()
    mark, *_, name_bytes, extra = _LOCAL.unpack_from(archive, at)
    after = at + _LOCAL.size
    if mark != _LOCAL_MARK or archive[after : after + name_bytes] != name:
        raise _inconsistent()
    begin: int = after + name_bytes + extra
    return begin


def _path(raw: bytes | bytearray) -> tuple[str, bool]:
    """Return the path of an entry, and whether it is a folder."""
    try:
        path = raw.decode()
    except UnicodeDecodeError:
        raise InvalidSkill("A file name in its zip archive is not UTF-8.") from None
    parts = path.removesuffix("/").split("/")
    if not path.isprintable() or "\\" in path or {"", ".", ".."} & set(parts):
        raise InvalidSkill(
            f"The path {path[:_MAX_NAME_BYTES]!r} in its zip archive is not a relative path of printable names, "
            "separated by '/' and without '..'."
        )
    too_long = len(raw) > _MAX_PATH_BYTES or any(len(part.encode()) > _MAX_NAME_BYTES for part in parts)
    if too_long or len(parts) > _MAX_DEPTH:
        raise InvalidSkill(
            f"A path in its zip archive is longer than {_MAX_PATH_BYTES} bytes, has a name of more than "
            f"{_MAX_NAME_BYTES}, or is more than {_MAX_DEPTH} levels deep."
        )
    return "/".join(parts), path.endswith("/")


def _check_kind(path: str, flags: int, method: int, mode: int) -> None:
    if flags & _ENCRYPTED:
        raise InvalidSkill(f"Its file '{path}' is encrypted.")
    if method not in (_STORED, _DEFLATED):
        raise InvalidSkill(f"Its file '{path}' is compressed by another method than deflate.")
    if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise InvalidSkill(f"'{path}' in its zip archive is a link or a device.")


def _at_top(files: Sequence[SkillFile]) -> list[SkillFile]:
    """Return the files with paths in the skill's folder, which may be the single folder at the top of the archive."""
    if len(files) > _MAX_FILES:
        raise _too_many()
    tops = {file.path.partition("/")[0] for file in files}
    if len(tops) == 1 and all("/" in file.path for file in files):
        files = [replace(file, path=file.path.partition("/")[2]) for file in files]
    manifests = [file for file in files if file.path.lower() == MANIFEST.lower()]
    if len(manifests) != 1:
        raise InvalidSkill(
            f"Its zip archive must have one file '{MANIFEST}', at the top or in the single folder at the top."
        )
    files = [replace(file, path=MANIFEST) if file in manifests else file for file in files]
    _check_distinct([file.path for file in files])
    return list(files)


def _check_distinct(paths: Sequence[str]) -> None:
    """Raise unless each path is a file or a folder, and each file is there once."""
    known = set(paths)
    if len(known) < len(paths) or any(folder in known for path in paths for folder in _parents(path)):
        raise InvalidSkill("Two entries of its zip archive have the same path.")


def _parents(path: str) -> Iterator[str]:
    parts = path.split("/")[:-1]
    return ("/".join(parts[: number + 1]) for number in range(len(parts)))


def _inconsistent() -> InvalidSkill:
    return InvalidSkill("The headers of its zip archive are damaged.")


def _too_many() -> InvalidSkill:
    return InvalidSkill(f"Its zip archive has more than {_MAX_FILES} files, or {_MAX_ENTRIES} entries.")


def _zip64() -> InvalidSkill:
    return InvalidSkill("Its zip archive has the format zip64.")
