"""Child processes of a program with threads.

uvloop starts a process by a fork in which the hooks of all libraries run (`os.register_at_fork`). Those of
OpenTelemetry start threads there, and wait for a lock that is held: the child never begins, and the event loop waits
for it without end. The standard library starts a program without these hooks.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from .offloading import in_own_thread

DEVNULL: Final = subprocess.DEVNULL
PIPE: Final = subprocess.PIPE
STDOUT: Final = subprocess.STDOUT


class ChildProcess:
    """A running program. It blocks the event loop until it has begun, which takes a millisecond or two.

    Args:
        command: the program and its arguments.
        options: as `subprocess.Popen` has them.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        self._process: subprocess.Popen[bytes] = subprocess.Popen(command, **options)  # noqa: S603

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL, if it still runs."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> int:
        """Wait until it has ended, and return the exit status."""
        return await in_own_thread(self._process.wait)

    async def end(self) -> None:
        """Kill it, if it still runs, and wait until it has ended."""
        self.kill()
        await self.wait()

    async def output(self) -> bytes:
        """Return what it writes to its standard output, a pipe, until it has ended."""
        out, _ = await in_own_thread(self._process.communicate)
        return out
