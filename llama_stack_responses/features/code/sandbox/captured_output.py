"""The output of a container's code, read from a pipe as it arrives."""

from __future__ import annotations

import asyncio
import os
from typing import Final

_READS_PER_BATCH: Final = 4
_READ_BYTES: Final = 2**16
"""Reads per event, and the size of each: a flood of output must not block the event loop. One read empties a pipe."""


class CapturedOutput:
    """A buffer that keeps the first bytes of the output, and counts the rest.

    Attributes:
        inlet: the write end of the pipe, for the container.
    """

    def __init__(self) -> None:
        self._pipe, self.inlet = os.pipe()
        self._max_bytes = 0
        self._kept = bytearray()
        self._count = 0
        os.set_blocking(self._pipe, False)
        asyncio.get_running_loop().add_reader(self._pipe, self._drain)

    def begin(self, max_bytes: int) -> None:
        """Keep up to `max_bytes` of the output from now on."""
        self._drain()
        self._max_bytes, self._kept, self._count = max_bytes, bytearray(), 0

    def end(self) -> str:
        """Return the output kept since `begin`, and the number of bytes dropped."""
        self._drain()
        text, left = self._kept.decode(errors="replace"), self._count - len(self._kept)
        self._max_bytes = 0
        return f"{text}\n... ({left} more bytes)" if left else text

    def close(self) -> None:
        """Stop reading."""
        asyncio.get_running_loop().remove_reader(self._pipe)
        os.close(self._pipe)

    def _drain(self) -> None:
        for _ in range(_READS_PER_BATCH):
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                asyncio.get_running_loop().remove_reader(self._pipe)
                return
            self._count += len(data)
            self._kept += data[: max(0, self._max_bytes - len(self._kept))]
