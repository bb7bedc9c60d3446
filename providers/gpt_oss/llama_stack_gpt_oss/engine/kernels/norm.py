"""RMSNorm of whole rows, and the router, whose input they are: each row is read once."""

import triton
import triton.language as tl

from .dependent import wait_for_previous
from .linear import projected


@triton.jit
def _normed(x, gain, row, columns, inside, hidden, epsilon):
    """Return a normed row in f32."""
    values = tl.load(x + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    return values * tl.rsqrt(tl.sum(values * values, axis=0) / hidden + epsilon) * gain


@triton.jit
def norm_kernel(
    x,
    norm,
    normed,
    hidden,
    epsilon,
    BLOCK: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the normed rows. Grid (rows). BLOCK holds a whole row."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < hidden
    gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    values = _normed(x, gain, row, columns, inside, hidden, epsilon)
    tl.store(normed + row * hidden + columns, values.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def route_row_kernel(
    x,
    norm,
    weight,
    bias,
    scores,
    normed,
    hidden,
    width,
    epsilon,
    BLOCK: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the normed rows, and their scores [rows, width] in f32. Grid (experts, rows). BLOCK holds a whole row.

    For decodes: a program reads one row of the weight, so that all of them are read at once.
    """
    expert, row, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    inside = columns < hidden
    gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + expert * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + expert).to(tl.float32)
    wait_for_previous(DEPENDENT)
    made = _normed(x, gain, row, columns, inside, hidden, epsilon).to(normed.dtype.element_ty)
    if expert == 0:
        tl.store(normed + row * hidden + columns, made, mask=inside)
    tl.store(scores + row * width + expert, tl.sum(made.to(tl.float32) * weights, axis=0) + offset)


@triton.jit(do_not_specialize=["count"])
def route_kernel(
    normed,
    weight,
    bias,
    scores,
    count,
    hidden,
    width,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the scores of normed rows, [rows, width] in f32. Grid (row blocks, strips of the experts). For prompts."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    outputs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask, strip = rows < count, outputs < width
    wait_for_previous(DEPENDENT)
    total = projected(
        normed, weight, rows, outputs, row_mask, strip, hidden, 0, hidden, BLOCK_M, BLOCK_N, BLOCK_K, WIDE
    )
    total += tl.load(bias + outputs, mask=strip, other=0.0).to(tl.float32)[None, :]
    tl.store(scores + rows[:, None] * width + outputs[None, :], total, mask=row_mask[:, None] & strip[None, :])
