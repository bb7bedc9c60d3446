"""MXFP4 (OCP Microscaling Formats): every byte with every scale, against the definition in Python floats."""

import math

import pytest
import torch

from llama_stack_gpt_oss.engine import mxfp4

from .support.checkpoints import encode_mxfp4


def by_definition(nibble: int, scale: int) -> float:
    """Decode a sign, two bits of exponent with bias 1 and one bit of mantissa, times 2 to the power of scale - 127."""
    sign, exponent, mantissa = nibble >> 3, nibble >> 1 & 3, nibble & 1
    value = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
    return math.copysign(value, -1 if sign else 1) * 2.0 ** (scale - 127)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_byte_with_every_scale_is_decoded(dtype: torch.dtype) -> None:
    # Beyond these scales, a value of 6 or the smallest half exceeds the range of the type.
    scales = torch.arange(2, 252, dtype=torch.uint8)
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16).expand(len(scales), 16, 16)
    found = mxfp4.decode(*mxfp4.pack(blocks, scales[:, None].expand(-1, 16)), dtype)
    for row, scale in zip(found.double().tolist(), scales.tolist(), strict=True):
        values = [by_definition(nibble, scale) for nibble in range(16)]
        expected = [values[nibble] for byte in range(256) for nibble in (byte & 15, byte >> 4)]
        assert row == expected


def test_sign_of_zero_is_kept() -> None:
    byte = torch.full((1, 16), 0x80, dtype=torch.uint8)
    found = mxfp4.decode(*mxfp4.pack(byte, torch.tensor([127], dtype=torch.uint8)), torch.float32)
    assert [math.copysign(1, value) for value in found.tolist()] == [1.0, -1.0] * 16


def test_representable_values_are_encoded_exactly() -> None:
    """Groups of every nibble, and groups whose largest value is small for their scale."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    small = torch.tensor([0x00, 0x11, 0x9A, 0x32], dtype=torch.uint8).repeat_interleave(16).view(1, 4, 16)
    for scale in (3, 127, 240):
        for packed in (blocks, small):
            scales = torch.full(packed.shape[:-1], scale, dtype=torch.uint8)
            values = mxfp4.decode(*mxfp4.pack(packed, scales), torch.float32)
            assert torch.equal(mxfp4.decode(*mxfp4.encode(values), torch.float32), values)


def test_values_are_encoded_as_nearest_ones() -> None:
    """The error is at most that of the scale for the largest value, with which no value could be nearer."""
    values = torch.randn(50, 320, generator=torch.Generator().manual_seed(1))
    errors = [
        (mxfp4.decode(*encoded, torch.float32) - values).square().unflatten(-1, (-1, 32)).sum(-1)
        for encoded in (mxfp4.encode(values), mxfp4.pack(*encode_mxfp4(values)))
    ]
    assert (errors[0] <= errors[1] + 1e-6).all()
    assert errors[0].sum() < 0.95 * errors[1].sum()


def test_ties_are_rounded_to_even_and_zeros_stay_zero() -> None:
    halves = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, -0.25, -0.75, 6.0, *[0.0] * 23]
    found = mxfp4.decode(*mxfp4.encode(torch.tensor([halves, [0.0] * 32])), torch.float32)
    assert found.tolist() == [[0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 0.0, -1.0, 6.0, *[0.0] * 23], [0.0] * 32]


def test_encoding_of_tests_decodes_to_same_values() -> None:
    values = torch.tensor([0.0, 0.5, -1.5, 6.0, -6.0, 3.0, 2.0, -4.0] * 4) * 2**-5
    assert torch.equal(mxfp4.decode(*mxfp4.pack(*encode_mxfp4(values)), torch.float32), values)
