"""The server's overhead with either inference provider, next to the host's own Responses API and bare clients.

    .venv/bin/python -m benchmarks.overhead                        # about twenty minutes
    .venv/bin/python -m benchmarks.overhead --quick                # one short round
    .venv/bin/python -m benchmarks.overhead --markdown FILE        # write the tables to FILE too

All servers run at once with one fast scripted model server and take turns, round by round, so that compared values are
measured within seconds of each other. Linux only: CPU time is read from /proc. Progress goes to stderr, the tables to
stdout, all measurements to `--json FILE`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from itertools import batched
from pathlib import Path
from typing import Any, Final

from benchmarks import paced
from benchmarks.load import TEXT
from benchmarks.picture import picture
from benchmarks.report import READERS, tables
from benchmarks.servers import (
    CHAINED,
    KINDS,
    ON_HOST,
    OURS,
    Worker,
    add_auth_option,
    auth_endpoint,
    cpu_seconds,
    stack,
    stored_bytes,
)
from benchmarks.texts import pieces, texts, tools
from tests.support.memory import resident_bytes
from tests.support.stack import Host, LiveStack
from tests.support.upstream import Upstream, UpstreamProcess, reasoning, reply, text, tool_call

type Json = dict[str, Any]
type Servers = dict[str, LiveStack]

STREAM_DELTAS: Final = 512
SHORT_DELTAS: Final = 32
PACED_DELTAS: Final = 128
PACE: Final = 0.01  # seconds between two tokens
PACED_ROUNDS: Final = 3  # maximum number of rounds of the streams in step
NEWCOMERS: Final = 12
NEWCOMER_PAUSE: Final = 0.2  # seconds between two of them
OTHERS: Final = 63
ENDLESS_DELTAS: Final = 8192
SETTLED: Final = 2.0  # seconds after which all of them stream
CROWD_DELTAS: Final = 20
CROWD_PACE: Final = 1.0
TURN_CHARACTERS: Final = 1024  # of the input, and the same of the answer
TOOLS: Final = tools(10, 1900)  # 20 kB with their schemas
INSTRUCTIONS: Final = texts(1, 10_000, seed=4)[0]
CHAINS: Final[dict[str, Json]] = {"plain": {}, "repeating": {"instructions": INSTRUCTIONS, "tools": TOOLS}}
SEGMENT: Final = 10  # turns of one chain before the other server's turn
SETTLE: Final = 0.3  # seconds for the work that a server does after its answer


@dataclass(frozen=True, slots=True)
class Load:
    """`lanes` concurrent clients, each with `requests` one after another; `deltas` of text each, streamed or whole."""

    name: str
    model: str
    lanes: int
    requests: int
    deltas: int
    stream: bool = True
    event: str = TEXT

    @property
    def pieces(self) -> int:
        """The number of deltas that the model server sends."""
        return self.lanes * self.requests * self.deltas

    @property
    def units(self) -> int:
        """The divisor of the cost: deltas if they are streamed, otherwise requests."""
        return self.pieces if self.stream else self.lanes * self.requests

    @property
    def measured(self) -> tuple[str, ...]:
        """The servers and readers for this load: the builtin sends no reasoning, and the readers only count text."""
        return (*KINDS, *READERS) if self.event == TEXT else (OURS, ON_HOST)

    def job(self, port: int) -> Json:
        """Return the job for the load client."""
        body = {"model": f"local/{self.model}", "input": "Hello", "stream": self.stream, "tools": TOOLS[:1]}
        step = {"body": body, "deltas": self.deltas if self.stream else 0, "event": self.event}
        return {"port": port, "lanes": [[step] * self.requests] * self.lanes}


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run."""

    rounds: int
    turns: int
    idle: float
    crowd: int
    loads: tuple[Load, ...]


