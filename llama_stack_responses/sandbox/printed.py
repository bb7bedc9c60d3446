"""What the code of a container prints, read from a pipe as it comes."""

from __future__ import annotations

import asyncio
import os
from typing import Final

_READS: Final = 4
_READ_BYTES: Final = 2**16
"""Reads at a time, and the size of each, so that a flood holds up nothing else. A pipe holds no more than one."""


class Printed:
    """The first bytes of what is printed are kept, and the rest is counted.

    Attributes:
        inlet: the pipe's end that the container writes to.
    """

    def __init__(self) -> None:
        self._pipe, self.inlet = os.pipe()
        self._most = 0
        self._kept = bytearray()
        self._count = 0
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._drain)

    def begin(self, most: int) -> None:
        """Keeps up to `most` bytes of what comes from now on."""
        self._drain()
        self._most, self._kept, self._count = most, bytearray(), 0

    def end(self) -> str:
        """What was kept since `begin`, and how much was not."""
        self._drain()
        text, left = self._kept.decode(errors="replace"), self._count - len(self._kept)
        self._most = 0
        return f"{text}\n... ({left} more bytes)" if left else text

    def close(self) -> None:
        """Reads no more."""
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _drain(self) -> None:
        for _ in range(_READS):
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._pipe)
                return
            self._count += len(data)
            self._kept += data[: max(0, self._most - len(self._kept))]
