"""A load client with minimal CPU use: it sends requests over sockets, counts frames and measures latencies.

It reads jobs as lines of JSON and answers each with a line. A job has `port` and `lanes`; lanes run concurrently, each
on its own connection, the steps of a lane one after another. A step is `body`, the request; `deltas`, the required
number of deltas if it streams, of the type `event` (text by default); `after`, seconds to wait before it; and
`follows`, whether it continues from the lane's last such step, the first of them from the job's `previous`. If a server
does not find the response that it has just returned, the request is retried; `total` includes all attempts. After ten
seconds the turn is `lost`: the lane continues without it. With `seconds`, the client fails if the job takes longer.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from contextlib import suppress
from typing import Any, Final

Json = dict[str, Any]

TEXT: Final = "response.output_text.delta"
_LAST_CHUNK: Final = b"\r\n0\r\n\r\n"
_ID: Final = re.compile(rb'"id": ?"([a-z]*resp_[^"]+)"')
_COMPLETED: Final = re.compile(rb'"status": ?"completed"')
_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_ATTEMPTS: Final = 400
_PAUSE: Final = 0.025  # seconds between two attempts


class NotFoundError(Exception):
    """The server does not find the response to continue."""


class Connection:
    """One persistent connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, step: Json) -> Json:
        """Send one request; return the `first` and `total` seconds, and the response's `id`."""
        body, deltas = step["body"], step.get("deltas", 0)
        delta = b'"type":"%b"' % step.get("event", TEXT).encode()
        data = json.dumps(body).encode()
        head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
        head += b"authorization: Bearer benchmark\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        started = time.perf_counter()
        self._writer.write(head % len(data) + data)
        received = bytearray()
        first, searched = None, 0
        while not _whole(received):
            received += await self._some(received)
            if deltas and first is None:
                if received.find(delta, searched) >= 0:
                    first = time.perf_counter() - started
                searched = max(0, len(received) - len(delta))
        total = time.perf_counter() - started
        return {"first": first, "total": total, "id": _check(received, delta, deltas)}

    def close(self) -> None:
        """Close the connection."""
        self._writer.close()

    async def _some(self, received: bytearray) -> bytes:
        data = await self._reader.read(1 << 18)
        if not data:
            raise EOFError(f"the server hung up after {bytes(received[-500:])!r}")
        return data


def _whole(received: bytearray) -> bool:
    head_end = received.find(b"\r\n\r\n")
    if head_end < 0:
        return False
    if length := _LENGTH.search(received, 0, head_end + 2):
        return len(received) >= head_end + 4 + int(length[1])
    return received.endswith(_LAST_CHUNK)


def _check(received: bytearray, delta: bytes, deltas: int) -> str:
    """Check the answer and return the response's id."""
    if received.startswith(b"HTTP/1.1 404"):
        raise NotFoundError(bytes(received[:2000]))
    found = _ID.search(received)
    if not received.startswith(b"HTTP/1.1 200") or not _COMPLETED.search(received) or found is None:
        raise ValueError(f"not a completed response: {bytes(received[:2000])!r}")
    if deltas and (count := received.count(delta)) != deltas:
        raise ValueError(f"{count} deltas instead of {deltas}")
    return found[1].decode()


async def _follow(connection: Connection, step: Json) -> Json:
    """Send a request that continues from the last one, with retries; return the answer and the number of retries."""
    started = time.perf_counter()
    for again in range(_ATTEMPTS):
        with suppress(NotFoundError):
            answer = await connection.ask(step)
            return {**answer, "total": time.perf_counter() - started, "again": again}
        await asyncio.sleep(_PAUSE)
    answer = await connection.ask({**step, "body": {**step["body"], "previous_response_id": None}})
    return {**answer, "total": time.perf_counter() - started, "again": _ATTEMPTS, "lost": True}


async def _lane(connection: Connection, steps: list[Json], previous: str | None) -> list[Json]:
    answers: list[Json] = []
    for step in steps:
        await asyncio.sleep(step.get("after", 0))
        if step.get("follows") and previous:
            body = {**step["body"], "previous_response_id": previous}
            answer = await _follow(connection, {**step, "body": body})
        else:
            answer = await connection.ask(step)
        if step.get("follows"):
            previous = answer["id"]
        answers.append(answer)
    return answers


async def _run(job: Json) -> list[list[Json]]:
    connections = [Connection(*await asyncio.open_connection("127.0.0.1", job["port"])) for _ in job["lanes"]]
    try:
        lanes = zip(connections, job["lanes"], strict=True)
        async with asyncio.timeout(job.get("seconds")):
            return await asyncio.gather(*(_lane(connection, steps, job.get("previous")) for connection, steps in lanes))
    finally:
        for connection in connections:
            connection.close()


def main() -> None:
    """Answer jobs until the end of the input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(asyncio.run(_run(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
