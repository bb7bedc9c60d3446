"""The implementations of the engine's operations, and the choice between them."""

from typing import Any

import torch

from ..config import ModelConfig
from ..ops import Ops
from .torch_ops import TorchOps

DEPENDENT_CAPABILITY = (9, 0)
FP8_CAPABILITY = (8, 9)


def choose(config: ModelConfig, device: torch.device, dtype: torch.dtype, dependent: bool = False) -> Ops:
    """Return Triton kernels for a GPU, and plain torch for other devices.

    dependent: use programmatic dependent launch, if there is one.
    """
    if device.type != "cuda":
        return TorchOps(config)
    from .triton_ops import TritonOps

    return TritonOps(config, **gpu_options(device, dtype, dependent))


def gpu_options(device: torch.device, dtype: torch.dtype, dependent: bool) -> dict[str, Any]:
    """Return the keyword arguments of the Triton kernels for a GPU."""
    gpu = torch.cuda.get_device_properties(device)
    return {
        "wide": dtype == torch.float32,
        "processors": gpu.multi_processor_count,
        "dependent": dependent and has_dependent_launch(device),
        "shared": gpu.shared_memory_per_block_optin,
    }


def has_dependent_launch(device: torch.device) -> bool:
    """Return whether a GPU has programmatic dependent launch."""
    return torch.cuda.get_device_capability(device) >= DEPENDENT_CAPABILITY


def has_fp8(device: torch.device) -> bool:
    """Return whether the operations can read FP8 on a device. A CPU can, also with Triton's interpreter."""
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= FP8_CAPABILITY
