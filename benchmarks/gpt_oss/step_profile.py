"""The kernels inside a decode step: how often each runs, how long, and what the step takes beside them."""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity

from .measures import Row, settle
from .plans import Plan, random_weights
from .steps import Decoded, Replays, model_of, repeated


class Counted(Protocol):
    """What is read of a row of torch's profiler. Times are in microseconds."""

    key: str
    count: int
    self_cpu_time_total: float
    self_device_time_total: float


@torch.inference_mode()
def profile(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the kernels of a replayed step, the longest first, and the sum of their times next to the step's time.

    Kernels with programmatic dependent launch overlap, and wait inside: their sum is more than the step. Those without
    it have the times of the work alone, and the rest of the step is launches.
    """
    weights = random_weights(plan.config, device)
    for (batch, context), dependent in ((case, each) for case in plan.profiled for each in (False, True)):
        model, longest = model_of(plan, weights, device, [(batch, context)], dependent=dependent)
        decoded = Decoded(plan, model, longest, batch, context)
        step: Row = {"batch": batch, "context": context, "dependent": dependent}
        found = kernels_of(decoded.replays, plan.warm, device)
        for name, count, microseconds in found:
            yield {**step, "kernel": name, "launches": count, "microseconds": microseconds}
        busy = sum(microseconds for *_, microseconds in found)
        yield {**step, "step_microseconds": decoded.seconds * 1e6, "kernel_microseconds": busy}
        del model, decoded


def kernels_of(replays: Replays, steps: int, device: torch.device) -> list[tuple[str, float, float]]:
    """Return the name, the launches a step and the microseconds a step of each kernel of some replays."""
    on_gpu = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        repeated(replays.last, steps)
        settle(device)
    counted: list[Counted] = profiler.key_averages()
    times = ((each, each.self_device_time_total if on_gpu else each.self_cpu_time_total) for each in counted)
    rows = [(each.key[:60], each.count / steps, time / steps) for each, time in times if time > 0]
    return sorted(rows, key=lambda row: -row[2])
