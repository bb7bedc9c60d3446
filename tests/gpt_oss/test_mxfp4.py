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
    found = mxfp4.decode(blocks, scales[:, None].expand(-1, 16), dtype)
    for row, scale in zip(found.double().tolist(), scales.tolist(), strict=True):
        values = [by_definition(nibble, scale) for nibble in range(16)]
        expected = [values[nibble] for byte in range(256) for nibble in (byte & 15, byte >> 4)]
        assert row == expected


def test_sign_of_zero_is_kept() -> None:
    byte = torch.full((1, 16), 0x80, dtype=torch.uint8)
    found = mxfp4.decode(byte, torch.tensor([127], dtype=torch.uint8), torch.float32)
    assert [math.copysign(1, value) for value in found.tolist()] == [1.0, -1.0] * 16


def test_encoding_of_tests_decodes_to_same_values() -> None:
    values = torch.tensor([0.0, 0.5, -1.5, 6.0, -6.0, 3.0, 2.0, -4.0] * 4) * 2**-5
    assert torch.equal(mxfp4.decode(*encode_mxfp4(values), torch.float32), values)
