"""All kernels as they are built for an H100, by each version of Triton that a GPU machine may have.

Projections and experts are also built for other GPUs that the documentation names.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import starmap
from pathlib import Path
from typing import Any, NamedTuple

import pytest

# What the tests share takes longer to start than most of them run.
pytestmark = pytest.mark.day(1)

REPOSITORY = Path(__file__).parents[2]
EARLIER = Path(sys.prefix) / "triton-3.6"  # the other version, without an environment of its own


class Bounds(NamedTuple):
    """At most: registers of a thread, shared memory of a program in KiB, and instructions of all warps for a byte.

    The bytes are of weights, of keys and values, or what else the kernel reads. products: the exact number of
    tensor-core instructions, and which. spills: bytes.
    """

    registers: int
    shared: int
    per_byte: float
    product: str = ""
    products: int = 0
    spills: int = 0


BOUNDS = {
    "out-16-splits-1": Bounds(40, 24, 0.059, "HMMA.16816", 4),
    "out-16-splits-4": Bounds(38, 24, 0.059, "HMMA.16816", 4),
    "head-16": Bounds(72, 60, 0.027, "HMMA.16816", 16),
    "head-kept-16": Bounds(72, 60, 0.026, "HMMA.16816", 16),
    "out-32-splits-1": Bounds(42, 32, 0.066, "HMMA.16816", 8),
    "out-32-splits-4": Bounds(47, 32, 0.066, "HMMA.16816", 8),
    "head-32": Bounds(88, 72, 0.036, "HMMA.16816", 32),
    "head-kept-32": Bounds(90, 72, 0.034, "HMMA.16816", 32),
    "out-64-splits-1": Bounds(48, 60, 0.098, "HGMMA.64x32x16", 4),
    "out-64-splits-4": Bounds(48, 60, 0.098, "HGMMA.64x32x16", 4),
    "head-64": Bounds(157, 96, 0.045, "HGMMA.64x64x16", 4),
    "head-kept-64": Bounds(149, 96, 0.045, "HGMMA.64x64x16", 4),
    "rotate-row": Bounds(19, 0, 0.899),
    "rotate-prompt": Bounds(68, 1, 0.189),
    "norm": Bounds(64, 1, 0.219),
    "route-row": Bounds(95, 1, 0.375),
    "route-prompt": Bounds(40, 24, 0.041, "HMMA.16816", 8),
    "sum-4": Bounds(32, 0, 0.04),
    "sum-8": Bounds(38, 0, 0.031),
    "up-row": Bounds(139, 41, 0.228, "HGMMA.64x16x16", 16),
    "down-row": Bounds(191, 41, 0.241, "HGMMA.64x16x16", 16),
    "up-group-16": Bounds(159, 41, 0.237, "HGMMA.64x16x16", 16),
    "down-group-16": Bounds(168, 41, 0.248, "HGMMA.64x16x16", 16),
    "up-group-32": Bounds(165, 65, 0.254, "HGMMA.64x32x16", 16),
    "down-group-32": Bounds(139, 65, 0.261, "HGMMA.64x32x16", 16),
    "up-group-64": Bounds(150, 113, 0.279, "HGMMA.64x64x16", 16),
    "down-group-64": Bounds(194, 113, 0.286, "HGMMA.64x64x16", 16),
    "up-group-128": Bounds(255, 113, 0.258, "HGMMA.64x128x16", 16, spills=108),
    "down-group-128": Bounds(255, 113, 0.274, "HGMMA.64x128x16", 16, spills=348),
    "group": Bounds(96, 1, 0.497),
    "up-row-120b": Bounds(139, 41, 0.228, "HGMMA.64x16x16", 16),
    "down-row-120b": Bounds(191, 41, 0.241, "HGMMA.64x16x16", 16),
    "up-group-16-120b": Bounds(160, 41, 0.237, "HGMMA.64x16x16", 16),
    "down-group-16-120b": Bounds(163, 41, 0.247, "HGMMA.64x16x16", 16),
    "up-group-128-120b": Bounds(255, 113, 0.252, "HGMMA.64x128x16", 16, spills=108),
    "down-group-128-120b": Bounds(255, 113, 0.269, "HGMMA.64x128x16", 16, spills=212),
    "group-120b": Bounds(96, 1, 0.606),
    "attention-decode-splits-8": Bounds(63, 21, 0.068, "HMMA.16816", 16),
    "attention-decode-splits-32": Bounds(63, 21, 0.068, "HMMA.16816", 16),
    "attention-decode-window": Bounds(64, 21, 0.07, "HMMA.16816", 16),
    "attention-drafts-splits-16": Bounds(135, 41, 0.156, "HGMMA.64x64x16", 8),
    "attention-drafts-window": Bounds(135, 41, 0.171, "HGMMA.64x64x16", 8),
    "attention-prompt": Bounds(126, 49, 0.303, "HGMMA.64x64x16", 8),
    "attention-prompt-window": Bounds(127, 49, 0.334, "HGMMA.64x64x16", 8),
    "merge-8": Bounds(25, 1, 0.285),
    "merge-32": Bounds(38, 1, 0.122),
    "pick": Bounds(39, 1, 0.079),
    "adjust": Bounds(64, 1, 0.367),
    "weigh": Bounds(121, 2, 0.898),
    "gather": Bounds(122, 8, 0.59),
    "redraw": Bounds(76, 1, 3.17),
    "write": Bounds(12, 0, 0.086),
    "unpack": Bounds(24, 0, 0.211),
    "scaled-16": Bounds(126, 21, 0.602, "HGMMA.64x16x16", 8),
    "scaled-64": Bounds(137, 57, 0.614, "HGMMA.64x64x16", 8),
    "candidate-rotate": Bounds(19, 0, 1.38),
    "candidate-norm": Bounds(99, 1, 0.044),
    "candidate-route": Bounds(77, 1, 0.093),
    "candidate-window": Bounds(80, 20, 0.085, "HMMA.16816", 32),
    "candidate-up": Bounds(77, 21, 0.264, "HGMMA.64x16x16", 8),
    "candidate-down": Bounds(85, 21, 0.264, "HGMMA.64x16x16", 8),
    "rotate-row-fp8": Bounds(18, 0, 0.93),
    "rotate-prompt-fp8": Bounds(64, 1, 0.283),
    "attention-decode-splits-32-fp8": Bounds(102, 13, 0.241, "HMMA.16816", 16),
    "attention-prompt-fp8": Bounds(117, 41, 0.639, "HGMMA.64x64x16", 8),
}
# KiB of shared memory for a program on GPUs of these compute capabilities, by NVIDIA's documentation.
SHARED = {"90": 227}
SHARED_ELSEWHERE = {"80": 163, "89": 99, "120": 99}
# At the memory's speed, an H200 executes 0.215 instructions for each byte.
MEMORY_SPEED = 0.215
# What is read before the wait for the kernel before, with programmatic dependent launch: weights only.
EARLY = {
    "rotate": ["bias"],
    "norm": ["norm"],
    "route-row": ["bias", "norm", "weight"],
    "merge": ["sinks"],
    "candidate-rotate": ["bias"],
    "candidate-norm": ["norm"],
    "candidate-route": ["bias", "norm", "weight"],
}


def build(shared: Mapping[str, int], earlier: bool = False) -> dict[str, dict[str, dict[str, Any]]]:
    """Return what the kernels have by compute capability, at the dimensions of gpt-oss-20b and 120b.

    shared: KiB of shared memory for a program by compute capability.
    """
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    if earlier:
        assert EARLIER.exists()
        env["PYTHONPATH"] = os.pathsep.join([str(EARLIER), *filter(None, [env.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "tests.gpt_oss.support.build_kernels", *starmap("{}={}".format, shared.items())]
    found = json.loads(subprocess.check_output(command, env=env, cwd=REPOSITORY, text=True))
    assert found.pop("triton") == ("3.6.0" if earlier else "3.9.0")
    return dict(found)


@pytest.fixture(scope="module", params=["own", "earlier"])
def built(request: pytest.FixtureRequest) -> dict[str, dict[str, Any]]:
    """What every kernel has, built for compute capability 9.0."""
    return build(SHARED, earlier=request.param == "earlier")["90"]


def test_projections_and_experts_build_for_other_gpus() -> None:
    """The assembler refuses instructions that they lack. Shared memory is bounded by what a program can have there."""
    others = build(SHARED_ELSEWHERE)
    for capability, most in SHARED_ELSEWHERE.items():
        assert {"head-64", "up-row", "down-group-128"} < others[capability].keys()
        for name, kernel in others[capability].items():
            assert kernel["shared"] <= most * 1024, (capability, name)


def test_kernels_build_for_h100_within_their_bounds(built: dict[str, dict[str, Any]]) -> None:
    """More registers or shared memory than before mean fewer programs at once on a multiprocessor."""
    assert built.keys() == BOUNDS.keys()
    broken: dict[str, object] = {}
    for name, bounds in BOUNDS.items():
        kernel = built[name]
        fits = {
            "spills": kernel["spills"] <= bounds.spills,
            "registers": kernel["registers"] <= bounds.registers,
            "shared": kernel["shared"] <= bounds.shared * 1024,
            "per_byte": kernel["per_byte"] <= bounds.per_byte,
            "products": kernel["products"] == ({bounds.product: bounds.products} if bounds.product else {}),
        }
        broken |= {f"{name}: {what}": kernel[what] for what, fit in fits.items() if not fit}
    assert broken == {}


def test_decodes_read_weights_and_keys_at_speed_of_memory(built: dict[str, dict[str, Any]]) -> None:
    """FP8 keys, which have half of the bytes, need more; the experts' kernels have bounds of their own."""
    names = [name for name in built if name.startswith(("out-16", "head-16", "attention-decode"))]
    assert len(names) == 7
    slow = {name: built[name]["per_byte"] for name in names if built[name]["per_byte"] > MEMORY_SPEED}
    assert slow.keys() == {"attention-decode-splits-32-fp8"}


def test_arguments_of_a_step_select_no_other_build(built: dict[str, dict[str, Any]]) -> None:
    """A value or an address that changes from step to step would otherwise compile a kernel in a request."""
    assert {name: kernel["specialized"] for name, kernel in built.items() if kernel["specialized"]} == {}


def test_kernels_read_only_weights_before_they_wait_for_the_kernel_before(built: dict[str, dict[str, Any]]) -> None:
    """They neither write nor branch before, so every program waits.

    Those of a step's input and restrictions, and of the benchmark, do not wait.
    """
    for name, kernel in built.items():
        if name in ("write", "unpack", "adjust", "weigh", "gather", "redraw", "scaled-16", "scaled-64"):
            assert kernel["early"] is None
        else:
            expected = next((names for prefix, names in EARLY.items() if name.startswith(prefix)), [])
            assert kernel["early"] == expected, name
