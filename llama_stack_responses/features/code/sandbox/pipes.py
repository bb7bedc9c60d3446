"""The pipes that a container's process has open (proc_pid_fd(5)).

Data in a pipe is kernel memory that counts for no process. The code cannot change a pipe's size, so the number of pipes
bounds this memory.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Final

PIPE_BYTES: Final = 16 * os.sysconf("SC_PAGE_SIZE")
"""The capacity of a pipe (pipe(7))."""

Pipe = tuple[int | str, int]
"""Device and inode of a pipe: descriptors of several processes may refer to the same pipe."""


def max_pipes(proc: int, process: str) -> int:
    """Return an upper bound for a process's open pipes that is fast to compute: the number of its descriptors.

    Args:
        proc: a descriptor of the container's /proc.
        process: the folder of the process or of one of its threads, below /proc.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is gone.
    """
    count = os.stat(f"{process}/fd", dir_fd=proc).st_size
    # Before Linux 6.2 the size of this folder is always 0.
    return count or len(_descriptors(proc, process))


def pipes(proc: int, process: str) -> set[Pipe]:
    """Return the pipes that a process has open, including named FIFOs.

    If the kernel denies access, as to root without CAP_SYS_PTRACE, each descriptor counts as a pipe.

    Raises:
        FileNotFoundError, ProcessLookupError: the process is gone.
    """
    ends = set[Pipe]()
    try:
        for name in _descriptors(proc, process):
            with suppress(FileNotFoundError):
                seen = os.stat(f"{process}/fd/{name}", dir_fd=proc)
                if stat.S_ISFIFO(seen.st_mode):
                    ends.add((seen.st_dev, seen.st_ino))
    except PermissionError:
        return {(process, number) for number in range(max_pipes(proc, process))}
    return ends


def _descriptors(proc: int, process: str) -> list[str]:
    folder = os.open(f"{process}/fd", os.O_RDONLY | os.O_DIRECTORY, dir_fd=proc)
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries]
    finally:
        os.close(folder)
