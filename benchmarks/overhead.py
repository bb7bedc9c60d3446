"""What the server costs, beside the host's own provider and beside the client that both read the model server with.

    .venv/bin/python -m benchmarks.overhead            # under four minutes; --quick: under one

Both servers run at once behind one fast scripted model server and take turns, round by round; what is compared was
measured within seconds of each other. Linux only: CPU time is read from /proc. Progress goes to stderr, the tables to
stdout, everything measured to `--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import batched
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.report import tables
from benchmarks.servers import BUILTIN, OURS, Worker, cpu_seconds, stack, stored_bytes
from benchmarks.texts import pieces, texts
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reply, text

type Json = dict[str, Any]
type Servers = dict[str, LiveStack]

KINDS: Final = (OURS, BUILTIN)
SHORT_DELTAS: Final = 32
STREAM_DELTAS: Final = 512
PACED_DELTAS: Final = 256
PACE: Final = 0.01  # seconds between two tokens
TURN_CHARACTERS: Final = 1024  # of the input, and as many of the answer
SEGMENT: Final = 10  # turns of one chain before it is the other server's turn
SETTLE: Final = 0.3  # seconds for what a server does after its answer


@dataclass(frozen=True, slots=True)
class Load:
    """`lanes` clients at once, each sending `requests` one after another; `deltas` of text each, streamed or whole."""

    name: str
    model: str
    lanes: int
    requests: int
    deltas: int
    stream: bool = True

    @property
    def units(self) -> int:
        """What its cost is divided by: deltas if they are streamed, else requests."""
        return self.lanes * self.requests * (self.deltas if self.stream else 1)

    def job(self, port: int) -> Json:
        """What the load client is told."""
        body = {"model": f"local/{self.model}", "input": "Hello", "stream": self.stream}
        step = {"body": body, "deltas": self.deltas if self.stream else 0}
        return {"port": port, "lanes": [[step] * self.requests] * self.lanes}


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    rounds: int
    turns: int
    idle: float
    loads: tuple[Load, ...]


def size(quick: bool) -> Size:
    """The whole run, or one that only shows the order of magnitude."""
    one, sixteen, short = (6, 1, 3) if quick else (12, 2, 6)
    loads = (
        Load("stream-1", "fast-512", 1, one, STREAM_DELTAS),
        Load("stream-16", "fast-512", 16, sixteen, STREAM_DELTAS),
        Load("paced-16", "paced", 16, 1, PACED_DELTAS),
        Load("short-16", "short", 16, short, SHORT_DELTAS, stream=False),
    )
    return Size(rounds=1 if quick else 5, turns=20 if quick else 100, idle=1.0 if quick else 3.0, loads=loads)


def say(line: str) -> None:
    """Progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Bench:
    """What measures: the model server and two processes that cost their own CPU time and not the servers'."""

    upstream: Upstream
    load: Worker
    decoding: Worker

    def script(self, turns: int) -> None:
        """Tell the model server what to say, before the servers ask which models it has."""
        self.upstream.script("short", reply(text(*["word "] * SHORT_DELTAS)))
        self.upstream.script("paced", reply(text(*["word "] * PACED_DELTAS), interval=PACE))
        for kind in KINDS:
            answers = texts(turns + SEGMENT, TURN_CHARACTERS, seed=2)
            self.upstream.script(chain_model(kind), [reply(text(*pieces(answer))) for answer in answers])

    # CPU and first deltas

    def rounds(self, servers: Servers, size: Size) -> Json:
        """Every load on both servers in turn, and the client's own decoding in between."""
        for server in servers.values():
            for load in size.loads:
                self.load.ask(load.job(server.port))
        idle = self._idle(servers, size.idle)
        found: Json = {load.name: {kind: [] for kind in (*KINDS, "openai", "httpx")} for load in size.loads}
        for number in range(size.rounds):
            for load in size.loads:
                say(f"round {number + 1} of {size.rounds}: {load.name}")
                for kind, server in servers.items():
                    found[load.name][kind].append(self._cost(server, load, idle[kind]))
                for client in ("openai", "httpx") if load.stream else ():
                    found[load.name][client].append(self._decoding_cost(client, load))
        return {"idle": idle, "loads": found}

    def _idle(self, servers: Servers, seconds: float) -> dict[str, float]:
        """CPU seconds a second of servers that nobody asks anything."""
        time.sleep(SETTLE)
        before = {kind: cpu_seconds(server.pid) for kind, server in servers.items()}
        time.sleep(seconds)
        return {kind: (cpu_seconds(server.pid) - before[kind]) / seconds for kind, server in servers.items()}

    def _cost(self, server: LiveStack, load: Load, idle: float) -> Json:
        """CPU seconds a unit of one load, less what the server does anyway, and when the first deltas came."""
        started, before = time.monotonic(), cpu_seconds(server.pid)
        answers = self.load.ask(load.job(server.port))
        wall = time.monotonic() - started
        time.sleep(SETTLE)
        spent = cpu_seconds(server.pid) - before - idle * (time.monotonic() - started)
        firsts = [answer["first"] for lane in answers for answer in lane if answer["first"] is not None]
        return {"cpu": spent / load.units, "wall": wall, "firsts": firsts}

    def _decoding_cost(self, client: str, load: Load) -> Json:
        job = {"client": client, "base_url": self.upstream.base_url, "model": load.model}
        answer = self.decoding.ask({**job, "lanes": load.lanes, "streams": load.requests})
        if answer["deltas"] != load.units:
            raise ValueError(f"{client} read {answer['deltas']} deltas instead of {load.units}")
        return {"cpu": answer["cpu"] / load.units}

    # bytes and turns

    def chains(self, servers: Servers, turns: int) -> Json:
        """A long conversation on each server; single requests of the same size stand between its last turns."""
        inputs = texts(turns + SEGMENT, TURN_CHARACTERS)
        for kind, server in servers.items():
            self.load.ask({"port": server.port, "lanes": [[{"body": warm_up(kind)}] * 5]})
        found: Json = {kind: {"before": stored_bytes(servers[kind], settled=False), "turns": []} for kind in servers}
        asked = [True] * (turns - SEGMENT) + [True, False] * SEGMENT
        last = dict.fromkeys(servers, "")
        for number, segment in enumerate(batched(zip(inputs, asked, strict=True), SEGMENT)):
            say(f"chain: {number * SEGMENT} of {len(asked)} requests")
            for kind, server in servers.items():
                job = {"port": server.port, "lanes": [[turn(kind, words, chained) for words, chained in segment]]}
                if last[kind]:
                    first = next(step for step in job["lanes"][0] if step["follows"])
                    first["body"]["previous_response_id"] = last[kind]
                [answers] = self.load.ask(job)
                found[kind]["turns"] += [
                    {"chained": chained, "total": answer["total"]}
                    for answer, (_, chained) in zip(answers, segment, strict=True)
                ]
                last[kind] = [answer["id"] for answer, (_, chained) in zip(answers, segment, strict=True) if chained][-1]
        return found


