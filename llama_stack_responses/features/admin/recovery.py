"""The command `recover`."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from itertools import batched
from pathlib import Path
from typing import Final

from ...commands.command_error import CommandError
from ...commands.interrupts import end_in_order
from ...commands.progress import ProgressLine
from ...commands.tables import print_fields
from ...core.errors import ApiError
from ...logs import print_no_lines
from ...store.sqlite import SqliteRecords
from ...store.sqlite_recovery import DamagedFile
from .new_file import refuse_existing

_COMMIT_ROWS: Final = 50


def recover(arguments: Namespace) -> None:
    """Run `recover`: write the rows of a damaged SQLite file that can be read to a new one."""
    target: Path = arguments.new
    refuse_existing(target)
    partial = target.with_name(f"{target.name}.partial")
    print_no_lines()
    end_in_order()
    try:
        with DamagedFile(arguments.file) as damaged:
            rows = asyncio.run(_copy(damaged, partial))
        if not rows:
            raise CommandError(f"{arguments.file} has no rows of a response store that can be read.")
        partial.rename(target)
    except ApiError as error:
        raise CommandError(error.message) from error
    finally:
        partial.unlink(missing_ok=True)
    lost = max(damaged.listed - rows, 0)
    fields = {"file": str(target), "rows": rows, "lost rows": lost, "unreadable pages and rows": damaged.unreadable}
    print_fields(fields, as_json=arguments.json)


async def _copy(damaged: DamagedFile, target: Path) -> int:
    # With a clock of its own: no other process opens this file, so it needs no file that they would share.
    records, written = SqliteRecords(target, clock=time.time), 0
    try:
        with ProgressLine("rows saved") as progress:
            for some in batched(damaged.rows(), _COMMIT_ROWS):
                await records.commit(some)
                written += len(some)
                progress.add(len(some))
    finally:
        await records.close()
    return written
