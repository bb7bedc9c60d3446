"""The implementations of the engine's operations, and the choice between them."""

import torch

from ..config import ModelConfig
from ..ops import Ops
from .torch_ops import TorchOps


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype) -> Ops:
    """Return Triton kernels for a GPU, and plain torch for other devices."""
    if device.type != "cuda":
        return TorchOps(config)
    from .triton_ops import TritonOps

    return TritonOps(config, wide=dtype == torch.float32)
