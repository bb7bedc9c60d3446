"""MXFP4 (OCP Microscaling Formats): 32 four-bit floats with a shared power-of-two scale."""

from functools import cache

import torch

# The value of each nibble (E2M1): sign, two exponent bits, one mantissa bit.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
GROUP = 32  # values per scale


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Decode blocks [..., groups, 16] and scales [..., groups], both uint8, to values [..., groups * 32], exactly.

    The low nibble of a byte is the element of even index.
    """
    pairs, powers = _tables(dtype, blocks.device)
    return (pairs[blocks.int()].flatten(-2) * powers[scales.int()].unsqueeze(-1)).flatten(-2)


@cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two values of each byte [256, 2], and the power of two of each scale [256]."""
    pairs = [(VALUES[byte & 0x0F], VALUES[byte >> 4]) for byte in range(256)]
    powers = [2.0 ** (scale - BIAS) for scale in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device), torch.tensor(powers, dtype=dtype, device=device)
