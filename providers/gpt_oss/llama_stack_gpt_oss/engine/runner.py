"""Runs a step on the device."""

from collections.abc import Sequence as Series

import torch

from .batch import Drawn, make_batch
from .graphs import DecodeSteps, Record, recorder
from .model import Model
from .sampler import Report, redraw, report, sampled
from .scheduler import Work
from .sequence import Sampled, Sequence


class Step:
    """A step that the device was told to compute; what it drew is on its way to the host."""

    def __init__(self, tokens: torch.Tensor, made: Report | None, sequences: Series[Sequence]) -> None:
        self._sequences = sequences
        self._tokens = _brought(tokens)
        self._report = made and Report(_brought(made.chosen), _brought(made.ids), _brought(made.values))
        self._there = torch.cuda.current_stream(tokens.device).record_event() if tokens.is_cuda else None

    def sampled(self) -> list[Sampled]:
        """Waits for this step, and for none that was started after it."""
        if self._there is not None:
            self._there.synchronize()
        return sampled(self._tokens, self._report, self._sequences)


class ModelRunner:
    """The engine's runner, over a model. Decode steps are recorded, by default where the device can.

    What a step drew stays on the device as the next one's input, which can thus be started before the host has read it.
    """

    def __init__(self, model: Model, device: torch.device, context: int, record: Record | None = None) -> None:
        self.device = device
        record = record or recorder(device)
        self._forward = DecodeSteps(model, context, record).forward if record else model.forward
        self._drawn = Drawn(torch.empty(0, dtype=torch.long, device=device), {})

    @torch.inference_mode()
    def start(self, works: Series[Work]) -> Step:
        """Has the device compute the works' tokens, and the next token of each work that is its sequence's last."""
        batch = make_batch(works, self._drawn, self.device)
        head = self._forward(batch)
        last = [work for work in works if work.last]
        ready = [work.sequence for work in last]
        made = None
        if head.logits is not None:
            redraw(head.tokens, head.logits, batch.temperatures, batch.seeds, ready)
            made = report(head.logits, head.tokens, ready)
        places = {work.sequence: (work.start + work.count, row) for row, work in enumerate(last)}
        self._drawn = Drawn(head.tokens, places)
        return Step(head.tokens, made, ready)

    def run(self, works: Series[Work]) -> list[Sampled]:
        return self.start(works).sampled()


def _brought(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in the host's memory, which a GPU fills in its own time."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor, non_blocking=True)
