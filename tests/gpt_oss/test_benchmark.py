"""The benchmark runs end to end from any folder, without a host, and reports a missing GPU."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpt_oss_gpu
from benchmarks.gpt_oss import candidates, kernels, measures, steps, sweeps
from benchmarks.gpt_oss.kernels import spans_of
from benchmarks.gpt_oss.measures import Row
from benchmarks.gpt_oss.plans import REAL, SMALL, Plan, random_weights
from benchmarks.gpt_oss.steps import agreed
from llama_stack_gpt_oss.engine.kernels import has_fp8, triton_ops
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.kernels.triton_ops import Tiles, TritonOps
from llama_stack_gpt_oss.engine.ops import Routed

from .support.engines import CPU

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpt_oss_gpu.py"
SECTIONS = [
    "machine",
    "correctness",
    "agreement",
    "decode",
    "kernels",
    "profile",
    "candidates",
    "sampling",
    "drafts",
    "draft-head",
    "prefill",
    "start",
    "host",
    "sweep",
    "projections",
    "decode-120b",
    "transformers",
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


@pytest.mark.whole_run
@pytest.mark.timeout(2400)  # the interpreter of Triton takes minutes, and longer beside other tests
def test_all_sections_run_on_small_shapes(tmp_path: Path) -> None:
    """Each has results besides its time, and nothing failed; kernels that are compared agree."""
    done = run(tmp_path, "--tiny", "--out", "found.jsonl")
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert done.returncode == 0, [row for row in rows if "failed" in row or row.get("ok") is False]
    assert len(done.stdout.splitlines()) == len(rows)
    assert list(dict.fromkeys(row["section"] for row in rows)) == SECTIONS
    for section in SECTIONS:
        assert len([row for row in rows if row["section"] == section]) > 1
    compared = [row for row in rows if row["section"] == "correctness" and "kernel" in row]
    assert {row["ok"] for row in compared} == {True}
    compared, plain = ([row for row in compared if row.get("plain", False) is each] for each in (False, True))
    assert list(dict.fromkeys(row["rows"] for row in plain)) == [83, 13]
    assert list(dict.fromkeys((row["rows"], row["experts"]) for row in compared)) == [
        (83, 8),
        (13, 8),
        (2, 32),
        (1, 8),
    ]
    for kernel in ("pick", "redraw"):
        assert [row["tokens"] for row in compared if row["kernel"] == kernel] == [4, 13, 2, 1]
    (candidate,) = (row for row in rows if row["section"] == "candidates" and "error" in row)
    assert candidate["candidate"] == "together"
    assert candidate["error"] < 1e-5
    assert all(row["drafted"] > 0 for row in rows if row.get("drafts"))
    assert [row["equal"] for row in rows if row["section"] == "agreement" and "equal" in row] == [16, 16, 16]
    best = [(row["rows"], row["kernel"]) for row in rows if row["section"] == "sweep" and "best" in row]
    tiles = [(1, "up"), (1, "down"), (1, "head"), (9, "up"), (9, "down"), (33, "head"), (65, "up"), (65, "down")]
    assert best == [*tiles, (1, "down"), (1, "attention"), (9, "attention"), (9, "attention")]
    swept = [(row["rows"], row["kernel"]) for row in rows if row["section"] == "projections" and "best" in row]
    assert list(dict.fromkeys(swept)) == [(1, "out"), (17, "out")]
    parts = [row["part"] for row in rows if row["section"] == "start" and "part" in row]
    loaded = ["copy to the device", "load from a file", "repack an expert"]
    assert parts == [*loaded, "warm-up 1", "warm-up 2", "compilation", "capture"]
    assert [row["ok"] for row in compared if row["kernel"] in ("unpack", "write")] == [True] * 8
    timed = {row.get("kernel") for row in rows if row["section"] == "kernels"}
    assert {f"{kernel}-plain" for kernel in ("out", "route", "up", "down")} | {"redraw-top-p"} < timed
    assert [row["dependent"] for row in rows if row["section"] == "decode" and "dependent" in row] == [False]
    attended = [row for row in rows if row["section"] == "kernels" and row.get("kernel") == "attention"]
    found = [(row["rows"], row["keys"], row["window"]) for row in attended]
    assert found == [(1, 100, 16), (1, 100, 0), (32, 96, 16), (32, 96, 0)]
    assert {row["cold"] for row in attended} == {False}  # a CPU says nothing of a GPU's cache


@pytest.mark.parametrize("keys", [3, 16, 100])
def test_candidate_attention_reads_the_keys_of_its_window(keys: int) -> None:
    config, weights = SMALL.config, random_weights(SMALL.config, CPU)
    ops, exact, window = candidates.ops_of(candidates.TOGETHER, weights, SMALL, CPU), TorchOps(config), 16
    case = kernels.Case(SMALL, ops, weights, ((keys - 1, 1),))
    queries, kv_cache = torch.randn(1, config.query_heads, config.head_size), case.kv_cache(0, torch.float32)
    arguments = (queries, weights.layers[0], window, case.batch, kv_cache)
    assert kernels.checked(ops.attention(*arguments), exact.attention(*arguments), 1e-5)["ok"]


def test_candidate_that_fails_leaves_the_others_to_be_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> torch.Tensor:
        raise RuntimeError("no room")

    monkeypatch.setattr(candidates, "logits_of", lambda *_: torch.ones(1, 2))
    monkeypatch.setattr(candidates.CandidateOps, "route", fail)
    assert list(candidates.candidates(SMALL, CPU)) == [{"candidate": "together", "failed": "RuntimeError: no room"}]


def test_wrong_tokens_fail_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that choose tokens are compared, alone and with restrictions."""
    monkeypatch.setattr(TritonOps, "redraw", lambda *_: None)
    monkeypatch.setattr(kernels, "draw", lambda logits, *_: torch.zeros(len(logits), dtype=torch.long))
    ops, weights = kernels.on_device(SMALL, CPU), random_weights(SMALL.config, CPU)
    case = kernels.Case(SMALL, ops, weights, kernels.DRAFTED, drafted=True)
    rows = list(kernels.compared_tokens(case, ops, TorchOps(SMALL.config), weights))
    assert [(row["kernel"], row["ok"]) for row in rows] == [("head", True), ("pick", False), ("redraw", False)]


