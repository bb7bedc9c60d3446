"""Reads the rows of a damaged SQLite file, page by page.

SQLite stops at the first damaged page that leads to others, and does not open a file with a damaged header. This reads
every page by itself, as the file format describes it (https://www.sqlite.org/fileformat.html): from the WAL, if it has
a newer one. Pages that were freed are left out, since they hold what was deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from struct import Struct, error, iter_unpack, unpack_from
from types import TracebackType
from typing import Any, BinaryIO, Final, Self

from .records import Put

_MAGIC: Final = b"SQLite format 3\0"
_PAGE_SIZES: Final = [2**power for power in range(9, 17)]
_DEFAULT_PAGE_BYTES: Final = 4096
_HEADER_BYTES: Final = 100
_WAL_HEADER: Final = Struct(">8I")
_FRAME_HEADER: Final = Struct(">6I")
_WAL_MAGIC: Final = (0x377F0682, 0x377F0683)
_PENDING_BYTE: Final = 2**30
_LEAF, _INDEX_LEAF, _INDEX_INTERIOR, _INTERIOR = 0x0D, 0x0A, 0x02, 0x05
_FREE, _OVERFLOW, _FURTHER_OVERFLOW = 2, 3, 4
"""Kinds of pages in a pointer map. A page of a tree has 1, if it is the root, or 5."""
_INTEGER_BYTES: Final = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}
_LONGEST_VALUE: Final = 2**30
_COLUMNS: Final = 5

type _Columns = Sequence[Any]


class _Damaged(Exception):  # noqa: N818 - what it names
    """A cell cannot be read."""


class DamagedFile:
    """An SQLite file of `SqliteRecords`, which no server uses.

    Attributes:
        unreadable: number of pages of a tree, and of rows, that could not be read. It is complete after `rows`.
        listed: number of keys in the index of the keys. A key without its row is lost.
    """

    def __init__(self, path: Path) -> None:
        self.unreadable = 0
        self.listed = 0
        self._file: BinaryIO = path.open("rb")
        header = self._file.read(_HEADER_BYTES)
        self._page_bytes, self._usable = _sizes(header)
        self._pages = path.stat().st_size // self._page_bytes
        self._wal: BinaryIO | None = None
        self._in_wal: dict[int, int] = {}
        with suppress(FileNotFoundError):
            self._wal = path.with_name(f"{path.name}-wal").open("rb")
            self._in_wal = _newest_frames(self._wal, self._page_bytes)
        self._pages = max(self._pages, *self._in_wal, 0)
        self._map: tuple[int, bytes] = (0, b"")
        self._free = self._free_pages()

    def __enter__(self) -> Self:
        """Return this file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close it."""
        self._file.close()
        if self._wal:
            self._wal.close()

    def rows(self) -> Iterator[Put]:
        """Yield all rows that can be read."""
        for number in range(1, self._pages + 1):
            if number in self._free or self._is_map(number):
                continue
            kind = self._kind(number)
            if kind in (_FREE, _OVERFLOW, _FURTHER_OVERFLOW):
                continue
            yield from self._rows_of(number)

    def _rows_of(self, number: int) -> Iterator[Put]:
        page = self._page(number)
        start = _HEADER_BYTES if number == 1 else 0
        what = page[start] if len(page) > start else None
        if what == _LEAF:
            for cell in self._cells(page, start + 8, start):
                columns = self._columns(number, page, cell, has_row_id=True)
                if columns and (row := _row(columns)):
                    yield row
        elif what in (_INDEX_LEAF, _INDEX_INTERIOR):
            skipped = 4 if what == _INDEX_INTERIOR else 0
            for cell in self._cells(page, start + 8 + skipped, start):
                columns = self._columns(number, page, cell + skipped, has_row_id=False)
                self.listed += bool(columns) and len(columns) == 2 and isinstance(columns[0], str)
        elif what != _INTERIOR and number != self._pending:
            self.unreadable += 1

    def _cells(self, page: bytes, at: int, start: int) -> list[int]:
        [count] = unpack_from(">H", page, start + 3)
        with suppress(error):
            return list(unpack_from(f">{count}H", page, at))
        self.unreadable += 1
        return []

    def _columns(self, number: int, page: bytes, cell: int, *, has_row_id: bool) -> _Columns:
        """Return the columns of a cell; empty if it cannot be read."""
        try:
            size, at = _varint(page, cell)
            if has_row_id:
                _, at = _varint(page, at)
            return _decoded(self._payload(number, page, at, size, is_table=has_row_id))
        except (_Damaged, IndexError, UnicodeDecodeError, error):
            self.unreadable += 1
            return ()

    def _payload(self, number: int, page: bytes, at: int, size: int, *, is_table: bool) -> bytes:
        if size > _LONGEST_VALUE:
            raise _Damaged
        usable = self._usable
        least = (usable - 12) * 32 // 255 - 23
        most = usable - 35 if is_table else (usable - 12) * 64 // 255 - 23
        if size <= most:
            local = size
        else:
            local = least + (size - least) % (usable - 4)
            local = local if local <= most else least
        payload = [page[at : at + local]]
        left = size - local
        if left:
            [following] = unpack_from(">I", page, at + local)
            payload += self._overflow(number, following, left)
        content = b"".join(payload)
        if len(content) != size:
            raise _Damaged
        return content

    def _overflow(self, before: int, number: int, left: int) -> Iterator[bytes]:
        """Yield the contents of a chain of overflow pages, each of which names the next and is mapped to the last."""
        kind = _OVERFLOW
        while left > 0:
            mapped = self._mapped(number)
            if not 1 < number <= self._pages or (mapped and mapped != (kind, before)):
                raise _Damaged
            page = self._page(number)
            yield page[4 : 4 + min(left, self._usable - 4)]
            left -= self._usable - 4
            before, kind = number, _FURTHER_OVERFLOW
            [number] = unpack_from(">I", page)
        if number:
            raise _Damaged

    @property
    def _pending(self) -> int:
        """The page that SQLite never uses."""
        return _PENDING_BYTE // self._page_bytes + 1

    def _map_of(self, number: int) -> int:
        """Return the page with the kind of this page, in a file with pointer maps, as all of `SqliteRecords` are."""
        per_map = self._usable // 5 + 1
        found = (number - 2) // per_map * per_map + 2
        return found + (found == self._pending)

    def _is_map(self, number: int) -> bool:
        return number > 1 and self._map_of(number) == number

    def _mapped(self, number: int) -> tuple[int, int] | None:
        """Return the kind of a page and the page that leads to it; None if the map is damaged."""
        if number < 2:
            return None
        of = self._map_of(number)
        if self._map[0] != of:
            self._map = of, self._page(of)
        with suppress(error):
            kind, leading = unpack_from(">BI", self._map[1], 5 * (number - of - 1))
            return (kind, leading) if 0 < kind <= 5 else None
        return None

    def _kind(self, number: int) -> int | None:
        mapped = self._mapped(number)
        return mapped[0] if mapped else None

    def _free_pages(self) -> set[int]:
        """Return the pages of the list of free pages, as far as it can be read."""
        free: set[int] = set()
        with suppress(error):
            [trunk] = unpack_from(">I", self._page(1), 32)
            while 1 < trunk <= self._pages and trunk not in free:
                free.add(trunk)
                following, count = unpack_from(">II", page := self._page(trunk))
                free.update(unpack_from(f">{min(count, self._usable // 4 - 2)}I", page, 8))
                trunk = following
        return free

    def _page(self, number: int) -> bytes:
        """Return a page, the newest version of it."""
        at = self._in_wal.get(number)
        if at is not None and self._wal:
            self._wal.seek(at)
            return self._wal.read(self._page_bytes)
        self._file.seek((number - 1) * self._page_bytes)
        return self._file.read(self._page_bytes)


def _sizes(header: bytes) -> tuple[int, int]:
    """Return the bytes of a page, and those that are used."""
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        return _DEFAULT_PAGE_BYTES, _DEFAULT_PAGE_BYTES
    size, reserved = unpack_from(">H", header, 16)[0], header[20]
    size = 65536 if size == 1 else size
    return (size, size - reserved) if size in _PAGE_SIZES else (_DEFAULT_PAGE_BYTES, _DEFAULT_PAGE_BYTES)


def _newest_frames(wal: BinaryIO, page_bytes: int) -> dict[int, int]:
    """Return where the WAL has the newest committed version of a page, by its number; it ends at a damaged frame."""
    head = wal.read(_WAL_HEADER.size)
    if len(head) < _WAL_HEADER.size:
        return {}
    magic, _, size, _, *salts, _, _ = _WAL_HEADER.unpack(head)
    if magic not in _WAL_MAGIC or size != page_bytes:
        return {}
    order = ">" if magic & 1 else "<"
    sums = _checksum(order, head[:24], (0, 0))
    committed: dict[int, int] = {}
    pending: dict[int, int] = {}
    while len(frame := wal.read(_FRAME_HEADER.size)) == _FRAME_HEADER.size:
        number, ends, *of_frame, first, second = _FRAME_HEADER.unpack(frame)
        at = wal.tell()
        page = wal.read(page_bytes)
        sums = _checksum(order, frame[:8] + page, sums)
        if of_frame != salts or sums != (first, second) or len(page) < page_bytes:
            break
        pending[number] = at
        if ends:
            committed |= pending
            pending.clear()
    return committed


def _checksum(order: str, data: bytes, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    for one, other in iter_unpack(f"{order}II", data[: len(data) // 8 * 8]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of one to nine bytes, and where it ends."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _decoded(payload: bytes) -> list[Any]:
    """Return the columns of a record; an integer column of a table that is its row id is None."""
    end, at = _varint(payload, 0)
    content, columns = end, list[Any]()
    while at < end:
        kind, at = _varint(payload, at)
        if len(columns) == _COLUMNS:
            raise _Damaged
        value, content = _value(payload, kind, content)
        columns.append(value)
    if content != len(payload):
        raise _Damaged
    return columns


def _value(payload: bytes, kind: int, at: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind == 7:
        return unpack_from(">d", payload, at)[0], at + 8
    if size := _INTEGER_BYTES.get(kind):
        return int.from_bytes(payload[at : at + size], signed=True), at + size
    if kind < 12:
        raise _Damaged
    size = (kind - 12) // 2
    if at + size > len(payload):
        raise _Damaged
    value = payload[at : at + size]
    return (value.decode("ascii") if kind % 2 else value), at + size


def _row(columns: _Columns) -> Put | None:
    """Return the row of the table `records` with these columns; None if they are of another table."""
    match columns:
        case [None, str(key), int(), None | float() | int() as expires_at, bytes(value)] if key:
            return Put(key, value, expires_at)
    return None
