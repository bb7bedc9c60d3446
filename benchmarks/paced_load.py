"""A load client for streams at the pace of `benchmarks.engine`: it measures how late each token arrives.

It reads jobs as lines of JSON and answers each with a line. A job has `port`; `streams`, which begin at once; `form`,
how they are requested (`chat`, `streamed`, `background` or `websocket`); `body`, the request; `tokens`, the length of
each; and `pid`, a process whose CPU time is read while all of them run: from the moment when each stream has had a
tenth of its tokens to the moment when one has had nine tenths. With `every`, they begin one after another, after so
many seconds each, and the gaps between tokens are measured. With `seconds`, the client fails if the job takes longer.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import Callable
from statistics import quantiles
from typing import Any, Final, cast

import uvloop

type Json = dict[str, Any]

_PATHS: Final = {"chat": "/v1/chat/completions"}
_ENDS: Final = {"websocket": b'"type":"response.completed"'}
_TOKEN: Final = re.compile(rb'"(?:delta|content|reasoning_content|arguments)": ?" ?(\d+) ?"')
"""OGX's own provider sends the space after a word with the next word."""
_ERROR: Final = b'"type":"error"'
_LONGEST: Final = 64  # bytes of a token with its name, and of the end
_HANDSHAKE: Final = (
    "GET /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer benchmark\r\n"
    "upgrade: websocket\r\nconnection: upgrade\r\n"
    "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_STEPS: Final = 100


def cpu_nanoseconds(pid: int) -> int:
    """Return the CPU time of a process with all of its threads (clock_getcpuclockid of Linux)."""
    return time.clock_gettime_ns((~pid << 3) | 2)


class Crowd:
    """The streams of one job."""

    def __init__(self, job: Json) -> None:
        self.job = job
        self.ended = asyncio.get_running_loop().create_future()
        self._warm, self._streams = 0, job["streams"]
        self._left = self._streams
        self._open = self._before = self._after = self._counted = self._reads = 0
        self._late: list[int] = []
        self.gaps: list[float] = []
        self.firsts: list[float] = []
        self.firsts_cpu: list[int] = []

    def read(self, stamps: list[int], before: int) -> None:
        """Note the tokens of one read by one stream that had `before` tokens until now."""
        total, now = before + len(stamps), time.monotonic_ns()
        tenth = self.job["tokens"] // 10
        if self._open == 1:
            self._late += [now - each for each in stamps]
            self._counted += len(stamps)
            self._reads += 1
        if before < tenth <= total:
            self._warm += 1
            if self._warm == self._streams and not self._open:
                self._open, self._before = 1, cpu_nanoseconds(self.job["pid"])
        if total >= self.job["tokens"] - tenth and self._open == 1:
            self._open, self._after = 2, cpu_nanoseconds(self.job["pid"])
        elif total >= self.job["tokens"] - tenth and not self._open:
            self._open = 3  # One stream ends before another has begun: they never all run.

    def note_first(self, seconds: float) -> None:
        """Note the first token of a stream, and the CPU time of the server until now."""
        self.firsts.append(seconds)
        self.firsts_cpu.append(cpu_nanoseconds(self.job["pid"]))

    def end(self, error: str | None) -> None:
        """Note the end of a stream."""
        self._left -= 1
        if error and not self.ended.done():
            self.ended.set_exception(ValueError(error))
        elif not self._left and not self.ended.done():
            self.ended.set_result(None)

    def found(self) -> Json:
        """Return the CPU seconds per token while all streams ran, or None; and seconds of lateness, by percent."""
        together = self._open == 2 and self._counted > 0
        late = quantiles(self._late, n=_STEPS) if together else []
        gaps = quantiles(self.gaps, n=_STEPS) if len(self.gaps) > 1 else []
        return {
            "cpu": (self._after - self._before) / 1e9 / self._counted if together else None,
            "reads": self._reads / self._counted if together else None,
            "late": {each: late[each - 1] / 1e9 for each in (50, 95, 99)} if together else None,
            "gaps": {each: gaps[each - 1] for each in (50, 95, 99)} if gaps else None,
            "firsts": self.firsts,
        }


class Stream(asyncio.Protocol):
    """One stream."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._form = crowd.job["form"]
        self._rest = b""
        self._count = 0
        self._over = False
        self._requested_at = self._read_at = 0.0
        self._measures_gaps = "every" in crowd.job
        self.opened = asyncio.get_running_loop().create_future()
        self._end = _ENDS.get(self._form, b"\r\n0\r\n\r\n")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and begin the handshake of a WebSocket."""
        self.transport = cast("asyncio.Transport", transport)
        if self._form == "websocket":
            self.transport.write(_HANDSHAKE.encode())
        else:
            self.opened.set_result(None)

    def ask(self) -> None:
        """Send the request."""
        self._rest = b""
        self._requested_at = time.perf_counter()
        body = json.dumps(self._crowd.job["body"]).encode()
        if self._form == "websocket":
            # A mask of zeros leaves the bytes as they are.
            self.transport.write(b"\x81" + bytes((0x80 | 126,)) + len(body).to_bytes(2) + bytes(4) + body)
            return
        path = _PATHS.get(self._form, "/v1/responses")
        head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer benchmark\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        self.transport.write(head.encode() + body)

    def data_received(self, data: bytes) -> None:
        """Note the tokens."""
        data = self._rest + data
        if not self.opened.done() and b"\r\n\r\n" in data:
            self.opened.set_result(None)
        place, stamps = 0, []
        for found in _TOKEN.finditer(data):
            place = found.end()
            stamps.append(int(found[1]))
        if stamps:
            if not self._count:
                self._crowd.note_first(time.perf_counter() - self._requested_at)
            self._crowd.read(stamps, self._count)
            if self._measures_gaps:
                self._note_gaps(len(stamps))
            self._count += len(stamps)
        if self._requested_at and not self._over and data.find(self._end, place) >= 0:
            tokens = self._crowd.job["tokens"]
            self._finish(None if self._count == tokens else f"{self._count} tokens of {tokens}: {data[-2000:]!r}")
        if data.find(_ERROR) >= 0:
            self._finish(f"an error: {data[-2000:]!r}")
        self._rest = data[max(place, len(data) - _LONGEST) :]

    def connection_lost(self, exc: Exception | None) -> None:
        """Note a stream that breaks."""
        self._finish(f"the server hung up ({exc}) after {self._rest!r}")

    def _note_gaps(self, tokens: int) -> None:
        """Note the time since the last read; there is none between tokens that are read together."""
        now = time.perf_counter()
        self._crowd.gaps += [now - self._read_at] * bool(self._count) + [0.0] * (tokens - 1)
        self._read_at = now

    def _finish(self, error: str | None) -> None:
        if not self._over:
            self._over = True
            self._crowd.end(error)


async def _run(job: Json) -> Json:
    loop, crowd = asyncio.get_running_loop(), Crowd(job)
    new_stream: Callable[[], Stream] = lambda: Stream(crowd)  # noqa: E731 - the name has the type
    opened = [await loop.create_connection(new_stream, "127.0.0.1", job["port"]) for _ in range(job["streams"])]
    await asyncio.gather(*(stream.opened for _, stream in opened))
    began, begun_at = cpu_nanoseconds(job["pid"]), loop.time()
    asking = loop.create_task(_ask(crowd, [stream for _, stream in opened], job.get("every", 0.0)))
    try:
        async with asyncio.timeout(job.get("seconds")):
            await crowd.ended
        took = loop.time() - begun_at
    finally:
        asking.cancel()
        for transport, _ in opened:
            transport.abort()
    whole = (cpu_nanoseconds(job["pid"]) - began) / 1e9 / (job["streams"] * job["tokens"])
    firsts_cpu = [(each - began) / 1e9 for each in crowd.firsts_cpu]
    return crowd.found() | {"whole": whole, "seconds": took, "firsts_cpu": firsts_cpu}


async def _ask(crowd: Crowd, streams: list[Stream], every: float) -> None:
    """Send the requests, at the planned times."""
    loop, began = asyncio.get_running_loop(), asyncio.get_running_loop().time()
    for number, stream in enumerate(streams):
        if (wait := began + number * every - loop.time()) > 0:
            await asyncio.sleep(wait)
        if crowd.ended.done():
            return
        stream.ask()


def main() -> None:
    """Answer jobs until the end of the input."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(uvloop.run(_run(json.loads(line)))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
