"""Files of `/proc` about processes that may end at any time."""

from __future__ import annotations

from pathlib import Path


def read(path: Path) -> str:
    """Return a file, and nothing if its process or thread has ended, also since the file was opened."""
    try:
        return path.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def has_ended(pid: int) -> bool:
    """Return whether a process has ended: it is missing or a zombie."""
    return read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[:1] in ([], ["Z"])


def children_of(pid: int, module: str) -> list[int]:
    """Return the processes that threads of a process have started, and that run a module."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in read(thread).split()]
    return [child for child in children if module in read(Path(f"/proc/{child}/cmdline"))]
