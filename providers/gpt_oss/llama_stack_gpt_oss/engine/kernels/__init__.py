"""The implementations of the engine's steps, and the one place that chooses between them."""

import torch

from ..config import ModelConfig
from ..ops import Ops
from .twins import TorchOps


def choose(config: ModelConfig, device: torch.device) -> Ops:
    """Triton on a GPU, plain torch elsewhere."""
    return TorchOps(config)
