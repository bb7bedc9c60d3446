"""How long one user waits for the first token while another one starts 200 streams at once.

    .venv/bin/python -m benchmarks.fairness                         # on SQLite
    .venv/bin/python -m benchmarks.fairness --store postgres
    .venv/bin/python -m benchmarks.fairness --slots 32              # model rounds that run at a time
    .venv/bin/python -m benchmarks.fairness --websocket
    .venv/bin/python -m benchmarks.fairness --background            # responses of the queue, all of them streamed

Both users have tokens of the host's `custom` auth. The streams of the first user are sent together, and those of the
second one after another while they run. These are short, and each is sent after the end of the one before: else the
second user would also wait for itself, such as for a place among the responses in the background.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from websockets.asyncio.client import connect

from benchmarks.load import TEXT
from benchmarks.servers import REPOSITORY, authenticate, host_environment
from tests.support.auth import auth_server
from tests.support.stack import LiveStack
from tests.support.stores import serving
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]

TEMPLATES: Final = {"sqlite": "starter", "redis": "redis", "postgres": "postgres"}
MODELS: Final = {"many": "local/slow", "one": "local/brief"}
USERS: Final[dict[str, Json]] = {name: {"principal": name, "attributes": {}} for name in MODELS}
STREAMS: Final = 200
WORDS: Final = 20
INTERVAL: Final = 0.1
ASKED: Final = 10
DELTA: Final = TEXT.encode()


type FirstToken = Callable[[LiveStack, str], Coroutine[Any, Any, Moment]]


@dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, or the time between two.

    Attributes:
        seconds: by the clock.
        cpu: seconds for which the event loop of the server has had the processor. Its part of a wait is this time on a
            machine whose other programs leave it a core.
    """

    seconds: float
    cpu: float

    @staticmethod
    def now(server: LiveStack) -> Moment:
        """Return the present."""
        running = Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text().split()[0]
        return Moment(time.perf_counter(), int(running) / 1e9)

    def since(self, earlier: Moment) -> Moment:
        """Return the time that has passed."""
        return Moment(self.seconds - earlier.seconds, self.cpu - earlier.cpu)


async def over_websocket(server: LiveStack, user: str) -> Moment:
    """Request a response on a new WebSocket, and read it to its end; return the time to the first token."""
    began, found = Moment.now(server), None
    headers = {"authorization": f"Bearer {user}"}
    async with connect(f"ws://127.0.0.1:{server.port}/v1/responses", additional_headers=headers, proxy=None) as socket:
        await socket.send(json.dumps({"type": "response.create", "model": MODELS[user], "input": "Hello"}))
        async for event in socket:
            text = event if isinstance(event, str) else event.decode()
            if not found and TEXT in text:
                found = Moment.now(server).since(began)
            if found and json.loads(text)["type"] == "response.completed":
                return found
    raise AssertionError("the stream has no end")


async def in_background(server: LiveStack, user: str) -> Moment:
    """As `over_http`, for a background response."""
    return await over_http(server, user, background=True)


async def over_http(server: LiveStack, user: str, *, background: bool = False) -> Moment:
    """Send one streamed request on a new connection, and read it to its end; return the time to the first token."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    request = {"model": MODELS[user], "input": "Hello", "stream": True, "background": background}
    body = json.dumps(request).encode()
    head = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {user}\r\nconnection: close\r\n"
    began, received = Moment.now(server), b""
    found: Moment | None = None
    writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    while data := await reader.read(1 << 16):
        received += data
        if not found and DELTA in received:
            found = Moment.now(server).since(began)
    writer.close()
    assert b"response.completed" in received, received[-500:]
    assert found
    return found


async def measure(server: LiveStack, first_token: FirstToken) -> Sequence[Sequence[Moment]]:
    """Return the times to the first tokens: of one user alone, the same one beside another, and of the other one."""
    await first_token(server, "one")
    await first_token(server, "many")
    alone = [await first_token(server, "one") for _ in range(5)]
    many = [asyncio.create_task(first_token(server, "many")) for _ in range(STREAMS)]
    # They have been sent.
    await asyncio.sleep(0.05)
    beside = [await first_token(server, "one")]
    while not all(each.done() for each in many) and len(beside) < ASKED:
        await asyncio.sleep(INTERVAL)
        beside.append(await first_token(server, "one"))
    return alone, beside, [await each for each in many]


def main() -> None:
    """Measure, and print the medians and the longest times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=TEMPLATES, default="sqlite")
    parser.add_argument("--slots", type=int, help="model rounds that run at a time (default: any number)")
    parser.set_defaults(way=over_http)
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--websocket", dest="way", action="store_const", const=over_websocket, help="over WebSockets")
    ways.add_argument("--background", dest="way", action="store_const", const=in_background, help="in the background")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)
        (folder / "store").mkdir()
        model = opened.enter_context(UpstreamProcess(folder / "upstream.log")).client
        model.script("slow", reply(text(*["word "] * WORDS), interval=INTERVAL))
        model.script("brief", reply(text(*["word "] * 2), interval=INTERVAL))
        endpoint = opened.enter_context(auth_server(USERS))
        database = opened.enter_context(serving(options.store, folder / "store"))
        template = REPOSITORY / "templates" / TEMPLATES[options.store] / "config.yaml"

        def change(config: Json) -> None:
            authenticate(config, endpoint)
            if options.slots:
                responses_config(config)["model_servers"] = {"local": {"concurrency": options.slots}}

        config = variant(template, folder / "config.yaml", change)
        env = host_environment(model.base_url) | (database.environment if database else {})
        server = opened.enter_context(LiveStack(config, env, folder / "state"))
        found = asyncio.run(measure(server, options.way))
    sys.stdout.write("| first token | median | longest | event loop: median | longest |\n|---|---:|---:|---:|---:|\n")
    for label, took in zip(("alone", f"beside {STREAMS} streams", "of these streams"), found, strict=True):
        columns = [each.seconds for each in took], [each.cpu for each in took]
        cells = (f"{f(column) * 1e3:.1f} ms" for column in columns for f in (statistics.median, max))
        sys.stdout.write(f"| {label} | {' | '.join(cells)} |\n")


if __name__ == "__main__":
    main()
