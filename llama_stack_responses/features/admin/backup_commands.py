"""The commands `backup` and `restore`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Final

from ...commands.command_error import CommandError
from ...commands.opened_store import with_store
from ...commands.progress import ProgressLine
from ...commands.tables import print_fields
from ...config import ResponsesConfig
from ...core.errors import ApiError
from ...store.backup_format import BackupWriter, read_backup
from ...store.kept_secret import KEPT_SECRET
from ...store.records import Ensure, Put, Records, Snapshots
from .new_file import STANDARD_OUTPUT, new_file, refuse_existing, standard_output

_COMMIT_ROWS: Final = 200
_COMMIT_BYTES: Final = 4 * 2**20
"""Size of a commit of `restore`."""

_OWN: Final = ("p/", "se/", "sw/", KEPT_SECRET, "u/", "z/turn", "oa/", "qh/")
"""Rows that servers write by themselves, also to a store without responses: leases, secrets and hints."""


def backup(arguments: Namespace) -> None:
    """Run `backup`: write all rows of the store, as they are at one moment, to a new file or standard output."""
    target: Path = arguments.file
    piped = target == STANDARD_OUTPUT

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not isinstance(records, Snapshots):
            raise CommandError("This store cannot be backed up.")
        with standard_output() if piped else new_file(target) as file:
            writer = BackupWriter(file)
            with ProgressLine("rows saved") as progress:
                async with aclosing(records.snapshot()) as batches:
                    async for rows in batches:
                        for row in rows:
                            # The secret would open what is sealed in the backup.
                            if row.key != KEPT_SECRET:
                                writer.add(row)
                        progress.add(len(rows))
            writer.end()
        fields = {"file": str(target), "rows": writer.rows, "bytes": writer.size}
        print_fields(fields, as_json=arguments.json, file=sys.stderr if piped else None)

    if not piped:
        refuse_existing(target)
    with_store(arguments, work)


def restore(arguments: Namespace) -> None:
    """Run `restore`: write the rows of a backup to an empty store, or with `--merge` those that are missing.

    Expired rows are left out, and counted, so that the counts of both commands add up.
    """

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not arguments.merge and await _has_rows(records):
            raise CommandError(
                "The store is not empty: restore into an empty store, or add the missing rows with --merge."
            )
        now = await records.now()
        try:
            with arguments.file.open("rb") as file:
                live = (row for row in read_backup(file) if row.expires_at is None or row.expires_at > now)
                written = await _write(records, live, merge=arguments.merge)
        except BaseException:
            # Also after Ctrl-C, which is silent otherwise.
            print("The backup is only partly restored: repeat the command with --merge.", file=sys.stderr)
            raise
        fields = {"file": str(arguments.file), "rows": written, "expired": in_file - written}
        print_fields(fields, as_json=arguments.json)

    try:
        in_file = _checked(arguments.file)
        with_store(arguments, work, new=True)
    except OSError as error:
        raise CommandError(f"Cannot read {arguments.file}: {error.strerror or error}.") from error


async def _write(records: Records, rows: Iterable[Put], *, merge: bool) -> int:
    """Write rows, with `merge` only those that are missing; return how many there are."""
    written = 0
    with ProgressLine("rows restored") as progress:
        for batch in _batches(rows):
            await records.commit([Ensure(row.key, row.value, row.expires_at) for row in batch] if merge else batch)
            written += len(batch)
            progress.add(len(batch))
    return written


def _checked(path: Path) -> int:
    """Return the number of a backup's rows.

    It is read to its end, so that a damaged one makes no store, and nothing is written from it.
    """
    try:
        with path.open("rb") as file:
            return sum(1 for _ in read_backup(file))
    except ApiError as error:
        raise CommandError(error.message) from error


async def _has_rows(records: Records) -> bool:
    start = "!"
    while rows := await records.range(start, "~", limit=_COMMIT_ROWS, max_bytes=_COMMIT_BYTES):
        if any(not key.startswith(_OWN) for key, _ in rows):
            return True
        start = rows[-1][0] + "\0"
    return False


def _batches(rows: Iterable[Put]) -> Iterator[Sequence[Put]]:
    batch, size = list[Put](), 0
    for row in rows:
        batch.append(row)
        size += len(row.value)
        if len(batch) == _COMMIT_ROWS or size >= _COMMIT_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
