"""Rotary position embeddings with YaRN scaling (arXiv:2309.00071)."""

import math

import torch

from .config import ModelConfig


def tables(config: ModelConfig, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin for positions below `positions`, each [positions, head_size / 2] f32, with YaRN's scaling."""
    cos, sin = tables_of(_frequencies(config), positions, device)
    concentration = 0.1 * math.log(config.yarn.factor) + 1.0 if config.yarn.factor > 1 else 1.0
    return cos * concentration, sin * concentration


def tables_of(frequencies: torch.Tensor, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin for positions below `positions` and the frequencies, each [positions, frequencies] f32."""
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies.to(device)
    return angles.cos(), angles.sin()


def _frequencies(config: ModelConfig) -> torch.Tensor:
    """Keep high frequencies, divide low ones by the factor, and interpolate linearly between."""
    yarn, half = config.yarn, config.head_size // 2
    frequencies = 1.0 / yarn.theta ** (torch.arange(0, config.head_size, 2, dtype=torch.float32) / config.head_size)

    def turns_to_dimension(turns: float) -> float:
        return half * math.log(yarn.original_context / (turns * 2 * math.pi)) / math.log(yarn.theta)

    low = max(turns_to_dimension(yarn.beta_fast), 0)
    high = min(turns_to_dimension(yarn.beta_slow), config.head_size - 1)
    # As in the published implementations, to avoid a division by zero.
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(half, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)
