"""The file of a backup: all rows of a store, whichever store it is, with a checksum.

    MAGIC
    for each row:  length of the key, expiry (NaN is never), length of the value; the key; the value
    at the end:    a length of 0, the number of rows, and the BLAKE2b of everything before

The format is read by all later versions: `tests/contract/golden/` has a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from struct import Struct
from typing import BinaryIO, Final

from ..core.errors import ApiError, bad_request
from .records import Put

DAMAGED: Final = "!damaged/"
"""The prefix of rows that name what a backup lacks, since it is damaged. They are in no store."""
TAKEN: Final = "!taken/"
"""The prefix of the row with the moment of a backup, in milliseconds of the store's clock. It is in no store."""

_MAGIC: Final = b"llama-stack-responses backup 1\n"
_HEAD: Final = Struct(">HdQ")
_COUNT: Final = Struct(">Q")
_DIGEST_BYTES: Final = 32
_VALUE_BYTES: Final = 2**30
"""Maximum bytes of a value."""


class Incomplete(ApiError):  # noqa: N818 - as `ApiError`, it is an answer
    """A snapshot has yielded all rows except those of damaged objects.

    Attributes:
        lacks: the ids of the responses and conversations of which it lacks something.
    """

    def __init__(self, lacks: Sequence[str]) -> None:
        super().__init__(500, f"What is packed of these is damaged: {', '.join(lacks)}.")
        self.lacks = lacks


class BackupWriter:
    """Writes a backup.

    Args:
        file: where to write to.

    Attributes:
        rows: number of rows that were written.
        size: number of bytes that were written.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.rows = 0
        self.size = 0
        self._file = file
        self._digest = blake2b(digest_size=_DIGEST_BYTES)
        self._write(_MAGIC)

    def add(self, row: Put) -> None:
        """Write a row."""
        key = row.key.encode("ascii")
        expiry = math.nan if row.expires_at is None else row.expires_at
        self._write(_HEAD.pack(len(key), expiry, len(row.value)) + key + row.value)
        self.rows += 1

    def end(self) -> None:
        """Write the end, without which the file is not complete."""
        self._write(_HEAD.pack(0, math.nan, 0) + _COUNT.pack(self.rows))
        self._emit(self._digest.digest())

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        self._emit(data)

    def _emit(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)


def taken_at(moment: float) -> Put:
    """Return the row that says when a backup was made, in seconds since the epoch."""
    return Put(f"{TAKEN}{int(moment * 1000):015d}", b"")


def read_backup(file: BinaryIO) -> Iterator[Put]:
    """Yield the rows of a backup; memory holds one at a time.

    Raises:
        ApiError: 400, the file is not a backup, or damaged, or not complete. Rows before the damage were yielded.
    """
    digest = blake2b(digest_size=_DIGEST_BYTES)

    def read(size: int) -> bytes:
        data = file.read(size)
        if len(data) != size:
            raise bad_request("The backup is not complete: it ends in the middle.")
        digest.update(data)
        return data

    if file.read(len(_MAGIC)) != _MAGIC:
        raise bad_request("The file is not a backup, or is from a newer version of this software.")
    digest.update(_MAGIC)
    rows = 0
    while True:
        key_bytes, expiry, value_bytes = _HEAD.unpack(read(_HEAD.size))
        if key_bytes == 0:
            break
        if value_bytes > _VALUE_BYTES:
            raise bad_request("The backup is damaged.")
        key = read(key_bytes).decode("ascii", "replace")
        yield Put(key, read(value_bytes), None if math.isnan(expiry) else expiry)
        rows += 1
    [count] = _COUNT.unpack(read(_COUNT.size))
    if count != rows or file.read() != digest.digest():
        raise bad_request("The backup is damaged: its checksum is wrong.")