def size(rounds: int, quick: bool) -> Size:
    """Return the size of the whole run, or of a short one that only shows the order of magnitude."""
    one, sixteen, short = (6, 1, 3) if quick else (12, 2, 6)
    loads = (
        Load("stream-1", "long", 1, one, STREAM_DELTAS),
        Load("stream-16", "long", 16, sixteen, STREAM_DELTAS),
        Load("stream-64", "long", 64, 1, STREAM_DELTAS),
        Load("reasoning-16", "reasoning", 16, 1, STREAM_DELTAS, event="response.reasoning_text.delta"),
        Load("calls-16", "calls", 16, 1, STREAM_DELTAS, event="response.function_call_arguments.delta"),
        Load("paced-16", "paced", 16, 1, PACED_DELTAS),
        Load("short-16", "short", 16, short, SHORT_DELTAS, stream=False),
    )
    if quick:
        return Size(rounds, turns=20, idle=1.0, crowd=100, loads=loads)
    return Size(rounds, turns=100, idle=5.0, crowd=1000, loads=loads)


def say(line: str) -> None:
    """Print progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@dataclass(frozen=True, slots=True)
class Bench:
    """The measuring processes: the model server and two workers, whose CPU time is not counted as the servers'.

    Attributes:
        auth: as for `stack`.
    """

    upstream: Upstream
    load: Worker
    decoding: Worker
    auth: str | None = None

    def script(self, turns: int) -> None:
        """Script the model server, before the servers request its list of models."""
        self.upstream.script("long", reply(text(*["word "] * STREAM_DELTAS)))
        self.upstream.script("endless", reply(text(*["word "] * ENDLESS_DELTAS)))
        self.upstream.script("reasoning", reply(reasoning(*["word "] * STREAM_DELTAS)))
        self.upstream.script("calls", reply(tool_call(0, "call_1", TOOLS[0]["name"], *["word "] * STREAM_DELTAS)))
        self.upstream.script("crowd", reply(text(*["word "] * CROWD_DELTAS), interval=CROWD_PACE))
        self.upstream.script("short", reply(text(*["word "] * SHORT_DELTAS)))
        self.upstream.script("paced", reply(text(*["word "] * PACED_DELTAS), interval=PACE))
        answers = [reply(text(*pieces(answer))) for answer in texts(turns, TURN_CHARACTERS, seed=2)]
        for chain in CHAINS:
            for kind in CHAINED:
                self.upstream.script(chain_model(chain, kind), answers)

    def warm_up(self, servers: Servers) -> None:
        """Send a few requests that are not stored."""
        step = {"body": {"model": "local/short", "input": "Hello", "store": False}}
        for server in servers.values():
            self.load.ask({"port": server.port, "lanes": [[step] * 5]})

    # CPU and first deltas

    def rounds(self, servers: Servers, size: Size) -> Json:
        """Run every load on all servers and readers in turn; alternate rounds reverse the order."""
        for kind, server in servers.items():
            for load in size.loads:
                if kind in load.measured:
                    self.load.ask(load.job(server.port))
        idle = self._idle(servers, size.idle)
        found: Json = {load.name: defaultdict(list) for load in size.loads}
        for number in range(size.rounds):
            for load in size.loads:
                say(f"round {number + 1} of {size.rounds}: {load.name}")
                for name in load.measured[:: -1 if number % 2 else 1]:
                    cost = self._cost(servers[name], load, idle[name]) if name in servers else self._read(name, load)
                    found[load.name][name].append(cost)
        return {"idle": idle, "loads": found}

    def _idle(self, servers: Servers, seconds: float) -> dict[str, float]:
        """Return the CPU seconds per second of idle servers."""
        time.sleep(SETTLE)
        before = {kind: cpu_seconds(server.pid) for kind, server in servers.items()}
        time.sleep(seconds)
        return {kind: (cpu_seconds(server.pid) - before[kind]) / seconds for kind, server in servers.items()}

    def _cost(self, server: LiveStack, load: Load, idle: float) -> Json:
        """Return the CPU seconds per unit of one load, without the idle use, and the latencies of the first deltas."""
        started, before = time.monotonic(), cpu_seconds(server.pid)
        answers = self.load.ask(load.job(server.port))
        time.sleep(SETTLE)
        spent = cpu_seconds(server.pid) - before - idle * (time.monotonic() - started)
        firsts = [answer["first"] for lane in answers for answer in lane if answer["first"] is not None]
        return {"cpu": spent / load.units, "firsts": firsts}

    def _read(self, reader: str, load: Load) -> Json:
        """Return the CPU seconds per unit of reading the model server's stream of this load."""
        job = {"reader": reader, "base_url": self.upstream.base_url, "model": load.model}
        answer = self.decoding.ask({**job, "lanes": load.lanes, "streams": load.requests})
        if answer["deltas"] != load.pieces:
            raise ValueError(f"{reader} read {answer['deltas']} deltas instead of {load.pieces}")
        return {"cpu": answer["cpu"] / load.units}

    def crowd(self, server: LiveStack, streams: int) -> Json:
        """Run many slow streams at once: measure the added memory per stream, and check that no event is missing."""
        say(f"{streams} slow streams")
        before = peak = resident_bytes(server.pid)
        with ThreadPoolExecutor(1) as asking:
            job = Load("crowd", "crowd", streams, 1, CROWD_DELTAS).job(server.port)
            answers = asking.submit(self.load.ask, job)
            while not answers.done():
                peak = max(peak, resident_bytes(server.pid))
                time.sleep(0.2)
        complete = len(answers.result())
        return {"streams": streams, "complete": complete, "deltas": CROWD_DELTAS, "bytes": (peak - before) / streams}

    def newcomers(self, servers: Servers, rounds: int) -> Json:
        """Measure the latency of first deltas of consecutive streams: alone, and among saturated streams."""
        body = {"model": "local/short", "input": "Hello", "stream": True}
        lane = [{"body": body, "deltas": SHORT_DELTAS, "after": NEWCOMER_PAUSE}] * NEWCOMERS
        found: Json = {kind: {"alone": [], "among": []} for kind in servers}
        for number in range(rounds):
            for kind, server in servers.items():
                say(f"round {number + 1} of {rounds}: a stream among {OTHERS}")
                for name, others in (("alone", 0), ("among", OTHERS)):
                    # A separate client, since this one would be busy with the others when the newcomer's delta arrives.
                    with Worker("benchmarks.load") as crowd:
                        crowd.submit(Load("others", "endless", others, 1, ENDLESS_DELTAS).job(server.port))
                        time.sleep(SETTLED if others else 0)
                        [answers] = self.load.ask({"port": server.port, "lanes": [lane]})
                    found[kind][name] += [answer["first"] for answer in answers]
        return found

    # turns

    def chain(self, servers: Servers, name: str, turns: int) -> dict[str, Json]:
        """Measure the turns of one conversation on each server: latencies, numbers of retried and lost turns."""
        inputs = texts(turns, TURN_CHARACTERS)
        found: dict[str, Json] = {kind: {"took": [], "again": 0, "lost": 0} for kind in servers}
        last: dict[str, str | None] = dict.fromkeys(servers)
        for number, segment in enumerate(batched(inputs, SEGMENT)):
            say(f"{name} chain: {number * SEGMENT} of {turns} turns")
            for kind, server in servers.items():
                body = {"model": f"local/{chain_model(name, kind)}", **CHAINS[name]}
                steps = [{"body": {**body, "input": words}, "follows": True} for words in segment]
                [answers] = self.load.ask({"port": server.port, "lanes": [steps], "previous": last[kind]})
                found[kind]["took"] += [answer["total"] for answer in answers]
                found[kind]["again"] += sum(answer.get("again", 0) > 0 for answer in answers)
                found[kind]["lost"] += sum("lost" in answer for answer in answers)
                last[kind] = answers[-1]["id"]
        return found


