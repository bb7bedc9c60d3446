"""The CPU time of a streamed delta and of a short request, by stage of the code.

    .venv/bin/python -m benchmarks.stages                          # about a minute
    .venv/bin/python -m benchmarks.stages --seconds 20 --markdown FILE

`py-spy` samples the stacks of a loaded server from outside, a few hundred times a second. A sample belongs to the
innermost frame of a known stage: library code counts as the stage that called it, unless the library is a stage.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from linecache import getline
from pathlib import Path
from typing import Any, Final

from benchmarks.overhead import SETTLE, Bench, Load, describe, running, say
from benchmarks.report import markdown_table
from benchmarks.servers import ON_HOST, OURS, Worker, cpu_seconds
from tests.support.upstream import UpstreamProcess

type Json = dict[str, Any]

STAGES: Final[dict[str, tuple[str, ...]]] = {
    "the model server's bytes, to chunks": (
        "llama_stack_openai_chat/",
        "openai/",
        "httpx2?/",
        "httpcore2?/",
        "anyio/",
    ),
    "the host's router and provider": (
        "llama_stack/core/(routers|routing_tables|store|access_control)",
        "llama_stack/providers",
        "llama_stack_responses/host/(chat|inference|provider|model)",
    ),
    "messages to the model, chunks to deltas": ("llama_stack_responses/chat/",),
    "deltas to events, and the response": ("llama_stack_responses/stream/",),
    "log lines": (
        "logging/",
        "structlog/",
        "llama_stack/log",
        "llama_stack_responses/logs",
        "llama_stack_responses/generation/response_log",
    ),
    "spans and metrics": ("opentelemetry/", "llama_stack_responses/telemetry/"),
    "saving the response": ("llama_stack_responses/(store|jobs)/",),
    "reading and resolving the request": (
        "llama_stack_responses/(inputs|requests|items|sealing)/",
        "llama_stack_responses/wire/request_(bodies|headers)",
    ),
    "rounds": ("llama_stack_responses/(generation|tools)/",),
    "service and admission": ("llama_stack_responses/(service/|admission)", "llama_stack_responses/features/"),
    "this project's routes and answers": ("llama_stack_responses/wire/",),
    "web server": ("uvicorn/", "llama_stack_responses/host/web_server/"),
    "the host's middlewares, and FastAPI's": ("starlette/", "fastapi/", "llama_stack/core/server"),
}
"""Patterns of the files of a stage's frames; the first match counts. What all of them use belongs to its caller."""

ELSE: Final = "event loop and kernel"
REPEATS: Final = 8  # runs of a load for its cost
_FRAME: Final = re.compile(r"\(([^()]+):(\d+)\)$")
_WAITS: Final = re.compile(r"\.(get|wait|acquire|sleep)\(")


def stage_of(frames: list[tuple[str, int]]) -> str:
    """Return the stage of a stack of files and lines, the innermost last."""
    for file, _ in reversed(frames):
        for stage, files in STAGES.items():
            if any(re.search(f"/{each}", file) for each in files):
                return stage
    return ELSE


def waits(frames: list[tuple[str, int]]) -> bool:
    """Whether a thread is idle: py-spy does not report it, so this looks for a waiting call in the innermost line."""
    return bool(frames) and _WAITS.search(getline(*frames[-1])) is not None


def shares(samples: Iterable[str]) -> dict[str, float]:
    """Return each stage's share of the samples: lines of a stack, `function (file:line);...`, and a count."""
    seen: Counter[str] = Counter()
    for line in samples:
        stack, _, count = line.rpartition(" ")
        frames = [(found[1], int(found[2])) for each in stack.split(";") if (found := _FRAME.search(each))]
        if not waits(frames):
            seen[stage_of(frames)] += int(count)
    return {stage: seen[stage] / seen.total() for stage in (*STAGES, ELSE)}


def sample(pid: int, seconds: int, rate: int, output: Path) -> list[str]:
    """Sample the stacks of a process."""
    command = ["py-spy", "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(rate)]
    command += ["--format", "raw", "--full-filenames", "--output", str(output)]
    program = Path(sys.executable).parent / command[0]
    subprocess.run([program, *command[1:]], check=True, capture_output=True)  # noqa: S603
    return output.read_text().splitlines()


def profile(bench: Bench, pid: int, load: Load, port: int, options: argparse.Namespace, folder: Path) -> Json:
    """Return the CPU seconds per unit of a load, and each stage's share, sampled afterwards because of its cost."""
    bench.load.ask(load.job(port))
    before = cpu_seconds(pid)
    for _ in range(REPEATS):
        bench.load.ask(load.job(port))
    time.sleep(SETTLE)
    cpu = (cpu_seconds(pid) - before) / (REPEATS * load.units)
    with ThreadPoolExecutor(1) as sampling:
        samples = sampling.submit(sample, pid, options.seconds, options.rate, folder / "stacks")
        while not samples.done():
            bench.load.ask(load.job(port))
    return {"cpu": cpu, "shares": shares(samples.result())}


def table(profiles: dict[str, Json], scale: float, unit: str) -> str:
    """Format each stage's part of the cost per unit, for each server."""
    head = ["", *profiles]
    rows = [
        [stage, *(f"{each['shares'][stage] * each['cpu'] * scale:.1f}" for each in profiles.values())]
        for stage in (*STAGES, ELSE)
    ]
    return markdown_table(head, [*rows, [f"**{unit}**", *(f"{each['cpu'] * scale:.1f}" for each in profiles.values())]])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10, help="how long each server is looked at (default: 10)")
    parser.add_argument("--rate", type=int, default=500, help="samples a second (default: 500)")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables to FILE too")
    options = parser.parse_args()
    loads = {
        "µs a text delta, 16 streams": (Load("stream-16", "long", 16, 1, 512), 1e6),
        "µs a short stored request, 16 at once": (Load("short-16", "short", 16, 3, 32, stream=False), 1e6),
    }
    shown = []
    with (
        tempfile.TemporaryDirectory() as name,
        UpstreamProcess(Path(name) / "upstream.log") as upstream,
        Worker("benchmarks.load") as load_client,
    ):
        folder = Path(name)
        bench = Bench(upstream.client, load_client, load_client)
        bench.script(0)
        about = describe("llama_stack")
        shown.append(f"{about['at']}; {about['host']}, load average {about['load_before']:.2f} before.\n")
        with running("llama_stack", upstream.client.base_url, folder / "state", (OURS, ON_HOST)) as servers:
            for unit, (load, scale) in loads.items():
                found = {}
                for kind, server in servers.items():
                    say(f"{kind}: {unit}")
                    found[kind] = profile(bench, server.pid, load, server.port, options, folder)
                shown.append(table(found, scale, unit))
    text = "\n".join(shown)
    if options.markdown:
        options.markdown.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
