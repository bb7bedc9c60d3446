"""The commands `backup` and `restore`."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO, Final

from ..config import ResponsesConfig
from ..store.backup_file import BackupWriter, read_backup
from ..store.records import Ensure, Put, Records, Snapshots
from .commands import with_store
from .failure import Failure
from .tables import print_fields

_ROWS: Final = 200
_BYTES: Final = 4 * 2**20
"""Size of a commit of `restore`."""

_OWN: Final = ("p/", "se/", "u/", "z/turn")
"""Rows that servers write by themselves, also to a store without responses: leases, secrets in use and hints."""


def backup(given: Namespace) -> None:
    """Run `backup`: write all rows of the store, as they are at one moment, to a new file."""
    target: Path = given.file
    partial = target.with_name(f"{target.name}.partial")

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not isinstance(records, Snapshots):
            raise Failure("This store cannot be backed up.")
        with _created(partial) as file:
            writer = BackupWriter(file)
            async with aclosing(records.snapshot()) as batches:
                async for rows in batches:
                    for row in rows:
                        writer.add(row)
            writer.end()
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        # A file under the final name is always complete.
        partial.rename(target)
        print_fields({"file": str(target), "rows": writer.rows, "bytes": size}, as_json=given.json)

    if target.exists():
        raise Failure(f"{target} is already there: choose another name.", 2)
    try:
        with_store(given.config, work)
    except OSError as error:
        raise Failure(f"Cannot write {partial}: {error.strerror or error}.") from error


def _created(path: Path) -> BinaryIO:
    """Open an empty file that only this user may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")


def restore(given: Namespace) -> None:
    """Run `restore`: write the rows of a backup to an empty store, or with `--merge` those that are missing."""

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not given.merge and await _has_rows(records):
            raise Failure("The store is not empty: name an empty one, or add the missing rows with --merge.")
        with given.file.open("rb") as file:
            for _row in read_backup(file):
                """Read to the end, so that nothing is written from a damaged file."""
            file.seek(0)
            now, written = await records.now(), 0
            live = (row for row in read_backup(file) if row.expires_at is None or row.expires_at > now)
            for batch in _batches(live):
                ops = [Ensure(row.key, row.value, row.expires_at) for row in batch] if given.merge else batch
                await records.commit(ops)
                written += len(batch)
        print_fields({"file": str(given.file), "rows": written}, as_json=given.json)

    try:
        with_store(given.config, work, new=True)
    except OSError as error:
        raise Failure(f"Cannot read {given.file}: {error.strerror or error}.") from error


async def _has_rows(records: Records) -> bool:
    start = "!"
    while rows := await records.range(start, "~", limit=_ROWS, most=_BYTES):
        if any(not key.startswith(_OWN) for key, _ in rows):
            return True
        start = rows[-1][0] + "\0"
    return False


def _batches(rows: Iterable[Put]) -> Iterator[Sequence[Put]]:
    batch, size = list[Put](), 0
    for row in rows:
        batch.append(row)
        size += len(row.value)
        if len(batch) == _ROWS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
