"""A web framework that passes the bytes of an answer on unread: the cost of uvicorn and FastAPI alone.

python -m benchmarks.framework PORT       # of the model server; prints `listening PORT`

It has none of what a Responses API does: no conversion, no events, no store, no middlewares, no log lines. It is what
the host's web server and framework leave for all of that.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from typing import Final

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

_END: Final = b"\r\n0\r\n\r\n"
_READ_BYTES: Final = 65_536


def application(port: int) -> FastAPI:
    """Return an application that passes chat completions of a model server on this port on."""
    app = FastAPI()

    @app.post("/v1/chat/completions")
    async def pass_on(request: Request) -> StreamingResponse:
        body = await request.body()
        return StreamingResponse(_answer(port, body), media_type="text/event-stream")

    return app


async def _answer(port: int, body: bytes) -> AsyncIterator[bytes]:
    """Yield the bytes that follow the head of the model server's answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.readuntil(b"\r\n\r\n")
        end = b""
        while not end.endswith(_END) and (data := await reader.read(_READ_BYTES)):
            end = (end + data)[-len(_END) :]
            yield data
    finally:
        writer.close()


def main() -> None:
    """Serve until the process is killed."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    sys.stdout.write(f"listening {listener.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(application(int(sys.argv[1])), loop="uvloop", http="httptools", log_config=None)
    uvicorn.Server(config).run([listener])


if __name__ == "__main__":
    main()