def chain_model(kind: str) -> str:
    """The model that answers one server's chain; each server has one, with the same answers."""
    return f"chain-{KINDS.index(kind)}"


def warm_up(kind: str) -> Json:
    """A request that leaves nothing behind."""
    return {"model": "local/short", "input": f"Hello {kind}", "store": False}


def turn(kind: str, words: str, chained: bool) -> Json:
    """One request of a chain, or a single one."""
    return {"body": {"model": f"local/{chain_model(kind)}", "input": words}, "follows": chained}


@contextmanager
def running(host: Host, inference_url: str, folder: Path) -> Iterator[Servers]:
    """Both servers, on what they stored before."""
    with ExitStack() as stacks:
        servers = {}
        for kind in KINDS:
            say(f"starting {kind}")
            servers[kind] = stacks.enter_context(stack(kind, host, inference_url, folder))
        yield servers


def measure(host: Host, size: Size, folder: Path) -> Json:
    """Everything, as the tables want it."""
    with (
        UpstreamProcess(folder / "upstream.log") as upstream,
        Worker("benchmarks.load") as load,
        Worker("benchmarks.decoding") as decoding,
    ):
        bench = Bench(upstream.client, load, decoding)
        bench.script(size.turns)
        with running(host, bench.upstream.base_url, folder) as servers:
            chain = bench.chains(servers, size.turns)
        for kind, server in servers.items():
            chain[kind]["after"] = stored_bytes(server)
        with running(host, bench.upstream.base_url, folder) as servers:
            return {
                "host": host,
                "chain": {"content": (size.turns + SEGMENT) * 2 * TURN_CHARACTERS, "length": size.turns, **chain},
                **bench.rounds(servers, size),
            }


def main() -> None:
    """Measure, print, and keep what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--host", choices=("llama_stack", "ogx"), help="the host (default: the one installed)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    host: Host = options.host or ("ogx" if find_spec("ogx") else "llama_stack")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(host, size(options.quick), Path(folder))
    say(f"{time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write(tables(found))


if __name__ == "__main__":
    main()
