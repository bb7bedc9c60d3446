"""Runs a step on the device."""

from collections.abc import Sequence as Series

import torch

from .batch import make_batch
from .model import Model
from .sampler import sample
from .scheduler import Work
from .sequence import Sampled


class ModelRunner:
    """The engine's runner, over a model."""

    def __init__(self, model: Model, device: torch.device) -> None:
        self._model = model
        self._device = device

    def run(self, works: Series[Work]) -> list[Sampled]:
        logits = self._model.forward(make_batch(works, self._device))
        ready = [work.sequence for work in works if work.last]
        return sample(logits, ready) if ready else []
