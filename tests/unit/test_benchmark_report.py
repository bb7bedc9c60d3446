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
    """Return the results of a run: the client decodes in 100 us, the builtin takes 200 us a delta, 30 ms a request."""
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


def values(cells: list[str]) -> list[str]:
    """Return the medians, without units and ranges."""
    return [cell.split()[0] for cell in cells]


def verdicts(cells: list[str]) -> list[bool]:
    """Return whether the target is met, for each cell with a verdict, in order."""
    return ["missed" not in cell for cell in cells if "met" in cell or "missed" in cell]


def test_row_has_medians_ratio_and_verdicts() -> None:
    cells = row(tables(findings()), "server CPU per text delta, 1 stream")
    assert values(cells[1:5]) == ["24", "120", "200", "0.12"]
    assert "(22-31)" in cells[1]
    assert verdicts(cells) == [True, True]


def test_streaming_limit_is_decoding_cost_plus_margin() -> None:
    assert streaming_limit(100e-6) == pytest.approx(130e-6)


def test_missed_target_is_marked() -> None:
    report = tables(findings(stream_16=156e-6, short_16=15e-3))
    assert verdicts(row(report, "server CPU per text delta, 16 streams |")) == [True, False]
    assert verdicts(row(report, "server CPU per short stored request")) == [True, False]


def test_chain_is_judged_by_size_of_its_content() -> None:
    report = tables(findings())
    assert verdicts(row(report, "chain: bytes stored for 50 kB")) == [True]
    assert verdicts(row(report, "chain with tools and instructions: bytes stored for 30 kB")) == [False]
    assert values(row(report, "chain: turns 1 to 10")[1:2]) == ["20.0"]
    assert values(row(report, "chain: turns 11 to 20")[1:2]) == ["30.0"]


def test_readers_have_separate_row() -> None:
    assert values(row(tables(findings()), "`openai` client")[1:]) == ["100"] * 4 + ["0.1"]


def test_single_measurement_has_no_range() -> None:
    assert with_spread([2.0], lambda value: f"{value:.0f} s") == "2 s"


def test_picture_has_line_for_each_server() -> None:
    drawn = picture(findings()["loads"])
    assert drawn.startswith("<svg ")
    assert drawn.count("<polyline ") == 3
    for words in (OURS, BUILTIN, "24 µs", "200 µs", "64"):
        assert words in drawn


def test_first_delta_among_busy_streams_is_judged_against_idle_server() -> None:
    cells = row(tables(findings()), "time to first delta of a stream that joins 63 others at full speed: median")
    assert values(cells[1:5]) == ["14.0", "40.0", "300.0", "0.05"]
    assert verdicts(cells) == [True, False]