def test_wrong_row_fails_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth too much in what is computed of one of 13 rows."""
    qkv, route = TritonOps.qkv, TritonOps.route

    def wrong_qkv(*arguments: Any) -> torch.Tensor:
        queries, (batch, kv_cache) = qkv(*arguments), arguments[-2:]
        for memory in (kv_cache.keys, kv_cache.values):
            memory.flatten(0, 1)[batch.slots[kv_cache.kv_group][:1]] *= 1.2
        return queries

    def wrong_route(*arguments: Any) -> Routed:
        routed = route(*arguments)
        routed.normed[0] *= 1.2
        return routed

    monkeypatch.setattr(TritonOps, "qkv", wrong_qkv)
    monkeypatch.setattr(TritonOps, "route", wrong_route)
    ops, weights = kernels.on_device(SMALL, CPU), random_weights(SMALL.config, CPU)
    case = kernels.Case(SMALL, ops, weights, kernels.DRAFTED, drafted=True)
    rows = kernels.compared(case, ops, TorchOps(SMALL.config), weights.layers[0], SMALL.config.windows[0], 0)
    wrong = [kernel for kernel, found, right in rows if not kernels.checked(found, right)["ok"]]
    assert wrong == ["qkv-keys", "qkv-values", "norm"]


def test_one_wrong_row_of_2048_fails_comparison() -> None:
    right = torch.randn(2048, 2, 8, generator=torch.Generator().manual_seed(1))
    found = right.clone()
    assert kernels.checked(found, right) == {"error": 0.0, "ok": True}
    found[1000] *= 1.2
    assert kernels.checked(found, right) == {"error": pytest.approx(0.2), "ok": False}


@pytest.mark.parametrize(("factor", "wrong"), [(1.0, []), (1.2, ["qkv-keys-fp8", "qkv-values-fp8"])])
def test_store_in_fp8_is_compared(monkeypatch: pytest.MonkeyPatch, factor: float, wrong: list[str]) -> None:
    """With operations that round as a GPU does. factor: error of one row."""
    qkv = TorchOps.qkv

    def stored(*arguments: Any) -> torch.Tensor:
        queries, (batch, kv_cache) = qkv(*arguments), arguments[-2:]
        for memory in (kv_cache.keys, kv_cache.values):
            row = batch.slots[kv_cache.kv_group][0]
            memory.flatten(0, 1)[row] = (memory.flatten(0, 1)[row].float() * factor).to(memory.dtype)
        return queries

    monkeypatch.setattr(kernels, "stores_fp8", lambda _: True)
    exact, weights = TorchOps(SMALL.config), random_weights(SMALL.config, CPU)
    case = kernels.Case(SMALL, exact, weights, kernels.MIXED)
    layer, theirs = weights.layers[0], case.kv_cache(0, torch.float32)
    queries = exact.qkv(case.x, layer, case.rope, case.batch, theirs)
    monkeypatch.setattr(TorchOps, "qkv", stored)
    results = {
        name: kernels.checked(found, right, kernels.TOLERANCES.get(name, kernels.TOLERANCE))["ok"]
        for name, found, right in kernels.compared_fp8(case, exact, exact, layer, None, queries, theirs)
    }
    assert list(results) == ["qkv-keys-fp8", "qkv-values-fp8", "attention-fp8"]
    assert [name for name, ok in results.items() if not ok] == wrong


def test_fp8_is_left_out_on_gpus_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (kernels, steps):
        monkeypatch.setattr(module, "has_fp8", lambda _: False)
    exact, weights = TorchOps(SMALL.config), random_weights(SMALL.config, CPU)
    case = kernels.Case(SMALL, exact, weights, kernels.MIXED)
    theirs = case.kv_cache(0, torch.float32)
    assert list(kernels.compared_fp8(case, exact, exact, weights.layers[0], None, case.x, theirs)) == []
    monkeypatch.setattr(steps, "_decode", lambda _plan, _device, cases, **_: [{"kv": str(each[-1])} for each in cases])
    assert {row["kv"] for row in steps.decode(SMALL, CPU)} == {"torch.float32"}


def test_keys_and_values_in_fp8_are_compared_with_a_tolerance_that_truncation_exceeds() -> None:
    exact = torch.randn(128, 512, generator=torch.Generator().manual_seed(1))
    nearest = exact.to(torch.float8_e4m3fn)
    above = nearest.float().abs() > exact.abs()
    truncated = torch.where(above, (nearest.view(torch.uint8) - 1).view(torch.float8_e4m3fn).float(), nearest.float())
    tolerance = kernels.TOLERANCES["qkv-keys-fp8"]
    found = [kernels.checked(each, exact, tolerance)["ok"] for each in (nearest, truncated)]
    assert found == [True, False]


@pytest.mark.parametrize(("capability", "found"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_fp8_is_compared_on_gpus_that_have_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], found: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    gpu = torch.device("cuda")
    assert (has_fp8(gpu), measures.stores_fp8(gpu)) == (found, found)
    assert (has_fp8(CPU), measures.stores_fp8(CPU)) == (True, False)


def test_kernel_that_fails_leaves_the_others_to_be_timed() -> None:
    def fail(_: int) -> None:
        raise RuntimeError("no room")

    peaks = measures.Peaks(bandwidth=100.0, products=1000.0)
    launches = [kernels.Launch(name, 1.0, 1.0, 1, run) for name, run in (("one", fail), ("other", lambda _: None))]
    failed, timed = (kernels.timing(launch, peaks, 1, CPU) for launch in launches)
    assert failed == {"kernel": "one", "failed": "RuntimeError: no room"}
    assert timed["kernel"] == "other"
    assert "microseconds" in timed


@pytest.mark.parametrize(("arguments", "seconds"), [([], 10), (["--patience", "2.5"], 25), (["--tiny"], 200)])
def test_patience_is_factor_of_time_limits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], seconds: float
) -> None:
    limits: list[float] = []

    def rows_of(_: object, plan: Plan, limit: float) -> Iterator[Row]:
        limits.append(limit)
        yield {"tiny": plan.tiny}

    monkeypatch.setattr(gpt_oss_gpu, "rows_of", rows_of)
    monkeypatch.setattr(gpt_oss_gpu, "has_gpu", lambda: True)
    found = str(tmp_path / "found.jsonl")
    monkeypatch.setattr(sys, "argv", ["gpt_oss_gpu.py", "--sections", "machine", "--out", found, *arguments])
    assert gpt_oss_gpu.main() == 0
    assert limits == [seconds]


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "much"])
def test_patience_is_a_finite_number_above_zero(text: str) -> None:
    with pytest.raises(ValueError, match=text):
        gpt_oss_gpu.factor(text)


def test_mask_of_benchmark_allows_every_third_token() -> None:
    bits = int.from_bytes(measures.EveryThird(100).allowed(), "little")
    assert [token for token in range(100) if bits >> token & 1] == list(range(0, 100, 3))


def test_launches_on_gpu_are_timed_as_graph_with_cold_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Python does between the launches is not in the time, and the first replay is not either."""
    events: list[str] = []
    graph = SimpleNamespace(replay=lambda: events.append("replay"))
    event = SimpleNamespace(record=lambda: events.append("record"), elapsed_time=lambda _: 6.0)

    @contextmanager
    def capture(_: object) -> Iterator[None]:
        events.append("capture")
        yield
        events.append("captured")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
    monkeypatch.setattr(torch.cuda, "graph", capture)
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: event)
    monkeypatch.setattr(measures, "overwrite_l2", lambda _: events.append("overwrite"))
    monkeypatch.setattr(measures, "settle", lambda _: events.append("settle"))
    seconds = measures.launched(lambda number: events.append(f"run {number}"), 3, torch.device("cuda"))
    assert seconds == pytest.approx(0.002)
    compiled, recorded = ["run 0"], ["capture", "run 0", "run 1", "run 2", "captured"]
    assert events == [*compiled, *recorded, "replay", "overwrite", "record", "replay", "record", "settle"]


