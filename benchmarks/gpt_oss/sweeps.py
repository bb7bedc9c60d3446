"""The kernels launched with other tiles and constants, to find the fastest ones."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import torch

from llama_stack_gpt_oss.engine.kernels import triton_ops
from llama_stack_gpt_oss.engine.kernels.triton_ops import Tiles, TritonOps
from llama_stack_gpt_oss.engine.weights import Weights

from .kernels import Case, attention, launches, on_device, spans_of, under
from .measures import Row, launched
from .plans import Plan, random_weights

PROMPT_TILES = ((128, 128, 4, 3), (128, 128, 8, 3), (256, 128, 8, 3), (128, 64, 8, 4), (64, 64, 4, 4))
TILES = tuple(product((64, 128), (256, 128), (4, 8), (4, 3)))  # strip, depth, warps, stages
HEAD_TILES = ((64, 128, 4, 4), (128, 64, 8, 4), (128, 64, 4, 4), (128, 128, 4, 3), (256, 64, 8, 4))
# Other values of constants: the constant's name, the kernel, its maximum of rows, and the values that are tried.
CONSTANTS: tuple[tuple[str, str, int, tuple[int, ...]], ...] = (
    ("DOWN_SPLITS", "down", 1, (2, 1, 3, 4)),
    ("MIN_SPLITS", "attention", 1, (4, 8, 16, 32)),
    ("MIN_SPLITS", "attention", 64, (4, 8, 16, 32)),
    ("QUERIES", "attention", 2048, (16, 32)),
)
# Other parts of the tile of the projection after attention, which are tried in this order.
PARTS: dict[str, tuple[int, ...]] = {
    "strip": (16, 64),
    "depth": (128, 256),
    "warps": (2, 8),
    "stages": (3, 4, 6),
}
SPLITS = (1, 2, 4, 8)  # of its inputs
UNBALANCED = 2.0  # for BALANCE: no number of splits is enough, so there are as many as there may be


Choice = dict[str, object]  # constants of `triton_ops` and their values


@torch.inference_mode()
def sweep(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of kernels with each tile or constant with which they launch, and the best of each at the end."""
    ops, weights = _prepared(plan, device)
    many, some = max(plan.timed_rows), 9 if plan.tiny else 64
    for rows, kernels, choices in (
        (1, ("up", "down"), _tiles(plan, "MANY", TILES)),
        (1, ("head",), _tiles(plan, "HEAD_FEW", HEAD_TILES)),
        (some, ("up", "down"), _tiles(plan, "MANY", TILES)),
        (33 if plan.tiny else 64, ("head",), _tiles(plan, "HEAD_MANY", HEAD_TILES)),
        (many, ("up", "down"), _tiles(plan, "PROMPT", PROMPT_TILES)),
    ):
        for launch in launches(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, plan.repeats):
            if launch.kernel in kernels:
                for row in tried(choices, launch.run, plan.repeats, device):
                    yield {"rows": rows, "kernel": launch.kernel, **row}
    for name, kernel, most, values in CONSTANTS:
        rows = min(most, plan.timed_rows[-1])
        run = _launch(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, kernel, plan.repeats)
        for row in tried([{name: value} for value in _some(plan, values)], run, plan.repeats, device):
            yield {"rows": rows, "kernel": kernel, **row}


@torch.inference_mode()
def projections(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the times of the projection after attention with other splits and tiles; see `improved`."""
    ops, weights = _prepared(plan, device)
    for rows in (1, 17 if plan.tiny else 64):
        changes = {part: _some(plan, values) for part, values in _some(plan, list(PARTS.items()))}
        run = _launch(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, "out", plan.repeats)
        for row in improved("OUT", _some(plan, SPLITS), changes, run, plan.repeats, device):
            yield {"rows": rows, "kernel": "out", **row}


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


def _tiles(plan: Plan, name: str, tiles: Sequence[tuple[int, int, int, int]]) -> list[Choice]:
    """Return the choices of tiles for a constant."""
    return [{name: Tiles(*each)} for each in _some(plan, tiles)]


def _label(choice: Choice) -> str:
    return " ".join(f"{name}={value}" for name, value in choice.items())


def _some[T](plan: Plan, values: Sequence[T]) -> Sequence[T]:
    """Return the values to try: a small run tries one."""
    return values[:1] if plan.tiny else values


def _prepared(plan: Plan, device: torch.device) -> tuple[TritonOps, Weights]:
    return on_device(plan, device), random_weights(replace(plan.config, windows=plan.config.windows[:8]), device)


def _launch(case: Case, ops: TritonOps, weights: Weights, kernel: str, repeats: int) -> Callable[[int], object]:
    """Return the launches of a kernel."""
    found = (attention(case, ops, weights, None, repeats), *launches(case, ops, weights, 1))
    return next(each.run for each in found if each.kernel == kernel)
