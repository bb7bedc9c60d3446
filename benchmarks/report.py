"""What was measured, as tables in markdown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

from benchmarks.servers import BUILTIN, OURS

type Json = dict[str, Any]

_NAMES = {
    "stream-1": "1 stream",
    "stream-16": "16 streams",
    "paced-16": "16 streams, a token every 10 ms",
}
_TARGETED = ("stream-1", "stream-16")
_ENDS = 10  # turns at either end of a chain


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of both servers; `limit` is what ours may be at most."""

    name: str
    ours: float
    builtin: float
    show: Callable[[float], str]
    ratio: float | None = None
    limit: float | None = None

    def cells(self) -> list[str]:
        """The row of the table."""
        ratio = self.ours / self.builtin if self.ratio is None else self.ratio
        target = "" if self.limit is None else f"at most {self.show(self.limit)}"
        verdict = "" if self.limit is None else "pass" if self.ours <= self.limit else "**miss**"
        return [self.name, self.show(self.ours), self.show(self.builtin), f"{ratio:.2f}", target, verdict]


def tables(found: Json) -> str:
    """The comparison, and what the client's own decoding costs."""
    loads = found["loads"]
    rows = [*_streams(loads), _short(loads), *_firsts(loads), *_chain(found["chain"])]
    compared = _table(["", OURS, f"{found['host']} builtin", "ratio", "target", ""], [row.cells() for row in rows])
    clients = [("`openai` client", "openai"), ("httpx, lines only", "httpx")]
    floors = [[name, *(_us(_cpu(loads[load][client])) for load in _NAMES)] for name, client in clients]
    return compared + "\nReading the same stream and doing nothing with it, CPU per text delta:\n\n" + _table(
        ["", *_NAMES.values()], floors
    )


def _streams(loads: Json) -> list[Row]:
    """The target: what decoding costs, once and 15% more, and 15 microseconds."""
    return [
        Row(
            f"server CPU per text delta, {name}",
            _cpu(loads[load][OURS]),
            _cpu(loads[load][BUILTIN]),
            _us,
            _ratio(loads[load]),
            1.15 * _cpu(loads[load]["openai"]) + 15e-6 if load in _TARGETED else None,
        )
        for load, name in _NAMES.items()
    ]


def _short(loads: Json) -> Row:
    ours, builtin = (_cpu(loads["short-16"][kind]) for kind in (OURS, BUILTIN))
    name = "server CPU per short stored request, 16 at once"
    return Row(name, ours, builtin, _ms, _ratio(loads["short-16"]), builtin / 3)


def _firsts(loads: Json) -> list[Row]:
    rows = []
    for load in _TARGETED:
        ours, builtin = (_all_firsts(loads[load][kind]) for kind in (OURS, BUILTIN))
        rows += [
            Row(f"first delta after, {_NAMES[load]}: median", median(ours), median(builtin), _ms),
            Row(f"first delta after, {_NAMES[load]}: 95th percentile", _p95(ours), _p95(builtin), _ms),
        ]
    return rows


def _chain(chain: Json) -> list[Row]:
    content, length = chain["content"], chain["length"]
    grown = [chain[kind]["after"] - chain[kind]["before"] for kind in (OURS, BUILTIN)]
    chained, single = ([_turns(chain[kind], which) for kind in (OURS, BUILTIN)] for which in (True, False))
    return [
        Row(f"bytes that a chain of {length} turns adds ({content / 1000:.0f} kB of content)", *grown, _kb, None, 1.5 * content),
        Row(f"turns 1 to {_ENDS}: median", *(median(turns[:_ENDS]) for turns in chained), _ms),
        Row(f"turns {length - _ENDS + 1} to {length}: median", *(median(turns[-_ENDS:]) for turns in chained), _ms),
        Row("single requests of the same size: median", *(median(turns) for turns in single), _ms),
    ]


def _turns(of_server: Json, chained: bool) -> list[float]:
    return [turn["total"] for turn in of_server["turns"] if turn["chained"] is chained]


def _cpu(rounds: Sequence[Json]) -> float:
    return median(each["cpu"] for each in rounds)


def _ratio(load: Json) -> float:
    """The median of the rounds' ratios: what disturbed one round disturbed both sides of it."""
    return median(ours["cpu"] / builtin["cpu"] for ours, builtin in zip(load[OURS], load[BUILTIN], strict=True))


def _all_firsts(rounds: Sequence[Json]) -> list[float]:
    return [first for each in rounds for first in each["firsts"]]


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _kb(count: float) -> str:
    return f"{count / 1000:,.0f} kB"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