def test_multiprocessors_shared_memory_and_dependent_launch_are_those_of_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=100, shared_memory_per_block_optin=1 << 17)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    ops = kernels.on_device(SMALL, torch.device("cuda"))
    assert (ops._processors, ops._shared, ops._options["launch_pdl"], ops._wide) == (100, 1 << 17, True, False)


def test_host_waits_for_gpu_and_overwrites_its_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[object] = []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(L2_cache_size=1 << 20))
    monkeypatch.setattr(torch.cuda, "synchronize", events.append)
    monkeypatch.setattr(torch, "zeros", lambda size, **_: events.append(size))
    gpu = torch.device("cuda")
    measures.overwrite_l2(gpu)
    measures.settle(gpu)
    assert events == [1 << 21, gpu]


def test_copies_exceed_cache_or_suffice_for_all_launches() -> None:
    assert [measures.copies_for(size, 50, 100) for size in (500, 200, 60, 1)] == [1, 1, 4, 50]


def test_roofline_is_larger_of_both_bounds() -> None:
    peaks = measures.Peaks(bandwidth=100.0, products=1000.0)
    assert peaks.roofline(size=200, operations=1000) == ("bytes", 2.0)
    assert peaks.roofline(size=200, operations=5000) == ("products", 5.0)


@pytest.mark.parametrize(("window", "keys", "pairs"), [(None, 40 + 48, 8 * 36.5 + 48), (16, 8 + 15 + 16, 9 * 16)])
def test_attention_counts_keys_of_its_windows(window: int | None, keys: int, pairs: float) -> None:
    """A sequence with 48 keys and one row, and one with eight rows that see 33 to 40 keys."""
    ops = kernels.on_device(SMALL, CPU)
    weights = random_weights(SMALL.config, CPU)
    case = kernels.Case(SMALL, ops, weights, ((47, 1), (32, 8)))
    launch = kernels.attention(case, ops, weights, window, repeats=1)
    assert launch.size == 4 * (keys * 2 * SMALL.config.kv_width + 2 * 9 * SMALL.config.query_width)
    assert launch.operations == 4 * SMALL.config.query_width * pairs


