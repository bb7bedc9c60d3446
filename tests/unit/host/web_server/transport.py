"""A transport in memory, for uvicorn's protocols."""

import asyncio


class MemoryTransport(asyncio.Transport):
    """Records whether it reads and is closed. Subclasses record what is written.

    Attributes:
        reads: whether reading is not paused.
        closed: whether it was closed or aborted.
        written: what was written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reads = True
        self.closed = False
        self.written = b""

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True
