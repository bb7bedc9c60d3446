"""The cost of a token that comes alone, at the pace of an engine, next to a relay that passes bytes on unread.

    .venv/bin/python -m benchmarks.paced                            # about eight minutes
    .venv/bin/python -m benchmarks.paced --streams 64 --rounds 1 --only relay streamed

`benchmarks.overhead` measures the same, with everything else. All servers run at once and take turns. Linux only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.report import markdown_table, with_spread
from benchmarks.servers import BUILTIN, OURS, REPOSITORY, Worker, add_auth_option, auth_endpoint, stack
from benchmarks.texts import tools
from tests.support.process import killed_with_parent

type Json = dict[str, Any]

RELAY: Final = "relay"
FRAMEWORK: Final = "web framework"
PROGRAMS: Final = {RELAY: "benchmarks.relay", FRAMEWORK: "benchmarks.framework"}
"""What passes the model server's bytes on unread: the modules, by what the table says."""
TOKENS: Final = 200
STEP_MS: Final = 20
STREAMS: Final = (1, 16, 64, 256)
_TOOL: Final = tools(1, 200)


@dataclass(frozen=True, slots=True)
class Way:
    """One way in which streams are requested.

    Attributes:
        name: what the table says.
        server: the server that gets the requests.
        form: how they are sent, as `benchmarks.paced_load` names it.
        kind: what the model says, as `benchmarks.engine` names it.
        streams: the numbers of streams.
    """

    name: str
    server: str
    form: str = "streamed"
    kind: str = "text"
    streams: Sequence[int] = STREAMS

    def body(self, tokens: int) -> Json:
        """Return the request."""
        model = f"{self.kind}-{tokens}"
        if self.form == "chat":
            model = model if self.server in PROGRAMS else f"local/{model}"
            return {"model": model, "stream": True, "messages": [{"role": "user", "content": "Hello"}]}
        body = {"model": f"local/{model}", "input": "Hello", "tools": _TOOL}
        if self.form == "websocket":
            return {"type": "response.create", **body}
        return {**body, "stream": True} | ({"background": True} if self.form == "background" else {})


WAYS: Final = (
    Way("relay", RELAY, "chat"),
    Way("web framework", FRAMEWORK, "chat"),
    Way("the host's chat completions", OURS, "chat"),
    Way("text", OURS),
    Way("reasoning", OURS, kind="reasoning", streams=(64, 256)),
    Way("arguments of a call", OURS, kind="arguments", streams=(16, 64, 256)),
    Way("text, in the background", OURS, "background", streams=(16, 64, 256)),
    Way("text, on WebSockets", OURS, "websocket", streams=(16, 64, 256)),
    Way("text, builtin", BUILTIN, streams=(1, 16, 64)),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server listens, and its process."""

    port: int
    pid: int


@contextmanager
def program(module: str, argument: object) -> Iterator[Place]:
    """Run a module of this folder that prints its port."""
    command = killed_with_parent([sys.executable, "-m", module, str(argument)])
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        try:
            assert process.stdout
            yield Place(int(process.stdout.readline().split()[1]), process.pid)
        finally:
            process.kill()


@contextmanager
def places(folder: Path, ways: Sequence[Way], step_ms: float, auth: str | None = None) -> Iterator[dict[str, Place]]:
    """Run the engine, and the servers of these ways; `auth` is as for `stack`."""
    folder.mkdir(exist_ok=True)
    with ExitStack() as running:
        engine = running.enter_context(program("benchmarks.engine", step_ms))
        found = {}
        for kind in dict.fromkeys(way.server for way in ways):
            if kind in PROGRAMS:
                found[kind] = running.enter_context(program(PROGRAMS[kind], engine.port))
                continue
            url = f"http://127.0.0.1:{engine.port}/v1"
            server = running.enter_context(stack(kind, "llama_stack", url, folder, auth))
            found[kind] = Place(server.port, server.pid)
        yield found


def measure(
    folder: Path, rounds: int, ways: Sequence[Way] = WAYS, step_ms: float = STEP_MS, auth: str | None = None
) -> Json:
    """Return the measurements of each way, by the number of streams; `auth` is as for `stack`."""
    found: Json = {way.name: {str(count): [] for count in way.streams} for way in ways}
    with places(folder, ways, step_ms, auth) as servers, Worker("benchmarks.paced_load") as load:
        for way in ways:
            load.ask(job_of(way, servers[way.server], 8, 20))
        for number in range(rounds):
            for count in dict.fromkeys(each for way in ways for each in way.streams):
                for way in ways[:: -1 if number % 2 else 1]:
                    if count in way.streams:
                        sys.stderr.write(f"round {number + 1} of {rounds}: {way.name}, {count} streams in step\n")
                        found[way.name][str(count)].append(load.ask(job_of(way, servers[way.server], count, TOKENS)))
    return {"step_ms": step_ms, "tokens": TOKENS, "ways": found}


def job_of(way: Way, place: Place, streams: int, tokens: int) -> Json:
    """Return a job for `benchmarks.paced_load`."""
    job = {"port": place.port, "pid": place.pid, "form": way.form, "body": way.body(tokens)}
    return {**job, "streams": streams, "tokens": tokens}


def table(found: Json) -> str:
    """Return the measurements as a table."""
    ways = found["ways"]
    head = ["", "streams", "CPU of one more token", "ratio to the relay", "with its share of the response", "ratio"]
    head += ["late: median", "95%", "99%", "first token: median"]
    rows = [
        _row(name, count, rounds, ways.get(RELAY, {}).get(count))
        for name, by in ways.items()
        for count, rounds in by.items()
    ]
    about = f"Every {found['step_ms']:g} ms a token of each stream, {found['tokens']} tokens a stream:\n\n"
    return about + markdown_table(head, sorted(rows, key=lambda row: int(row[1])))


def _row(name: str, count: str, rounds: Sequence[Json], floor: Sequence[Json] | None) -> list[str]:
    return [
        name,
        count,
        *(cell for each in ("cpu", "whole") for cell in _cost(rounds, floor, each)),
        *(_ms([each["late"][part] for each in rounds if each["late"]]) for part in ("50", "95", "99")),
        _ms([median(each["firsts"]) for each in rounds]),
    ]


def _cost(rounds: Sequence[Json], floor: Sequence[Json] | None, name: str) -> list[str]:
    """Return the cost and its ratio to the relay's; empty if the streams never all ran."""
    values, floors = ([each[name] for each in some or () if each[name]] for some in (rounds, floor))
    shown = with_spread(values, lambda seconds: f"{seconds * 1e6:.0f} µs") if values else ""
    return [shown, f"{median(values) / median(floors):.1f}" if values and floors else ""]


def _ms(values: Sequence[float]) -> str:
    return f"{median(values) * 1e3:.1f} ms" if values else ""


def main() -> None:
    """Measure, print, and store the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each is measured (default: 3)")
    parser.add_argument("--step", type=float, default=STEP_MS, metavar="MS", help="milliseconds between two steps")
    parser.add_argument("--streams", type=int, nargs="*", default=STREAMS, help="only these numbers of streams")
    parser.add_argument("--only", nargs="*", default=[way.name for way in WAYS], help="only these ways")
    add_auth_option(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args()
    chosen = [
        Way(way.name, way.server, way.form, way.kind, [each for each in options.streams if each in way.streams])
        for way in WAYS
        if way.name in options.only
    ]
    with tempfile.TemporaryDirectory() as folder, auth_endpoint(options) as auth:
        found = measure(Path(folder), options.rounds, chosen, options.step, auth)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write(table(found))


if __name__ == "__main__":
    main()
