"""A search for damage in an SQLite file."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from ..concurrency.child_process import DEVNULL, PIPE, ChildProcess
from ..logs import get_logger

logger = get_logger(__name__)

INSPECTION_SECONDS: Final = 60.0
"""Time limit. A disk that reads 100 MB a second inspects a file of 6 GB in it."""

_DAMAGES: Final = 3
_SHOWN_CHARACTERS: Final = 500

# SQLite does not stop within its check, however long it takes: only a process can be ended.
_PROGRAM: Final = f"""
import sqlite3, sys
from pathlib import Path
connection = sqlite3.connect(f"{{Path(sys.argv[1]).absolute().as_uri()}}?mode=ro", uri=True, timeout=5)
try:
    print(*(row[0] for row in connection.execute("PRAGMA quick_check({_DAMAGES})")), sep="; ")
except sqlite3.DatabaseError as error:
    found = getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
    print(error if found else "ok")
"""


async def inspect(path: Path, seconds: float = INSPECTION_SECONDS) -> str:
    """Return what SQLite finds damaged in the pages of a file; empty if nothing, or if it does not end in time.

    The values themselves have no checksums in SQLite.
    """
    command = (sys.executable, "-I", "-S", "-c", _PROGRAM, str(path))
    process = ChildProcess(command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    try:
        async with asyncio.timeout(seconds):
            out = await process.output()
    except TimeoutError:
        logger.info("inspected only a part of the response store's file within %g seconds: %s", seconds, path)
        return ""
    finally:
        await process.end()
    found = " ".join(out.decode(errors="replace").split())
    return "" if found in ("", "ok") else found[:_SHOWN_CHARACTERS]
