"""Files as answers, sent in blocks that a thread reads at the speed of the client."""

from __future__ import annotations

import asyncio
from typing import IO

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...concurrency.offloading import in_thread
from ...core.json_blocks import BLOCK_BYTES
from ...wire.disconnects import gone
from ...wire.request_cycle import cycle_of


class FileInBlocks(Response):
    """Sends an open file and closes it. The file may be renamed or deleted meanwhile.

    Args:
        file: an open file, read from its beginning.
        size: number of bytes to send. If the file has become shorter, the connection is broken off.
        headers: additional headers of the answer.
    """

    media_type = "application/octet-stream"

    def __init__(self, file: IO[bytes], size: int, headers: dict[str, str]) -> None:
        super().__init__(headers=headers | {"content-length": str(size)})
        self._file = file
        self._size = size

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(gone(receive))
        left = self._size
        try:
            with self._file as file:
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                while left and not leaving.done():
                    block = await in_thread(file.read, min(BLOCK_BYTES, left))
                    if not block:
                        cycle_of(scope).abort_connection()
                        return
                    left -= len(block)
                    await send({"type": "http.response.body", "body": block, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        finally:
            leaving.cancel()
