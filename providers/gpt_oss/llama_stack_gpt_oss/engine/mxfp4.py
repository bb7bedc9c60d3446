"""MXFP4 (OCP Microscaling Formats): 32 four-bit floats with a shared power-of-two scale."""

from functools import cache

import torch

# The value of each nibble (E2M1): sign, two exponent bits, one mantissa bit.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
GROUP = 32  # values per scale
# Halfway between two magnitudes, or the f32 below, as a value on a boundary goes down and ties go to the even mantissa.
BOUNDARIES = (0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)


def decode(blocks: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Decode blocks [..., groups, 16] and scales [..., groups], both uint8, to values [..., groups * 32], exactly.

    The low nibble of a byte is the element of even index.
    """
    pairs, powers = _tables(dtype, blocks.device)
    return (pairs[blocks.int()].flatten(-2) * powers[scales.int()].unsqueeze(-1)).flatten(-2)


def encode(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode finite values [..., groups * 32] f32 as blocks and scales: exactly if they are representable.

    The scale is the one that represents a group's largest value, or the next one, whichever has the smaller error.
    """
    groups = values.unflatten(-1, (-1, GROUP))
    low = (torch.frexp(groups.abs().amax(-1, keepdim=True)).exponent - 3).clamp(-BIAS, BIAS - 1)
    codes, error = _rounded(groups, low)
    others, other_error = _rounded(groups, low + 1)
    better = other_error < error
    codes = torch.where(better, others, codes)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return blocks.to(torch.uint8), (low + better + BIAS).squeeze(-1).to(torch.uint8)


def _rounded(groups: torch.Tensor, exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nibbles of values under these scales, and the squared error of each group."""
    scaled = torch.ldexp(groups, -exponents)
    boundaries = torch.tensor(BOUNDARIES, device=groups.device)
    codes = torch.bucketize(scaled.abs(), boundaries, out_int32=True)
    made = torch.tensor(VALUES[:8], device=groups.device)[codes]
    error = torch.ldexp((scaled.abs() - made).square().sum(-1, keepdim=True), 2 * exponents)
    return codes | torch.signbit(scaled).int() << 3, error


@cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two values of each byte [256, 2], and the power of two of each scale [256]."""
    pairs = [(VALUES[byte & 0x0F], VALUES[byte >> 4]) for byte in range(256)]
    powers = [2.0 ** (scale - BIAS) for scale in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device), torch.tensor(powers, dtype=dtype, device=device)
