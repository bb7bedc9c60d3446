"""How long one user waits for the first token while another one starts 200 streams at once.

    .venv/bin/python -m benchmarks.fairness                         # on SQLite
    .venv/bin/python -m benchmarks.fairness --store postgres

Both users have tokens of the host's `custom` auth. The streams of the first user are sent together, and those of the
second one after another while they run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.load import TEXT
from benchmarks.servers import REPOSITORY, authenticate
from tests.support.auth import auth_server
from tests.support.stack import LiveStack
from tests.support.stores import serving
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import variant

type Json = dict[str, Any]

TEMPLATES: Final = {"sqlite": "starter", "redis": "redis", "postgres": "postgres"}
USERS: Final[dict[str, Json]] = {name: {"principal": name, "attributes": {}} for name in ("many", "one")}
STREAMS: Final = 200
WORDS: Final = 20
INTERVAL: Final = 0.1
ASKED: Final = 10
DELTA: Final = TEXT.encode()


async def first_token(port: int, user: str) -> float:
    """Send one streamed request on a new connection, and read it to its end; return the seconds to the first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "local/slow", "input": "Hello", "stream": True}).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {user}\r\nconnection: close\r\n"
    began, found, received = time.perf_counter(), 0.0, b""
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    while data := await reader.read(1 << 16):
        received += data
        if not found and DELTA in received:
            found = time.perf_counter() - began
    writer.close()
    assert b"response.completed" in received, received[-500:]
    return found


async def measure(port: int) -> tuple[list[float], list[float], list[float]]:
    """Return the seconds to the first tokens: of one user alone, the same one beside another, and of the other one."""
    await first_token(port, "one")
    await first_token(port, "many")
    alone = [await first_token(port, "one") for _ in range(3)]
    many = [asyncio.create_task(first_token(port, "many")) for _ in range(STREAMS)]
    # They have been sent.
    await asyncio.sleep(0.05)
    beside = [asyncio.create_task(first_token(port, "one"))]
    while not all(each.done() for each in many) and len(beside) < ASKED:
        await asyncio.sleep(INTERVAL)
        beside.append(asyncio.create_task(first_token(port, "one")))
    return alone, [await each for each in beside], [await each for each in many]


def main() -> None:
    """Measure, and print the medians and the longest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=TEMPLATES, default="sqlite")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        (folder / "store").mkdir()
        model = opened.enter_context(UpstreamProcess(folder / "upstream.log")).client
        model.script("slow", reply(text(*["word "] * WORDS), interval=INTERVAL))
        endpoint = opened.enter_context(auth_server(USERS))
        database = opened.enter_context(serving(options.store, folder / "store"))
        template = REPOSITORY / "templates" / TEMPLATES[options.store] / "config.yaml"
        config = variant(template, folder / "config.yaml", lambda config: authenticate(config, endpoint))
        env = {"INFERENCE_URL": model.base_url, "PYTHONPATH": str(REPOSITORY)}
        env |= database.environment if database else {}
        server = opened.enter_context(LiveStack(config, env, folder / "state"))
        found = asyncio.run(measure(server.port))
    sys.stdout.write("| first token | median | longest |\n| --- | ---: | ---: |\n")
    for label, took in zip(("alone", f"beside {STREAMS} streams", "of these streams"), found, strict=True):
        sys.stdout.write(f"| {label} | {statistics.median(took) * 1e3:.0f} ms | {max(took) * 1e3:.0f} ms |\n")


if __name__ == "__main__":
    main()
