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

    processors = torch.cuda.get_device_properties(device).multi_processor_count
    return TritonOps(config, dtype == torch.float32, processors)
