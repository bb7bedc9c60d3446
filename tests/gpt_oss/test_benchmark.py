"""The benchmark runs end to end from any folder, without a host, and reports a missing GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpt_oss_gpu.py"
SECTIONS = [
    "machine",
    "correctness",
    "agreement",
    "decode",
    "kernels",
    "sampling",
    "drafts",
    "draft-head",
    "prefill",
    "start",
    "host",
    "sweep",
    "decode-120b",
    "transformers",
]


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_all_sections_run_on_small_shapes(tmp_path: Path) -> None:
    """Each has results besides its time, and nothing failed; kernels that are compared agree."""
    done = run(tmp_path, "--tiny", "--out", "found.jsonl")
    rows: list[dict[str, Any]] = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert done.returncode == 0, [row for row in rows if "failed" in row or row.get("ok") is False]
    assert len(done.stdout.splitlines()) == len(rows)
    assert list(dict.fromkeys(row["section"] for row in rows)) == SECTIONS
    for section in SECTIONS:
        assert len([row for row in rows if row["section"] == section]) > 1
    assert {row["ok"] for row in rows if row["section"] == "correctness" and "error" in row} == {True}
    assert all(row["drafted"] > 0 for row in rows if row.get("drafts"))
    assert [row["equal"] for row in rows if "equal" in row] == [16, 16]


def test_benchmark_without_gpu_fails_with_reason(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "torch finds no GPU")
