"""Execution of steps on the device."""

from collections.abc import Sequence as Series

import torch

from .batch import Drawn, make_batch
from .graphs import DecodeSteps, Record, recorder
from .model import Model
from .sampler import Report, redraw, report, sampled
from .scheduler import ScheduledTokens
from .sequence import Sampled, Sequence


class Step:
    """A started step. Its sampled tokens are copied to the host asynchronously."""

    def __init__(self, tokens: torch.Tensor, made: Report | None, sequences: Series[Sequence]) -> None:
        self._sequences = sequences
        self._tokens = _brought(tokens)
        self._report = made and Report(_brought(made.chosen), _brought(made.ids), _brought(made.values))
        self._there = torch.cuda.current_stream(tokens.device).record_event() if tokens.is_cuda else None

    def sampled(self) -> list[Sampled]:
        """Wait for this step only, not for later ones."""
        if self._there is not None:
            self._there.synchronize()
        return sampled(self._tokens, self._report, self._sequences)


class ModelRunner:
    """Runs the engine's steps on a model. Decode steps are captured as graphs, by default if the device supports it.

    Sampled tokens stay on the device as the next step's input, so it can start before the host has read them.
    """

    def __init__(self, model: Model, device: torch.device, context: int, record: Record | None = None) -> None:
        self.device = device
        record = record or recorder(device)
        self._forward = DecodeSteps(model, context, record).forward if record else model.forward
        self._drawn = Drawn(torch.empty(0, dtype=torch.long, device=device), {})

    @torch.inference_mode()
    def start(self, scheduled: Series[ScheduledTokens]) -> Step:
        """Start computing the scheduled tokens, and the next token of each sequence scheduled up to its last token."""
        batch = make_batch(scheduled, self._drawn, self.device)
        head = self._forward(batch)
        last = [work for work in scheduled if work.last]
        ready = [work.sequence for work in last]
        made = None
        if head.logits is not None:
            redraw(head.tokens, head.logits, batch.temperatures, batch.seeds, ready)
            made = report(head.logits, head.tokens, ready)
        places = {work.sequence: (work.start + work.count, row) for row, work in enumerate(last)}
        self._drawn = Drawn(head.tokens, places)
        return Step(head.tokens, made, ready)

    def run(self, scheduled: Series[ScheduledTokens]) -> list[Sampled]:
        return self.start(scheduled).sampled()


def _brought(tensor: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to host memory, asynchronously from a GPU."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
