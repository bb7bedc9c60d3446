"""The memory of an open stream, by the package, the line and the type of object that holds it.

    .venv/bin/python -m benchmarks.stream_memory                      # two minutes
    .venv/bin/python -m benchmarks.stream_memory --streams 300 --lines 80
    .venv/bin/python -m benchmarks.stream_memory --tokens 100 --step 400

The figures are what Python holds, as `tracemalloc` sees it, for each open stream of text that has had at least ten
tokens, or as many as wanted. What the standard library holds counts for the package that called it. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.paced import Place, program
from benchmarks.report import markdown_table
from benchmarks.servers import REPOSITORY, TEMPLATE
from tests.support.stack import LiveStack

type Json = dict[str, Any]
type Frame = tuple[str, int]

STREAMS: Final = 150
TOKENS: Final = 10
LENGTH: Final = 200
"""Tokens of each stream, which is left before its end."""
STEP_MS: Final = 2000
_WARM: Final = 16
_DUMP_SECONDS: Final = 120.0
_DELTA: Final = b'"type":"response.output_text.delta"'
_STANDARD: Final = sysconfig.get_path("stdlib")
_MONITOR: Final = "loop_monitor.py"
"""Samples of the event loop do not grow with the streams."""


class TracedStack(LiveStack):
    """A server that traces its memory."""

    @property
    def _memory_file(self) -> Path:
        return self.state_dir / "memory.json"

    def memory(self) -> Json:
        """Return what memory the server holds."""
        self._memory_file.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        limit = time.monotonic() + _DUMP_SECONDS
        while not self._memory_file.exists():
            if time.monotonic() > limit:
                raise TimeoutError(self.tail())
            time.sleep(0.1)
        found: Json = json.loads(self._memory_file.read_text())
        return found

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.traced", str(self._memory_file), *super()._command()]


def opened(place: Place, count: int, length: int) -> list[socket.socket]:
    """Return connections with a stream each."""
    body = json.dumps({"model": f"local/text-{length}", "input": "Hello", "stream": True}).encode()
    head = b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\n"
    head += b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
    streams = [socket.create_connection(("127.0.0.1", place.port), timeout=60) for _ in range(count)]
    for stream in streams:
        stream.sendall(head % len(body) + body)
    return streams


def read(stream: socket.socket, tokens: int) -> None:
    """Read a stream until it has had so many tokens."""
    received = b""
    while received.count(_DELTA) < tokens:
        if not (data := stream.recv(1 << 16)):
            raise EOFError(f"the server hung up after {received[-500:]!r}")
        received += data


def measure(folder: Path, streams: int, tokens: int = TOKENS, step_ms: int = STEP_MS) -> tuple[Json, Json]:
    """Return the memory before and with open streams; allocations are traced in between."""
    with program("benchmarks.engine", step_ms) as engine:
        environment = {"INFERENCE_URL": f"http://127.0.0.1:{engine.port}/v1", "PYTHONPATH": _search_path()}
        with TracedStack(TEMPLATE, environment, folder / "state", fork=False) as server:
            place = Place(server.port, server.pid)
            for stream in opened(place, _WARM, 3):
                read(stream, 3)
                stream.close()
            time.sleep(1)
            before = server.memory()
            held = opened(place, streams, LENGTH)
            for stream in held:
                read(stream, tokens)
            after = server.memory()
            for stream in held:
                stream.close()
    return before, after


def _search_path() -> str:
    return os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


def _package(file: str) -> str | None:
    """Return the package that a file belongs to; None for the standard library."""
    if "site-packages/" in file:
        return file.partition("site-packages/")[2].partition("/")[0]
    if file.startswith((_STANDARD, "<")):
        return None
    if file.startswith(f"{REPOSITORY}/"):
        return next(part for part in file.removeprefix(f"{REPOSITORY}/").split("/") if part != "providers")
    return file


def _owner(frames: list[Frame]) -> tuple[str, str]:
    """Return the package and the line that hold an allocation."""
    for file, line in frames:
        if package := _package(file):
            return package, f"{file.removeprefix(f'{REPOSITORY}/').rpartition('site-packages/')[2]}:{line}"
    return "others", "{}:{}".format(*frames[0])


def owners(memory: Json) -> Iterator[tuple[str, str, int]]:
    """Yield package, line and bytes of the allocations."""
    for size, frames in memory["traces"]:
        if not any(file.endswith(_MONITOR) for file, _ in frames):
            yield *_owner(frames), size


def _held(memory: Json) -> tuple[Counter[str], Counter[str]]:
    """Return the bytes of the allocations by package and by line."""
    packages, lines = Counter[str](), Counter[str]()
    for package, line, size in owners(memory):
        packages[package] += size
        lines[line] += size
    return packages, lines


def shown(before: Json, after: Json, streams: int, most: int) -> str:
    """Return what each stream holds, as tables."""
    packages, lines = _held(after)
    kinds = {
        name: (count - before["objects"].get(name, [0, 0])[0], size - before["objects"].get(name, [0, 0])[1])
        for name, (count, size) in after["objects"].items()
    }
    largest = sorted(kinds.items(), key=lambda item: -item[1][1])[:most]
    everything = [*packages.most_common(12), ("together", packages.total())]
    return "\n".join(
        (
            markdown_table(["package", "kB"], [[name, f"{size / streams / 1e3:.1f}"] for name, size in everything]),
            markdown_table(
                ["line", "bytes"], [[name, f"{size / streams:.0f}"] for name, size in lines.most_common(most)]
            ),
            markdown_table(
                ["type", "objects", "bytes"],
                [[name, f"{count / streams:.1f}", f"{size / streams:.0f}"] for name, (count, size) in largest],
            ),
        )
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=STREAMS, help=f"how many (default: {STREAMS})")
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"after so many of each (default: {TOKENS})")
    parser.add_argument("--step", type=int, default=STEP_MS, metavar="MS", help=f"between tokens (default: {STEP_MS})")
    parser.add_argument("--lines", type=int, default=40, help="how many lines and types are shown (default: 40)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), options.streams, options.tokens, options.step)
    sys.stdout.write(shown(*found, options.streams, options.lines))


if __name__ == "__main__":
    main()