@pytest.mark.parametrize(("rows", "timed"), [(128, True), (129, False)])
def test_dot_scaled_is_timed_if_it_computes_all_rows(rows: int, timed: bool) -> None:
    """64 for each of 8 experts, of which a row has four."""
    exact, ops, weights = TorchOps(SMALL.config), kernels.on_device(SMALL, CPU), random_weights(SMALL.config, CPU)
    found = kernels.launches(kernels.Case(SMALL, exact, weights, ((0, rows),)), ops, weights, 1)
    assert ("up-dot-scaled" in [launch.kernel for launch in found]) is timed


def test_sweep_ends_with_fastest_tile_that_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = [Tiles(strip=64, depth=depth, warps=4, stages=4) for depth in (64, 128, 256, 512)]
    seconds = {64: 3.0, 128: 1.0, 256: 2.0}
    monkeypatch.setattr(sweeps, "launched", lambda run, *_: run(0))
    before = triton_ops.MANY
    *rows, last = sweeps.tried([{"MANY": tile} for tile in tiles], lambda _: seconds[triton_ops.MANY.depth], 1, CPU)
    assert [row.get("microseconds", row.get("failed")) for row in rows] == [3e6, 1e6, 2e6, "KeyError"]
    assert last == {"best": f"MANY={tiles[1]}", "microseconds": 1e6}
    assert triton_ops.MANY is before


