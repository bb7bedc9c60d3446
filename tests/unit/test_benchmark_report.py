"""The benchmark's arithmetic: medians, ratios, targets and verdicts."""

from typing import Any

import pytest

from benchmarks.picture import picture
from benchmarks.report import READERS, streaming_limit, tables, with_spread
from benchmarks.servers import BUILTIN, ON_HOST, OURS

type Json = dict[str, Any]

LOADS = ("stream-1", "stream-16", "stream-64", "reasoning-16", "calls-16", "paced-16", "short-16")


def measured(cpu: float, first: float = 0.010) -> list[Json]:
    return [{"cpu": cpu * factor, "firsts": [first, first]} for factor in (0.9, 1.0, 1.3)]


def findings(**on_host: float) -> Json:
    """What a run finds: the client decodes in 100 us, the builtin takes 200 us a delta and 30 ms a request."""
    cpu = {load: {OURS: 24e-6, ON_HOST: 120e-6, BUILTIN: 200e-6, **dict.fromkeys(READERS, 100e-6)} for load in LOADS}
    del cpu["calls-16"][BUILTIN]
    cpu["short-16"] |= {OURS: 6e-3, ON_HOST: 9e-3, BUILTIN: 30e-3}
    for load, seconds in on_host.items():
        cpu[load.replace("_", "-")][ON_HOST] = seconds
    turns = [0.020] * 10 + [0.030] * 10
    servers = {
        kind: {"empty": 4096, "bytes": size, "took": turns, "again": 0, "lost": 0}
        for kind, size in ((OURS, 60_000), (BUILTIN, 10**6))
    }
    chain = {"turns": 20, "content": 50_000, "sent": 50_000, "servers": servers}
    machine = {"host": "llama-stack 0", "openai": "0", "python": "0", "cpu": "2 cores", "at": "now"}
    return {
        "machine": {**machine, "load_before": 0.0, "load_after": 0.0},
        "idle": {OURS: 0.002, ON_HOST: 0.002, BUILTIN: 0.004},
        "crowd": {"streams": 1000, "complete": 1000, "deltas": 20, "bytes": 45_000},
        "loads": {load: {name: measured(value) for name, value in costs.items()} for load, costs in cpu.items()},
        "newcomers": {
            OURS: {"alone": [0.005] * 3, "among": [0.010, 0.014, 0.030]},
            ON_HOST: {"alone": [0.010] * 2, "among": [0.040] * 2},
            BUILTIN: {"alone": [0.012] * 2, "among": [0.300] * 2},
        },
        "chains": {"plain": chain, "repeating": {**chain, "content": 30_000}},
    }


def row(report: str, name: str) -> list[str]:
    [line] = [line for line in report.splitlines() if line.startswith(f"| {name}")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_row_has_all_medians_a_ratio_and_the_targets() -> None:
    cells = row(tables(findings()), "server CPU per text delta, 1 stream")
    assert cells[1:] == [
        "24 µs (22-31)",
        "120 µs (108-156)",
        "200 µs (180-260)",
        "0.12",
        "30 µs: met",
        "130 µs: met",
    ]


def test_streaming_may_cost_what_decoding_does_and_a_little() -> None:
    assert streaming_limit(100e-6) == pytest.approx(130e-6)


def test_a_target_that_is_missed_is_called_missed() -> None:
    report = tables(findings(stream_16=156e-6, short_16=15e-3))
    assert row(report, "server CPU per text delta, 16 streams |")[-1] == "130 µs: **missed**, 1.20x"
    assert row(report, "server CPU per short stored request")[-3:] == [
        "0.20",
        "8.0 ms: met",
        "10.0 ms: **missed**, 1.50x",
    ]


def test_a_chain_is_held_to_its_content() -> None:
    report = tables(findings())
    assert row(report, "chain: bytes stored for 50 kB")[-2:] == ["75 kB: met", ""]
    assert row(report, "chain with tools and instructions: bytes stored for 30 kB")[-2] == "45 kB: **missed**, 1.33x"
    assert row(report, "chain: turns 1 to 10")[1] == "20.0 ms (20.0-20.0)"
    assert row(report, "chain: turns 11 to 20")[1] == "30.0 ms (30.0-30.0)"


def test_what_only_reads_stands_beside() -> None:
    assert row(tables(findings()), "`openai` client")[1:] == ["100 µs (90-130)"] * 4 + ["0.1 ms (0.1-0.1)"]


def test_a_single_measurement_has_no_spread() -> None:
    assert with_spread([2.0], lambda value: f"{value:.0f} s") == "2 s"


def test_the_picture_has_a_line_for_each_server() -> None:
    drawn = picture(findings()["loads"])
    assert drawn.startswith("<svg ")
    assert drawn.count("<polyline ") == 3
    for words in (OURS, BUILTIN, "24 µs", "200 µs", "64"):
        assert words in drawn


def test_who_comes_to_many_waits_no_longer_than_three_times_as_long_as_alone() -> None:
    cells = row(tables(findings()), "first delta of a stream that comes to 63 others at full speed: median")
    assert cells[1:] == [
        "14.0 ms (10.0-30.0)",
        "40.0 ms (40.0-40.0)",
        "300.0 ms (300.0-300.0)",
        "0.05",
        "15.0 ms: met",
        "30.0 ms: **missed**, 1.33x",
    ]
