"""Runs a step on the device."""

from collections.abc import Sequence as Series

import torch

from .batch import make_batch
from .graphs import DecodeGraphs
from .model import Model
from .sampler import sample
from .scheduler import Work
from .sequence import Sampled


class ModelRunner:
    """The engine's runner, over a model. On a GPU decode steps are replayed from graphs."""

    def __init__(self, model: Model, device: torch.device, context: int) -> None:
        self._model = model
        self.device = device
        self._graphs = DecodeGraphs(model, context) if device.type == "cuda" else None

    def run(self, works: Series[Work]) -> list[Sampled]:
        batch = make_batch(works, self.device)
        logits = self._graphs.forward(batch) if self._graphs else None
        if logits is None:
            logits = self._model.forward(batch)
        ready = [work.sequence for work in works if work.last]
        return sample(logits, ready) if ready else []
