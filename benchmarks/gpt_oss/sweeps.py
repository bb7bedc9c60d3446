"""The kernels launched with other tiles and constants, to find the fastest ones."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import torch

from llama_stack_gpt_oss.engine.kernels import triton_ops
from llama_stack_gpt_oss.engine.kernels.triton_ops import Tiles, TritonOps
from llama_stack_gpt_oss.engine.weights import Weights

from .kernels import Case, attention, dense_launches, launches, on_device, spans_of, under
from .measures import Row, launched
from .plans import Plan, random_weights

PROMPT_TILES = ((128, 64, 8, 4), (128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 4))
TILES = tuple(product((64, 128), (256, 128), (4, 8), (4, 3)))  # strip, depth, warps, stages
# Other values of constants: the constant's name, the kernel, its maximum of rows, and the values that are tried.
CONSTANTS: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("STRIP", "head", 1, (32, 64, 128)),
    ("STRIP", "head", 64, (32, 64, 128)),
    ("MIN_SPLITS", "attention", 1, (4, 8, 16, 32)),
    ("MIN_SPLITS", "attention", 64, (4, 8, 16, 32)),
    ("QUERIES", "attention", 2048, (16, 32)),
)
# Other parts of the tiles of the projections around attention, which are tried in this order.
PARTS: dict[str, dict[str, tuple[int, ...]]] = {
    "qkv": {"strip": (32,), "depth": (32, 128), "warps": (2, 8), "stages": (2, 3, 4, 6, 8)},
    "out": {"strip": (32, 64), "depth": (64, 256), "warps": (2, 8), "stages": (2, 3, 4, 6, 8)},
}
SPLITS = (1, 2, 4, 8)  # of their inputs, for few rows
UNBALANCED = 2.0  # for BALANCE: no number of splits is enough, so there are as many as there may be


Choice = dict[str, object]  # constants of `triton_ops` and their values


@torch.inference_mode()
def sweep(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of kernels with each tile or constant with which they launch, and the best of each at the end."""
    ops, weights = _prepared(plan, device)
    for rows, name, tiles in (
        (1, "FEW", TILES),
        (9 if plan.tiny else 64, "MANY", TILES),
        (max(plan.timed_rows), "PROMPT", PROMPT_TILES),
    ):
        choices: list[Choice] = [{name: Tiles(*each)} for each in _some(plan, tiles)]
        for launch in launches(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, plan.repeats):
            if launch.kernel in ("up", "down"):
                for row in tried(choices, launch.run, plan.repeats, device):
                    yield {"rows": rows, "kernel": launch.kernel, **row}
    for name, kernel, most, values in CONSTANTS:
        rows = min(most, plan.timed_rows[-1])
        run = _launch(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, kernel, plan.repeats)
        for row in tried([{name: value} for value in _some(plan, values)], run, plan.repeats, device):
            yield {"rows": rows, "kernel": kernel, **row}


@torch.inference_mode()
def projections(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the times of the projections around attention with other splits and tiles; see `improved`."""
    ops, weights = _prepared(plan, device)
    for rows, suffix in ((1, "FEW"), (17 if plan.tiny else 64, "MANY")):
        case = Case(plan, ops, weights, spans_of(plan, rows))
        for kernel, parts in PARTS.items():
            splits = _some(plan, SPLITS) if rows <= triton_ops.SPLIT_ROWS else ()
            changes = {part: _some(plan, values) for part, values in _some(plan, list(parts.items()))}
            run = _launch(case, ops, weights, kernel, plan.repeats)
            for row in improved(f"{kernel.upper()}_{suffix}", splits, changes, run, plan.repeats, device):
                yield {"rows": rows, "kernel": kernel, **row}


def improved(
    name: str,
    splits: Sequence[int],
    changes: Mapping[str, Sequence[int]],
    run: Callable[[int], object],
    repeats: int,
    device: torch.device,
) -> Iterator[Row]:
    """Yield the time of a launch with each number of splits, then with other values of each part of the named tile.

    Each is tried with the best of those before it: all combinations would take minutes to compile.
    """
    best: Choice = {name: getattr(triton_ops, name)}
    others = [{**best, "MAX_DENSE_SPLITS": number, "BALANCE": UNBALANCED} for number in splits]
    best = yield from tried([best, *others], run, repeats, device)
    for part, values in changes.items():
        tile = best[name]
        assert isinstance(tile, Tiles)
        others = [{**best, name: replace(tile, **{part: value})} for value in values if value != getattr(tile, part)]
        best = yield from tried([best, *others], run, repeats, device)


def tried(
    choices: Sequence[Choice], run: Callable[[int], object], repeats: int, device: torch.device
) -> Generator[Row, None, Choice]:
    """Yield the time of a launch with each choice, then the fastest, which is also returned; the first if all fail."""
    times: list[tuple[float, Choice]] = []
    for choice in choices:
        try:
            seconds = launched(under(run, **choice), repeats, device)
        except Exception as error:  # noqa: BLE001 -- too much shared memory, or a tile that does not compile
            yield {"tile": _label(choice), "failed": type(error).__name__}
            continue
        times.append((seconds, choice))
        yield {"tile": _label(choice), "microseconds": seconds * 1e6}
    if not times:
        return choices[0]
    seconds, best = min(times, key=lambda each: each[0])
    yield {"best": _label(best), "microseconds": seconds * 1e6}
    return best


def _label(choice: Choice) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _some[T](plan: Plan, values: Sequence[T]) -> Sequence[T]:
    """Return the values to try: a small run tries one."""
    return values[:1] if plan.tiny else values


def _prepared(plan: Plan, device: torch.device) -> tuple[TritonOps, Weights]:
    return on_device(plan, device), random_weights(replace(plan.config, windows=plan.config.windows[:8]), device)


def _launch(case: Case, ops: TritonOps, weights: Weights, kernel: str, repeats: int) -> Callable[[int], object]:
    """Return the launches of attention, or of a kernel with dense weights."""
    found = (attention(case, ops, weights, None, repeats), *dense_launches(case, ops, weights, 1))
    return next(each.run for each in found if each.kernel == kernel)
