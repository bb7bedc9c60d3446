"""The results as markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final

from benchmarks.servers import BUILTIN, KINDS, ON_HOST, OURS

type Json = dict[str, Any]

READERS: Final = {
    "openai": "`openai` client",
    "host": "the host's inference provider",
    "httpx": "httpx, lines only",
}

_STREAMS: Final = {
    "stream-1": "1 stream",
    "stream-16": "16 streams",
    "stream-64": "64 streams",
    "paced-16": "16 streams, a token every 10 ms",
}
_OTHERS: Final = {
    "reasoning-16": "delta of reasoning, 16 streams",
    "calls-16": "delta of a call's arguments, 16 streams",
}
_TARGETED: Final = ("stream-1", "stream-16")
_DELTA_LIMIT: Final = 30e-6
_SHORT_LIMIT: Final = 8e-3
_FAIR: Final = 3  # factor over the latency when alone
_CHAINS: Final = {"plain": "chain", "repeating": "chain with tools and instructions"}
_ENDS: Final = 10  # turns at each end of a chain


@dataclass(frozen=True, slots=True)
class Row:
    """One value of several servers, each with its measurements; `limits` are the maximum values.

    The value is the median, or the 95th percentile.
    """

    name: str
    values: Mapping[str, Sequence[float]]
    show: Callable[[float], str]
    limits: Mapping[str, float] = field(default_factory=dict)
    p95: bool = False

    def cells(self) -> list[str]:
        """Return the cells of the row."""
        shown = [self._cell(self.values[kind]) if kind in self.values else "" for kind in KINDS]
        verdicts = [self._verdict(kind) for kind in (OURS, ON_HOST)]
        return [self.name, *shown, self._ratio(), *verdicts]

    def _ratio(self) -> str:
        if BUILTIN not in self.values:
            return ""
        ours, builtin = (self._figure(self.values[kind]) for kind in (OURS, BUILTIN))
        return f"{ours / builtin:.2f}" if builtin else ""

    def _verdict(self, kind: str) -> str:
        if kind not in self.limits:
            return ""
        limit, found = self.limits[kind], self._figure(self.values[kind])
        return f"{self.show(limit)}: " + ("met" if found <= limit else f"**missed**, {found / limit:.2f}x")

    def _figure(self, values: Sequence[float]) -> float:
        return quantiles(values, n=20, method="inclusive")[-1] if self.p95 else median(values)

    def _cell(self, values: Sequence[float]) -> str:
        return self.show(self._figure(values)) if self.p95 else with_spread(values, self.show)


def tables(found: Json) -> str:
    """Return the comparison, the cost of reading alone, and the time and machine of the run."""
    loads, chains = found["loads"], found["chains"]
    rows = [*_streams(loads), _short(loads), *_firsts(loads), *_newcomers(found["newcomers"])]
    rows += [row for name, chain in chains.items() for row in _chain(_CHAINS[name], chain)]
    head = ["", *KINDS, "ratio of the first to the last", "target of the first", "target of the second"]
    return "\n".join(
        [
            _about(found),
            markdown_table(head, [row.cells() for row in rows]),
            _crowd(found["crowd"]),
            "CPU time per text delta of clients that read the same streams and drop them (last column: per stream):\n",
            markdown_table(
                ["", *_STREAMS.values(), "16 streams of 32 deltas"], [_reader(loads, each) for each in READERS]
            ),
        ]
    )


def with_spread(values: Sequence[float], show: Callable[[float], str]) -> str:
    """Format the median; for several values, also the minimum and maximum."""
    low, high = (show(value).partition(" ")[0] for value in (min(values), max(values)))
    return show(median(values)) + (f" ({low}-{high})" if len(values) > 1 else "")


def with_half(values: Sequence[float], form: str = "{:.3f}") -> tuple[str, str]:
    """Format the median of several rounds, and the range of the middle half of them."""
    ordered = sorted(values)
    quarter = len(ordered) // 4
    return form.format(median(ordered)), f"{form.format(ordered[quarter])} to {form.format(ordered[-quarter - 1])}"


def streaming_limit(decoding: float) -> float:
    """Return the target with the host's provider: 115% of the client's decoding cost, plus 15 microseconds."""
    return 1.15 * decoding + 15e-6


def _about(found: Json) -> str:
    machine = found["machine"]
    idle = "; ".join(f"{kind} {seconds * 1000:.1f}" for kind, seconds in found["idle"].items())
    return (
        f"{machine['at']}; {machine['host']}, openai {machine['openai']}, Python {machine['python']}; "
        f"{machine['cpu']}; "
        f"load average {machine['load_before']:.2f} before and {machine['load_after']:.2f} after. "
        "The figures are medians, with the smallest and the largest round in brackets. The CPU time of the idle "
        f"servers is subtracted (ms a second): {idle}.\n"
    )


def _streams(loads: Json) -> list[Row]:
    return [
        Row(
            f"server CPU per text delta, {name}",
            _cpus(loads[load]),
            _us,
            _limits(median(_cpu(loads[load]["openai"]))) if load in _TARGETED else {},
        )
        for load, name in _STREAMS.items()
    ] + [Row(f"server CPU per {name}", _cpus(loads[load]), _us) for load, name in _OTHERS.items()]


def _limits(decoding: float) -> dict[str, float]:
    return {OURS: _DELTA_LIMIT, ON_HOST: streaming_limit(decoding)}


def _crowd(crowd: Json) -> str:
    streams, complete, deltas = (f"{crowd[name]:,}" for name in ("streams", "complete", "deltas"))
    return (
        f"One process served {streams} concurrent streams with one token a second each. {complete} of them completed, "
        f"each with all of its {deltas} deltas. Each open stream took {_kb(crowd['bytes'])} of memory.\n"
    )


def _short(loads: Json) -> Row:
    values = _cpus(loads["short-16"])
    limits = {OURS: _SHORT_LIMIT, ON_HOST: median(values[BUILTIN]) / 3}
    return Row("server CPU per short stored request, 16 at once", values, _ms, limits)


def _firsts(loads: Json) -> list[Row]:
    rows = []
    for load, name in _STREAMS.items():
        values = {kind: [first for each in loads[load][kind] for first in each["firsts"]] for kind in KINDS}
        rows += [
            Row(f"time to first delta, {name}: median", values, _ms),
            Row(f"time to first delta, {name}: 95th percentile", values, _ms, p95=True),
        ]
    return rows


def _newcomers(newcomers: Json) -> list[Row]:
    alone, among = ({kind: newcomers[kind][name] for kind in KINDS} for name in ("alone", "among"))
    limits = {kind: _FAIR * median(alone[kind]) for kind in (OURS, ON_HOST)}
    return [
        Row("time to first delta of a single stream: median", alone, _ms),
        Row("time to first delta of a stream that joins 63 others at full speed: median", among, _ms, limits),
        Row(
            "time to first delta of a stream that joins 63 others at full speed: 95th percentile", among, _ms, p95=True
        ),
    ]


def _chain(name: str, chain: Json) -> list[Row]:
    turns, servers = chain["turns"], chain["servers"]
    stored = {kind: [server["bytes"]] for kind, server in servers.items()}
    first = {kind: server["took"][:_ENDS] for kind, server in servers.items()}
    last = {kind: server["took"][-_ENDS:] for kind, server in servers.items()}
    return [
        Row(f"{name}: bytes stored for {_kb(chain['content'])}", stored, _kb, {OURS: 1.5 * chain["content"]}),
        Row(f"{name}: turns 1 to {_ENDS}", first, _ms),
        Row(f"{name}: turns {turns - _ENDS + 1} to {turns}", last, _ms),
        _counted(f"{name}: turns that first got a 404", servers, "again"),
        _counted(f"{name}: turns whose predecessor was never found", servers, "lost"),
    ]


def _counted(name: str, servers: Json, of: str) -> Row:
    return Row(name, {kind: [server[of]] for kind, server in servers.items()}, _count)


def _reader(loads: Json, reader: str) -> list[str]:
    deltas = [with_spread(_cpu(loads[load][reader]), _us) for load in _STREAMS]
    return [READERS[reader], *deltas, with_spread(_cpu(loads["short-16"][reader]), _ms)]


def _cpus(load: Json) -> dict[str, Sequence[float]]:
    return {kind: _cpu(load[kind]) for kind in KINDS if kind in load}


def _cpu(rounds: Sequence[Json]) -> list[float]:
    return [each["cpu"] for each in rounds]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _kb(count: float) -> str:
    return f"{count / 1000:,.0f} kB"


def _count(number: float) -> str:
    return f"{number:.0f}"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table with a first column of words and others of numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
