"""Rotary position embeddings with YaRN scaling (arXiv:2309.00071)."""

import math

import torch

from .config import ModelConfig, Yarn


def tables(config: ModelConfig, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin for positions below `positions`, each [positions, head_size / 2] f32, with YaRN's scaling."""
    cos, sin = tables_of(yarn_frequencies(config.yarn, config.head_size, truncate=False), positions, device)
    return cos * concentration(config.yarn.factor), sin * concentration(config.yarn.factor)


def tables_of(frequencies: torch.Tensor, positions: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin for positions below `positions` and the frequencies, each [positions, frequencies] f32."""
    angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * frequencies.to(device)
    return angles.cos(), angles.sin()


def concentration(factor: float, scale: float = 1.0) -> float:
    """Return YaRN's factor of cos and sin."""
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def yarn_frequencies(yarn: Yarn, head_size: int, truncate: bool) -> torch.Tensor:
    """Keep high frequencies, divide low ones by the factor, and interpolate linearly between.

    truncate: the bounds between them are whole dimensions.
    """
    half = head_size // 2
    frequencies = 1.0 / yarn.theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)

    def turns_to_dimension(turns: float) -> float:
        return half * math.log(yarn.original_context / (turns * 2 * math.pi)) / math.log(yarn.theta)

    low, high = turns_to_dimension(yarn.beta_fast), turns_to_dimension(yarn.beta_slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    # As in the published implementations, to avoid a division by zero.
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(half, dtype=torch.float32) - low) / width).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)
