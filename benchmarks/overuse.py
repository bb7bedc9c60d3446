"""How exact limits are that four servers share: what they admit of a minute's requests and of a day's tokens.

    .venv/bin/python -m benchmarks.overuse

The servers are processes on one store, a SQLite file. Clients send to all of them at once, far more than is allowed.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import httpx

from benchmarks.servers import TEMPLATE, host_environment
from tests.support.stack import LiveStack
from tests.support.upstream import UpstreamProcess, reply, text
from tests.support.variants import responses_config, variant

type Json = dict[str, Any]

SERVERS: Final = 4
REQUESTS: Final = 200
TOKENS: Final = 20_000
USAGE: Final = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
LIMITS: Final = [
    {"by": "all", "models": "local/requests", "requests_per_minute": REQUESTS},
    {"by": "all", "models": "local/tokens", "tokens_per_day": TOKENS},
]
_WINDOW_SECONDS: Final = 60


async def admitted(ports: Sequence[int], model: str, clients: int, requests: int) -> int:
    """Send requests from some clients for each server; return how many were admitted."""

    async def one(client: httpx.AsyncClient, port: int) -> int:
        found = 0
        for _ in range(requests):
            body = {"model": f"local/{model}", "input": "Hello"}
            answer = await client.post(f"http://127.0.0.1:{port}/v1/responses", json=body)
            if answer.status_code not in (200, 429):
                raise RuntimeError(answer.text)
            found += answer.status_code == 200
        return found

    async with httpx.AsyncClient(timeout=120, trust_env=False) as client:
        return sum(await asyncio.gather(*(one(client, port) for port in ports for _ in range(clients))))


def wait_for_a_window() -> None:
    """Wait until a minute begins."""
    time.sleep(_WINDOW_SECONDS - time.time() % _WINDOW_SECONDS + 1)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4, help="clients of each server (default: 4)")
    clients: int = parser.parse_args().clients
    with tempfile.TemporaryDirectory() as name, ExitStack() as opened:
        folder = Path(name)

        def change(config: Json) -> None:
            responses_config(config)["store"] = {"type": "sqlite", "path": str(folder / "responses.db")}
            responses_config(config)["usage"] = {"limits": LIMITS}

        model = opened.enter_context(UpstreamProcess(folder / "upstream.log")).client
        for each in ("requests", "tokens"):
            model.script(each, reply(text("Hello"), usage=USAGE))
        config = variant(TEMPLATE, folder / "config.yaml", change)
        servers = [
            opened.enter_context(LiveStack(config, host_environment(model.base_url), folder / str(number)))
            for number in range(SERVERS)
        ]
        ports = [server.port for server in servers]
        wait_for_a_window()
        began = time.monotonic()
        requests = asyncio.run(admitted(ports, "requests", clients, 2 * REQUESTS // (SERVERS * clients)))
        took = time.monotonic() - began
        tokens = 100 * asyncio.run(admitted(ports, "tokens", clients, 2 * TOKENS // (100 * SERVERS * clients)))
    sys.stdout.write(
        "| limit | allowed | admitted | of it |\n| --- | ---: | ---: | ---: |\n"
        f"| requests of a minute, sent within {took:.0f} s | {REQUESTS} | {requests} | {requests / REQUESTS:.3f} |\n"
        f"| tokens of a day, {clients * SERVERS} responses of 100 at a time | {TOKENS:,} | {tokens:,} | "
        f"{tokens / TOKENS:.3f} |\n"
    )


if __name__ == "__main__":
    main()
