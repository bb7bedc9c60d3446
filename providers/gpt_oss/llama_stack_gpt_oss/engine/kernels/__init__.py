"""The implementations of the engine's steps, and the one place that chooses between them."""

import torch

from ..config import ModelConfig
from ..ops import Ops
from .twins import TorchOps


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Ops:
    """Triton's kernels on a GPU, their twins in plain torch elsewhere."""
    if device.type != "cuda":
        return TorchOps(config)
    from .triton_ops import TritonOps

    return TritonOps(config, wide=dtype == torch.float32)
