"""MXFP4: 32 four-bit floats and the power of two that scales them all."""

import torch

# The value of each nibble: sign, two bits of exponent, one of mantissa.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
GROUP = 32  # values that share a scale


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """blocks [..., groups, 16] and scales [..., groups], both uint8, to values [..., groups * 32], exactly.

    The low nibble of a byte is the element of even index.
    """
    table = torch.tensor(VALUES, dtype=dtype, device=blocks.device)
    nibbles = torch.stack((blocks & 0x0F, blocks >> 4), dim=-1).flatten(-2)
    values = table[nibbles.long()]
    exponents = scales.to(torch.int32).unsqueeze(-1) - BIAS
    return torch.ldexp(values, exponents).flatten(-2).to(dtype)
