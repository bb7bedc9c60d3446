"""The benchmark's arithmetic: medians, ratios, targets and verdicts."""

from typing import Any

import pytest

from benchmarks.report import READERS, streaming_limit, tables, with_spread
from benchmarks.servers import BUILTIN, OURS

type Json = dict[str, Any]

LOADS = ("stream-1", "stream-16", "paced-16", "short-16")


def measured(cpu: float, first: float = 0.010) -> list[Json]:
    return [{"cpu": cpu * factor, "firsts": [first, first]} for factor in (0.9, 1.0, 1.3)]


def findings(**ours: float) -> Json:
    """What a run finds: the client decodes in 100 us, the builtin takes 200 us a delta and 30 ms a request."""
    cpu = {load: {OURS: 120e-6, BUILTIN: 200e-6, **dict.fromkeys(READERS, 100e-6)} for load in LOADS}
    cpu["short-16"] |= {OURS: 9e-3, BUILTIN: 30e-3}
    for load, seconds in ours.items():
        cpu[load.replace("_", "-")][OURS] = seconds
    turns = [0.020] * 10 + [0.030] * 10
    servers = {
        kind: {"empty": 4096, "bytes": size, "took": turns, "again": 0}
        for kind, size in ((OURS, 60_000), (BUILTIN, 10**6))
    }
    chain = {"turns": 20, "content": 50_000, "sent": 50_000, "servers": servers}
    machine = {"host": "llama-stack 0", "openai": "0", "python": "0", "cpu": "2 cores", "at": "now"}
    return {
        "machine": {**machine, "load_before": 0.0, "load_after": 0.0},
        "idle": {OURS: 0.002, BUILTIN: 0.004},
        "loads": {load: {name: measured(value) for name, value in costs.items()} for load, costs in cpu.items()},
        "chains": {"plain": chain, "repeating": {**chain, "content": 30_000}},
    }


def row(report: str, name: str) -> list[str]:
    [line] = [line for line in report.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_both_medians_their_ratio_and_the_target() -> None:
    cells = row(tables(findings()), "server CPU per text delta, 1 stream")
    assert cells[1:] == ["120 µs (108-156)", "200 µs (180-260)", "0.60", "at most 130 µs", "met"]


def test_streaming_may_cost_what_decoding_does_and_a_little() -> None:
    assert streaming_limit(100e-6) == pytest.approx(130e-6)


def test_a_target_that_is_missed_is_called_missed() -> None:
    report = tables(findings(stream_16=156e-6, short_16=15e-3))
    assert row(report, "server CPU per text delta, 16 streams |")[-1] == "**missed**, 1.20x"
    assert row(report, "server CPU per short stored request")[-3:] == ["0.50", "at most 10.0 ms", "**missed**, 1.50x"]


def test_a_chain_is_held_to_its_content() -> None:
    report = tables(findings())
    assert row(report, "chain: bytes stored for 50 kB")[-2:] == ["at most 75 kB", "met"]
    assert row(report, "chain with tools and instructions: bytes stored for 30 kB")[-1] == "**missed**, 1.33x"
    assert row(report, "chain: turns 1 to 10")[1] == "20.0 ms (20.0-20.0)"
    assert row(report, "chain: turns 11 to 20")[1] == "30.0 ms (30.0-30.0)"


def test_what_only_reads_stands_beside() -> None:
    assert row(tables(findings()), "`openai` client")[1:] == ["100 µs (90-130)"] * 3 + ["0.1 ms (0.1-0.1)"]


def test_a_single_measurement_has_no_spread() -> None:
    assert with_spread([2.0], lambda value: f"{value:.0f} s") == "2 s"
