"""What is measured of each server, as figures by their names."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import batched
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.paced_load import cpu_nanoseconds
from benchmarks.rivals.servers import Rival
from benchmarks.servers import stored_bytes
from benchmarks.texts import texts
from tests.support.memory import resident_bytes
from tests.support.stack import LiveStack

type Json = dict[str, Any]
type Figures = dict[str, float]
type Ask = Callable[[str, Json], Any]
"""Runs a job of a load client: its module in this folder's parent, and the job."""

SETTLE: Final = 0.3  # seconds for the work that a server does after its answer
STEP_MS: Final = 20
LIMIT: Final = 300.0  # seconds of a load
CHUNK: Final = 20  # turns of a chain that are sent before the next server's

STORED: Final = "CPU of a short stored request"
UNSTORED: Final = "CPU of a short request that is not stored"
STEPPED: Final = "CPU of a token in lock-step"
FULL: Final = "CPU of a token at full speed"
RATES: Final = "requests a second, {} at once"
LATENCY: Final = "a short stored request takes, 16 at once: "
FIRST: Final = "first token, streams that begin at once: "
LATE: Final = "a token in lock-step is late by: 99%"
REST: Final = "memory after the start"
AFTER: Final = "memory after all loads"
CHAIN: Final = "bytes of a chain"
TURN: Final = "CPU of a turn of the chain"


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a run.

    Attributes:
        requests: short requests of a load.
        streams, tokens: those in lock-step.
        bursts: streams at full speed.
        turns: of the chain.
    """

    requests: int
    streams: int
    tokens: int
    bursts: int
    turns: int


WHOLE: Final = Size(requests=192, streams=64, tokens=200, bursts=16, turns=100)
SHORT: Final = Size(requests=32, streams=8, tokens=20, bursts=2, turns=4)


def processes(leader: int) -> Iterator[int]:
    """Yield the processes of a group."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader:
            yield int(stat.parent.name)


def cpu(server: LiveStack) -> float:
    """Return the CPU seconds of a server's processes."""
    return sum(cpu_nanoseconds(each) for each in processes(server.pid)) / 1e9


def resident(server: LiveStack) -> int:
    """Return the resident bytes of a server's processes."""
    return sum(resident_bytes(each) for each in processes(server.pid))


def short(ask: Ask, rival: Rival, server: LiveStack, lanes: int, count: int, store: bool = True) -> Figures:
    """Send short requests that are not streamed."""
    body = {"model": f"{rival.prefix}burst-32", "input": "Hello", "store": store}
    job = {"port": server.port, "lanes": [[{"body": body}] * (count // lanes)] * lanes, "seconds": LIMIT}
    before, began = cpu(server), time.perf_counter()
    answers = ask("load", job)
    took = time.perf_counter() - began
    time.sleep(SETTLE)
    cost = (cpu(server) - before) / count
    if not store:
        return {UNSTORED: cost}
    found = {RATES.format(lanes): count / took}
    if lanes == 16:
        totals = [answer["total"] for lane in answers for answer in lane]
        found |= {STORED: cost, f"{LATENCY}median": median(totals), f"{LATENCY}99%": percent(totals, 99)}
    return found


def percent(values: Sequence[float], part: int) -> float:
    """Return a percentile."""
    return quantiles(values, n=100, method="inclusive")[part - 1]


def streams(ask: Ask, rival: Rival, server: LiveStack, kind: str, count: int, tokens: int) -> Json:
    """Run streams that begin at once; return what `benchmarks.paced_load` measures."""
    [pid] = busiest(server)
    body = {"model": f"{rival.prefix}{kind}-{tokens}", "input": "Hello", "stream": True}
    job = {"port": server.port, "pid": pid, "form": "streamed", "body": body, "streams": count, "tokens": tokens}
    job["seconds"] = LIMIT
    found: Json = ask("paced_load", job)
    return found


def busiest(server: LiveStack) -> list[int]:
    """Return the process of a server that does its work."""
    return sorted(processes(server.pid), key=cpu_nanoseconds)[-1:]


def stepped(ask: Ask, rival: Rival, server: LiveStack, size: Size) -> Figures:
    """Measure streams in lock-step."""
    found = streams(ask, rival, server, "text", size.streams, size.tokens)
    firsts = found["firsts"]
    figures = {f"{FIRST}median": median(firsts), f"{FIRST}99%": percent(firsts, 99)}
    if found["cpu"]:
        figures |= {STEPPED: found["cpu"], LATE: found["late"]["99"]}
    return figures


def full_speed(ask: Ask, rival: Rival, server: LiveStack, size: Size) -> Figures:
    """Measure streams whose tokens the model server has written at once, with their share of the response."""
    return {FULL: streams(ask, rival, server, "burst", size.bursts, 512)["whole"]}


def one_round(ask: Ask, rival: Rival, server: LiveStack, size: Size) -> Figures:
    """Return all figures of one server in one round."""
    figures = short(ask, rival, server, 16, size.requests)
    figures |= short(ask, rival, server, 64, max(64, size.requests))
    figures |= short(ask, rival, server, 16, size.requests, store=False)
    return figures | stepped(ask, rival, server, size) | full_speed(ask, rival, server, size)


def chain(ask: Ask, rival: Rival, server: LiveStack, turns: int) -> Figures:
    """Measure one conversation by `previous_response_id`, with 1 kB in and 1 kB out in each turn."""
    stored, before, previous = stored_bytes(server.state_dir), cpu(server), None
    for inputs in batched(texts(turns, 1024), CHUNK):
        steps = [{"body": {"model": f"{rival.prefix}burst-64", "input": each}, "follows": True} for each in inputs]
        [answers] = ask("load", {"port": server.port, "lanes": [steps], "previous": previous})
        previous = answers[-1]["id"]
    time.sleep(SETTLE)
    return {CHAIN: stored_bytes(server.state_dir) - stored, TURN: (cpu(server) - before) / turns}
