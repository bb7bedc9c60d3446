"""The commands `backup` and `restore`."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import Final

from ...commands.command_error import CommandError
from ...commands.opened_store import with_store
from ...commands.progress import ProgressLine
from ...commands.tables import print_fields
from ...config import ResponsesConfig
from ...core.errors import ApiError
from ...store.backup_format import DAMAGED, BackupWriter, Incomplete, read_backup, taken_at
from ...store.backup_index import BackupIndex
from ...store.kept_secret import KEPT_SECRET
from ...store.records import Put, Records, Snapshots
from .new_file import STANDARD_OUTPUT, new_file, refuse_existing, standard_output
from .restoring import OWN, PHASES, Manner, Restoring

_PAGE_ROWS: Final = 200
_PAGE_BYTES: Final = 4 * 2**20
"""Size of a read of the store."""


def backup(arguments: Namespace) -> None:
    """Run `backup`: write all rows of the store, as they are at one moment, to a new file or standard output."""
    target: Path = arguments.file
    piped = target == STANDARD_OUTPUT

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not isinstance(records, Snapshots):
            raise CommandError("This store cannot be backed up.")
        with standard_output() if piped else new_file(target) as file:
            writer = BackupWriter(file)
            moment = await records.now()
            lacks, rows = await _write_all(records, writer), writer.rows
            for each in lacks:
                writer.add(Put(f"{DAMAGED}{each}", b""))
            writer.add(taken_at(moment))
            writer.end()
        fields = {"file": str(target), "rows": rows, "bytes": writer.size}
        print_fields(fields, as_json=arguments.json, file=sys.stderr if piped else None)
        if lacks:
            names = ", ".join(lacks)
            raise CommandError(f"The backup has all but what is damaged or missing in the object store of: {names}.")

    if not piped:
        refuse_existing(target)
    with_store(arguments, work)


async def _write_all(records: Snapshots, writer: BackupWriter) -> Sequence[str]:
    """Write all rows; return the ids of the responses and conversations of which damaged content is missing."""
    with ProgressLine("rows saved") as progress:
        try:
            async with aclosing(records.snapshot()) as batches:
                async for rows in batches:
                    for row in rows:
                        # The secret would open what is sealed in the backup.
                        if row.key != KEPT_SECRET:
                            writer.add(row)
                    progress.add(len(rows))
        except Incomplete as error:
            return error.lacks
    return []


def restore(arguments: Namespace) -> None:
    """Run `restore`: write a backup to an empty store, or to one in use, as the options say (`restoring.py`).

    Expired rows are left out, and counted, so that the counts of both commands add up.
    """
    manner = Manner(
        arguments.merge or arguments.live or arguments.since is not None, bool(arguments.since), arguments.live
    )

    async def work(records: Records, _: ResponsesConfig) -> None:
        if not manner.adds and await _has_rows(records):
            raise CommandError(
                "The store is not empty: restore into an empty store, or add the missing rows with --merge."
            )
        restoring = Restoring(records, index, manner)
        try:
            with ProgressLine("rows restored") as progress:
                counts = await restoring.run(progress)
        except BaseException:
            # Also after Ctrl-C, which is silent otherwise.
            again = "repeat the command" if manner.moves else "repeat the command with --merge"
            if restoring.has_begun:
                print(f"The backup is only partly restored: {again}.", file=sys.stderr)
            raise
        more = ("left", "changed", "deleted", "kept") if manner.moves else ()
        fields = {name: value for name, value in asdict(counts).items() if name in ("rows", "expired", *more)}
        print_fields({"file": str(arguments.file), **fields}, as_json=arguments.json)

    try:
        with arguments.file.open("rb") as file, BackupIndex(file) as index:
            _read(index, arguments.since)
            with_store(arguments, work, new=True)
    except OSError as error:
        raise CommandError(f"Cannot read {error.filename or arguments.file}: {error.strerror or error}.") from error


def _read(index: BackupIndex, since: Path | None) -> None:
    """Read a backup, and an earlier one, to their ends, so that damaged ones make no store and write nothing."""
    try:
        if since is not None:
            with since.open("rb") as earlier:
                index.add_earlier(read_backup(earlier))
        index.read(PHASES)
        if since is not None and (lacks := index.lacks()):
            raise CommandError(
                f"The backup lacks what was damaged of {', '.join(lacks)}, which --since would delete: repair or "
                "delete them there, and make another backup."
            )
        if since is not None and not index.is_later():
            raise CommandError(
                "The backup of --since is not the earlier one: name the later backup first, and the earlier one with "
                "--since."
            )
    except ApiError as error:
        raise CommandError(error.message) from error


async def _has_rows(records: Records) -> bool:
    start = "!"
    while rows := await records.range(start, "~", limit=_PAGE_ROWS, max_bytes=_PAGE_BYTES):
        if any(not key.startswith(OWN) for key, _ in rows):
            return True
        start = rows[-1][0] + "\0"
    return False