def chain_model(chain: str, kind: str) -> str:
    """Return the model for one server's chain; all of them have the same answers."""
    return f"{chain}-{CHAINED.index(kind)}"


@contextmanager
def running(
    host: Host, inference_url: str, folder: Path, kinds: Sequence[str], auth: str | None = None
) -> Iterator[Servers]:
    """Run servers of these kinds with their state in this folder; `auth` is as for `stack`."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as stacks:
        servers = {}
        for kind in kinds:
            say(f"starting {kind}")
            servers[kind] = stacks.enter_context(stack(kind, host, inference_url, folder, auth))
        yield servers


def measure_chain(bench: Bench, host: Host, name: str, turns: int, folder: Path) -> Json:
    """Measure one conversation on two servers: the latencies of its turns, and the bytes added to empty stores."""
    with running(host, bench.upstream.base_url, folder, CHAINED, bench.auth) as servers:
        bench.warm_up(servers)
        empty = {kind: stored_bytes(server.state_dir) for kind, server in servers.items()}
        found = bench.chain(servers, name, turns)
    full = {kind: stored_bytes(server.state_dir) for kind, server in servers.items()}
    repeated = len(json.dumps(CHAINS[name])) if CHAINS[name] else 0
    content_bytes = turns * 2 * TURN_CHARACTERS
    return {
        "turns": turns,
        "content": content_bytes + repeated,
        "sent": content_bytes + turns * repeated,
        "servers": {kind: {"empty": empty[kind], "bytes": full[kind] - empty[kind], **found[kind]} for kind in CHAINED},
    }


def measure(host: Host, size: Size, folder: Path, auth: str | None) -> Json:
    """Measure everything, in the form that the tables need; `auth` is as for `stack`."""
    began = describe(host)
    with (
        UpstreamProcess(folder / "upstream.log") as upstream,
        Worker("benchmarks.load") as load,
        Worker("benchmarks.decoding") as decoding,
    ):
        bench = Bench(upstream.client, load, decoding, auth)
        bench.script(size.turns)
        with running(host, bench.upstream.base_url, folder / "rounds", KINDS, auth) as servers:
            rounds = bench.rounds(servers, size)
            # First: the memory left over from long streams would hide that of slow ones.
            crowd = bench.crowd(servers[OURS], size.crowd)
            newcomers = bench.newcomers(servers, size.rounds)
        chains = {name: measure_chain(bench, host, name, size.turns, folder / name) for name in CHAINS}
    in_step = paced.measure(folder / "paced", min(size.rounds, PACED_ROUNDS), auth=auth)
    machine = {**began, "load_after": os.getloadavg()[0]}
    return {"machine": machine, "chains": chains, "crowd": crowd, "newcomers": newcomers, "paced": in_step, **rounds}


def describe(host: Host) -> Json:
    """Describe the machine and the time of the measurement."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "host": f"{host.replace('_', '-')} {version(host)}",
        "openai": version("openai"),
        "python": platform.python_version(),
        "cpu": f"{os.cpu_count()} cores, {models[0].partition(': ')[2]}" if models else f"{os.cpu_count()} cores",
        "at": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "load_before": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, print, and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short rounds, a chain of 20 turns")
    parser.add_argument("--rounds", type=int, help="how often each load is measured (default: 5; quick: 1)")
    add_auth_option(parser)
    parser.add_argument("--host", choices=("llama_stack", "ogx"), help="the host (default: the one installed)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE too")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw the cost of streams to FILE, an SVG")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    host: Host = options.host or ("ogx" if find_spec("ogx") else "llama_stack")
    rounds = options.rounds or (1 if options.quick else 5)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        auth = opened.enter_context(auth_endpoint(options))
        found = measure(host, size(rounds, options.quick), Path(folder), auth)
    say(f"{time.monotonic() - started:.0f} s")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.picture:
        options.picture.write_text(picture(found["loads"]))
    shown = f"{tables(found)}\n{paced.table(found['paced'])}"
    if options.markdown:
        options.markdown.write_text(shown)
    sys.stdout.write(shown)


if __name__ == "__main__":
    main()
