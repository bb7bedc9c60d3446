"""The speed and correctness of the gpt-oss engine on a GPU, with random weights of real shapes.

    python benchmarks/gpt_oss_gpu.py                     on a machine with a GPU: all sections, ten minutes at most
    python benchmarks/gpt_oss_gpu.py --sections decode   some of them; `host` needs no GPU
    python benchmarks/gpt_oss_gpu.py --patience 3        three times as long for each section, as on a slow GPU
    python benchmarks/gpt_oss_gpu.py --tiny              small shapes on the CPU: tests the script, measures nothing

It needs torch, triton and this repository's files, but no checkpoint. Each section runs in a process of its own, within
its time, so a section that hangs or breaks the GPU's context leaves the others alone. Each result is printed, and
appended to the file of `--out` as a line of JSON, as soon as it is there.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "providers" / "gpt_oss")]
if "--tiny" in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined

import torch
import triton

from benchmarks.gpt_oss import candidates, interpreter, kernels, step_profile, steps, sweeps, transformers_baseline
from benchmarks.gpt_oss.measures import Row, copy_bandwidth, failure
from benchmarks.gpt_oss.plans import REAL, SMALL, Plan

Section = Callable[[Plan, torch.device], Iterator[Row]]


def machine(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the names and versions of what is measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU (tiny shapes, not a measurement)"
    bandwidth = copy_bandwidth(device, plan.copied)
    yield {"device": name, "torch": torch.__version__, "triton": triton.__version__, "tb_per_second": bandwidth / 1e12}


# Sections of a GPU, most informative first. The seconds add up to ten minutes.
SECTIONS: dict[str, tuple[Section, float]] = {
    "machine": (machine, 10),
    "correctness": (kernels.correctness, 70),
    "agreement": (steps.agreement, 35),
    "decode": (steps.decode, 55),
    "kernels": (kernels.timings, 30),
    "profile": (step_profile.profile, 20),
    "candidates": (candidates.candidates, 40),
    "sampling": (steps.sampling, 35),
    "drafts": (steps.drafts, 35),
    "draft-head": (steps.draft_head, 35),
    "prefill": (steps.prefill, 30),
    "start": (steps.start, 60),
    "host": (steps.host, 20),
    "sweep": (sweeps.sweep, 30),
    "projections": (sweeps.projections, 25),
    "decode-120b": (steps.decode_120b, 40),
    "transformers": (transformers_baseline.transformers, 30),
}
TINY_PATIENCE = 20.0  # times that the sections of a small run may take longer: a busy CPU is no failure


def compute(section: Section, plan: Plan, results: Connection) -> None:
    """Send the rows of a section, then how it ended, from a process of its own."""
    torch.manual_seed(0)
    device = torch.device("cpu" if plan.tiny or section is steps.host else "cuda")
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        for row in section(plan, device):
            results.send(row)
    except Exception as error:  # noqa: BLE001 -- the other sections have to run
        results.send({"failed": failure(error)})
    results.close()


def rows_of(section: Section, plan: Plan, seconds: float) -> Iterator[Row]:
    """Yield the rows of a section, and why it ended early if it did."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=compute, args=(section, plan, sender), daemon=True)
    started = time.monotonic()
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, started + seconds - time.monotonic())):
            yield receiver.recv()
        yield {"failed": f"its {seconds:.0f} seconds are over"}
    except EOFError:
        process.join(1)
        if process.exitcode not in (0, None):
            yield {"failed": f"its process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def has_gpu() -> bool:
    """Ask torch in a process of its own: the sections' processes could not use CUDA after this one has."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=lambda: sys.exit(not torch.cuda.is_available()))
    process.start()
    process.join()
    return process.exitcode == 0


def show(name: str, row: Row, out: TextIO) -> None:
    """Print a row, and write it as JSON."""
    out.write(json.dumps({"section": name, **row}) + "\n")
    out.flush()
    parts = (f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}" for key, value in row.items())
    print(f"{name}: {'  '.join(parts)}", flush=True)


def factor(text: str) -> float:
    """Return a finite number above 0, as an argument of the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise ValueError(text)
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the gpt-oss engine at the shapes of gpt-oss-20b and 120b.")
    parser.add_argument("--tiny", action="store_true", help="small shapes on the CPU, to try the script itself")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--out", type=Path, default=Path("gpt_oss_gpu.jsonl"), help="file of the results, as JSON")
    parser.add_argument("--patience", type=factor, default=1.0, help="factor of the sections' time limits on a GPU")
    arguments = parser.parse_args()
    if not arguments.tiny and arguments.sections != ["host"] and not has_gpu():
        print("torch finds no GPU: only --sections host measures something here. --tiny tries the script on the CPU.")
        return 1
    if arguments.tiny:
        interpreter.speed_up()
    failed = False
    with arguments.out.open("a") as out:
        for name in arguments.sections:
            section, seconds = SECTIONS[name]
            began = time.monotonic()
            plan, patience = (SMALL, TINY_PATIENCE) if arguments.tiny else (REAL, arguments.patience)
            for row in rows_of(section, plan, patience * seconds):
                failed |= ("failed" in row and "tile" not in row) or row.get("ok") is False
                show(name, row, out)
            show(name, {"seconds": time.monotonic() - began}, out)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
