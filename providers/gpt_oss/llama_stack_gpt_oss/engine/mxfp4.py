"""MXFP4 (OCP Microscaling Formats): 32 four-bit floats with a shared power-of-two scale.

A checkpoint has blocks [..., groups, 16] uint8, where the low nibble of a byte is the element of even index, and scales
[..., groups] uint8. The model has them as kernels read them: words [..., groups, 4] int32, and the scales with zeros
behind, to a multiple of four. A word of index t has the elements 2t and 2t + 1 of each quarter of its group, since a
lane of the tensor cores needs these. Its bits lie so that four operations give each of its four pairs in bf16.
"""

from functools import cache

import torch
from torch.nn import functional

# The value of each nibble (E2M1): sign, two exponent bits, one mantissa bit.
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
BIAS = 127
GROUP = 32  # values per scale
ALIGNED = 4  # scales: each row of them begins at a multiple, so that kernels read several at a time
LARGEST_SCALE = 159  # that kernels read: 2 ** 32
# The bits of two nibbles in a pair of bf16 values: sign, low exponent bits, high mantissa bit.
PAIR = 0x81C081C0
# Halfway between two magnitudes, or the f32 below, as a value on a boundary goes down and ties go to the even mantissa.
BOUNDARIES = (0.25, 0.75 - 2**-24, 1.25, 1.75 - 2**-23, 2.5, 3.5 - 2**-22, 5.0)


def pack(blocks: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the words and scales of a checkpoint's blocks and scales."""
    return words_of(blocks), padded(scales)


def padded(scales: torch.Tensor) -> torch.Tensor:
    return functional.pad(scales, (0, -scales.shape[-1] % ALIGNED))


def words_of(blocks: torch.Tensor) -> torch.Tensor:
    """Return the words of blocks."""
    quarters = blocks.unflatten(-1, (4, 4)).int()
    first, second, third, fourth = (_places(blocks.device)[n, quarters[..., n, :]] for n in range(4))
    return first | second | third | fourth


def decode(words: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Decode words and scales to values [..., groups * 32], exactly."""
    pairs, powers = _tables(dtype, words.device)
    exact = powers[scales[..., : words.shape[-2]].int()].unsqueeze(-1)
    return (pairs[_blocks_of(words)].flatten(-2) * exact).flatten(-2)


def encode(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode finite values [..., groups * 32] f32 as words and scales: exactly if they are representable.

    The scale is the one that represents a group's largest value, or the next one, whichever has the smaller error.
    """
    groups = values.unflatten(-1, (-1, GROUP))
    low = (torch.frexp(groups.abs().amax(-1, keepdim=True)).exponent - 3).clamp(-BIAS, BIAS - 1)
    codes, error = _rounded(groups, low)
    others, other_error = _rounded(groups, low + 1)
    better = other_error < error
    codes = torch.where(better, others, codes)
    blocks = codes[..., 0::2] | codes[..., 1::2] << 4
    return pack(blocks.to(torch.uint8), (low + better + BIAS).squeeze(-1).to(torch.uint8))


def _rounded(groups: torch.Tensor, exponents: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nibbles of values under these scales, and the squared error of each group."""
    scaled = torch.ldexp(groups, -exponents)
    boundaries = torch.tensor(BOUNDARIES, device=groups.device)
    codes = torch.bucketize(scaled.abs(), boundaries, out_int32=True)
    made = torch.tensor(VALUES[:8], device=groups.device)[codes]
    error = torch.ldexp((scaled.abs() - made).square().sum(-1, keepdim=True), 2 * exponents)
    return codes | torch.signbit(scaled).int() << 3, error


def _blocks_of(words: torch.Tensor) -> torch.Tensor:
    """Return the blocks of words, in int32."""
    turned = (words >> 4) & 0x0FFFFFFF | words << 28
    fourth = words & _signed(0x81808180) | words >> 8 & 0x00400040
    pairs = torch.stack((words << 2, words << 6, turned, fourth), dim=-2) & _signed(PAIR)
    return (pairs >> 6 & 0x07 | pairs >> 12 & 0x08 | pairs >> 18 & 0x70 | pairs >> 24 & 0x80).flatten(-2)


def _signed(bits: int) -> int:
    """Return the int32 with these bits."""
    return bits - ((bits & 0x80000000) << 1)


@cache
def _places(device: torch.device) -> torch.Tensor:
    """Return the bits of a word for each byte of a block's quarters: [4, 256] int32."""
    pairs = [
        (byte & 0x07) << 6 | (byte & 0x08) << 12 | (byte & 0x70) << 18 | (byte & 0x80) << 24 for byte in range(256)
    ]
    places = (
        [pair >> 2 for pair in pairs],
        [pair >> 6 for pair in pairs],
        [(pair << 4 | pair >> 28) & 0xFFFFFFFF for pair in pairs],
        [pair & 0x81808180 | (pair & 0x00400040) << 8 for pair in pairs],
    )
    return torch.tensor([[_signed(bits) for bits in row] for row in places], dtype=torch.int32, device=device)


@cache
def _tables(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two values of each byte [256, 2], and the power of two of each scale [256]."""
    pairs = [(VALUES[byte & 0x0F], VALUES[byte >> 4]) for byte in range(256)]
    powers = [2.0 ** (scale - BIAS) for scale in range(256)]
    return torch.tensor(pairs, dtype=dtype, device=device), torch.tensor(powers, dtype=dtype, device=device)
