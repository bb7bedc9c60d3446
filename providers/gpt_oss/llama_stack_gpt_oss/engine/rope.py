"""YaRN's rotary tables."""

import math

import torch

from .config import ModelConfig


def tables(config: ModelConfig, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for positions 0 to `positions`, each [positions, head_size / 2] f32, with YaRN's concentration."""
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * _frequencies(config).to(device)
    concentration = 0.1 * math.log(config.yarn.factor) + 1.0 if config.yarn.factor > 1 else 1.0
    return angles.cos() * concentration, angles.sin() * concentration


def _frequencies(config: ModelConfig) -> torch.Tensor:
    """Fast dimensions keep their frequency, slow ones are divided by the factor, a linear ramp lies between."""
    yarn, half = config.yarn, config.head_size // 2
    frequencies = 1.0 / yarn.theta ** (torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size)

    def turns_to_dimension(turns: float) -> float:
        return half * math.log(yarn.original_context / (turns * 2 * math.pi)) / math.log(yarn.theta)

    low = max(turns_to_dimension(yarn.beta_fast), 0)
    high = min(turns_to_dimension(yarn.beta_slow), config.head_size - 1)
    # As the published implementations do where the two ends meet, so that nothing is divided by zero.
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(half, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)
