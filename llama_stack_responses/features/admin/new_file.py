"""Files that the commands write."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from ...commands.command_error import CommandError

STANDARD_OUTPUT: Final = Path("-")


def refuse_existing(path: Path) -> None:
    """Check that a new file can have this name.

    Raises:
        CommandError: there is one.
    """
    if path.exists():
        raise CommandError(f"{path} already exists: choose another name.", 2)


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that only this user may read.

    Its name ends with `.partial` until it is complete. One that cannot be completed is deleted: a store may be on the
    same disk, which the file would keep full.

    Raises:
        CommandError: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                # That of an earlier command may have another mode.
                os.fchmod(file.fileno(), 0o600)
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.rename(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CommandError(f"Cannot write {partial}: {error.strerror or error}.") from error


@contextmanager
def standard_output() -> Iterator[BinaryIO]:
    """Write to standard output.

    Raises:
        CommandError: it is a terminal.
    """
    if sys.stdout.isatty():
        raise CommandError("Standard output is a terminal: name a file, or redirect it.", 2)
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()
