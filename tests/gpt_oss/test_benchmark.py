"""The benchmark runs end to end from any folder, without a host, and reports a missing GPU."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpt_oss.py"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_benchmark_prints_table(tmp_path: Path) -> None:
    done = run(tmp_path, "--tiny")
    assert done.returncode == 0, done.stderr
    rows = [line.split("|")[1].strip() for line in done.stdout.splitlines() if line.startswith("|")]
    assert rows[0].startswith("CPU (tiny shapes, not a measurement)")
    assert [row.split(",")[0] for row in rows[2:]] == ["decode", "decode", "prefill", "transformers"]


def test_benchmark_without_gpu_fails_with_reason(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert (done.returncode, done.stdout.partition(":")[0]) == (1, "torch finds no GPU")