def test_sweep_without_tile_that_launches_goes_on_with_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise RuntimeError

    monkeypatch.setattr(sweeps, "launched", lambda run, *_: run(0))
    rows = list(sweeps.improved("OUT", (1, 2), {"warps": (2, 8)}, fail, 1, CPU))
    assert {row.get("failed") for row in rows} == {"RuntimeError"}
    assert len(rows) == 6


def test_projection_is_swept_from_best_number_of_splits_and_tile_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def seconds(_: int) -> float:
        tile = triton_ops.OUT
        found = abs(tile.warps - 8) + abs(tile.depth - 128) + abs(tile.strip - 16)
        splits = TritonOps(REAL.config).dense_splits(90)
        return 1.0 + found + (0 if splits == 2 else 1)

    monkeypatch.setattr(sweeps, "launched", lambda run, *_: run(0))
    rows = list(sweeps.improved("OUT", sweeps.SPLITS, sweeps.PARTS, seconds, 1, CPU))
    assert [row for row in rows if "failed" in row] == []
    tile = Tiles(strip=16, depth=128, warps=8, stages=5)
    assert rows[-1] == {"best": f"OUT={tile} MAX_DENSE_SPLITS=2 BALANCE=2.0", "microseconds": 1e6}
    tried = [row["tile"] for row in rows if "tile" in row]
    assert len(set(tried)) == 1 + 4 + sum(map(len, sweeps.PARTS.values()))


@pytest.mark.parametrize("plan", [REAL, SMALL])
def test_single_row_is_compared_with_many_keys(plan: Plan) -> None:
    longest = min(1000, plan.config.context // 8)
    assert spans_of(plan, 1) == ((longest - 1, 1),)
    assert {start for start, _ in spans_of(plan, 64)} <= set(range(longest))


@pytest.mark.parametrize(("others", "needed", "ok"), [([1, 2, 3, 4], 1.0, True), ([1, 2, 3, 9], 1.0, False)])
def test_agreement_fails_below_needed_share(others: list[int], needed: float, ok: bool) -> None:
    assert agreed("answers", [1, 2, 3, 4], others, needed)["ok"] is ok


@pytest.mark.parametrize(("equal", "ok"), [(0, False), (2, True)])
def test_cached_prefixes_need_a_quarter_of_equal_tokens(monkeypatch: pytest.MonkeyPatch, equal: int, ok: bool) -> None:
    """Graphs and eager steps need all tokens."""
    answers = iter([[1] * 8, [1] * 7 + [2], [1] * 8, [1] * equal + [2] * (8 - equal)])
    monkeypatch.setattr(steps, "generated", lambda *_: next(answers))
    assert [row["ok"] for row in steps.agreement(SMALL, CPU)] == [False, True, ok]


def test_failed_row_ends_benchmark_with_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows_of(*_: object) -> Iterator[Row]:
        yield agreed("answers", [1], [2], needed=1.0)

    monkeypatch.setattr(gpt_oss_gpu, "rows_of", rows_of)
    monkeypatch.setattr(sys, "argv", ["gpt_oss_gpu.py", "--tiny", "--out", str(tmp_path / "found.jsonl")])
    assert gpt_oss_gpu.main() == 1


def failing(*_: object) -> Iterator[Row]:
    yield {"found": 1}
    raise RuntimeError("an illegal address")


def hanging(*_: object) -> Iterator[Row]:
    yield {"found": 1}
    time.sleep(600)


def dying(*_: object) -> Iterator[Row]:
    yield {"found": 1}
    os._exit(7)


@pytest.mark.parametrize(
    ("section", "reason"),
    [
        (failing, "RuntimeError: an illegal address"),
        (hanging, "its 5 seconds are over"),
        (dying, "its process ended with 7"),
    ],
)
def test_section_that_fails_keeps_its_results_and_says_why(section: gpt_oss_gpu.Section, reason: str) -> None:
    assert list(gpt_oss_gpu.rows_of(section, SMALL, 5)) == [{"found": 1}, {"failed": reason}]


def test_benchmark_without_gpu_fails_with_reason(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "torch finds no GPU")
