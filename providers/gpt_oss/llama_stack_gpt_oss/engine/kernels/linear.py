"""What surrounds the products of attention: rotary embedding and KV write before it, its projection after it.

Rows are tokens. cuBLAS projects the normed rows to queries, keys and values, and `rotate_kernel` does the rest. A
program of the projection after attention takes BLOCK_M rows and a strip of the output, so that a decode step of up to
BLOCK_M rows reads every weight once. With SPLITS, it takes a part of the inputs, as a hundred strips would leave some
multiprocessors with more work than others. Another kernel adds the splits in their order, so that a result does not
depend on which ends first. For prompts, cuBLAS does this product too.

WIDE converts the operands of products to f32: for f32 weights, and for Triton's interpreter, whose tl.dot does not
support bf16.
"""

import triton
import triton.language as tl

from .dependent import wait_for_previous


@triton.jit
def product(a, b, WIDE: tl.constexpr):  # noqa: N803
    """Multiply a [M, K] by the transpose of b [N, K], accumulated in f32."""
    if WIDE:
        return tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), input_precision="ieee")
    return tl.dot(a.to(tl.bfloat16), tl.trans(b))


@triton.jit
def columns_of_split(width, split, SPLITS: tl.constexpr, BLOCK_K: tl.constexpr):  # noqa: N803
    """Return the first input of a split, and the one after the last. Splits begin at multiples of BLOCK_K."""
    per_split = tl.cdiv(tl.cdiv(width, BLOCK_K), SPLITS) * BLOCK_K
    return split * per_split, tl.minimum((split + 1) * per_split, width)


@triton.jit
def projected(
    x,
    weight,
    rows,
    outputs,
    row_mask,
    strip,
    width,
    begin,
    end,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Return the products of the rows of x with those of the weight, over the columns from begin to end, in f32."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < width
        part = tl.load(
            x + rows[:, None] * width + columns[None, :], mask=row_mask[:, None] & inside[None, :], other=0.0
        )
        block = tl.load(
            weight + outputs[:, None] * width + columns[None, :], mask=strip[:, None] & inside[None, :], other=0.0
        )
        total += product(part, block, WIDE)
    return total


@triton.jit
def _rotated(first, second, cos, sin, positions_of_rows, row_mask, pairs, HALF: tl.constexpr):  # noqa: N803
    """Return the pairs of numbers, rotated by the angles of their rows' positions."""
    table = positions_of_rows[:, None] * HALF + pairs[None, :]
    c = tl.load(cos + table, mask=row_mask[:, None], other=0.0)
    s = tl.load(sin + table, mask=row_mask[:, None], other=0.0)
    return first * c - second * s, second * c + first * s


@triton.jit
def _store_pairs(heads, numbers, first, second, pairs, row_mask, HALF: tl.constexpr):  # noqa: N803
    """Store pairs of numbers in heads of 2 * HALF, in their dtype; FP8 has no infinity, so it keeps its largest."""
    if heads.dtype.element_ty == tl.float8e4nv:
        first = tl.minimum(tl.maximum(first, -448.0), 448.0)
        second = tl.minimum(tl.maximum(second, -448.0), 448.0)
    target = heads + numbers[:, None] * 2 * HALF + pairs[None, :]
    tl.store(target, first.to(heads.dtype.element_ty), mask=row_mask[:, None])
    tl.store(target + HALF, second.to(heads.dtype.element_ty), mask=row_mask[:, None])


# Arguments that change from step to step must not select another build of a kernel: it would compile in a request.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def rotate_kernel(
    projected_rows,
    bias,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    values,
    count,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Add the bias to projected rows [rows, heads * 2 * HALF], rotate q and k, and store them: k and v in their slots.

    Grid (heads of q, k and v, row blocks). Numbers i and i + HALF of a head are a pair.
    """
    head, pairs = tl.program_id(0), tl.arange(0, HALF)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = rows < count
    offset = tl.load(bias + head * 2 * HALF + pairs).to(tl.float32)
    other_offset = tl.load(bias + head * 2 * HALF + HALF + pairs).to(tl.float32)
    wait_for_previous(DEPENDENT)
    source = projected_rows + ((rows * (QUERY_HEADS + 2 * KV_HEADS) + head) * 2 * HALF)[:, None] + pairs[None, :]
    first = tl.load(source, mask=row_mask[:, None], other=0.0).to(tl.float32) + offset[None, :]
    second = tl.load(source + HALF, mask=row_mask[:, None], other=0.0).to(tl.float32) + other_offset[None, :]
    if head < QUERY_HEADS + KV_HEADS:
        positions_of_rows = tl.load(positions + rows, mask=row_mask, other=0)
        first, second = _rotated(first, second, cos, sin, positions_of_rows, row_mask, pairs, HALF)
    if head < QUERY_HEADS:
        _store_pairs(queries, rows * QUERY_HEADS + head, first, second, pairs, row_mask, HALF)
    else:
        slot = tl.load(slots + rows, mask=row_mask, other=0)
        if head < QUERY_HEADS + KV_HEADS:
            _store_pairs(keys, slot * KV_HEADS + head - QUERY_HEADS, first, second, pairs, row_mask, HALF)
        else:
            _store_pairs(values, slot * KV_HEADS + head - QUERY_HEADS - KV_HEADS, first, second, pairs, row_mask, HALF)


@triton.jit(do_not_specialize=["count"])
def out_kernel(
    mixed,
    x,
    weight,
    bias,
    out,
    partial,
    count,
    hidden,
    width,
    SPLITS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute out = x + mixed @ weight' + bias. Grid (strips of the output, row blocks * SPLITS).

    With several splits, each writes its sums to `partial` [rows, SPLITS, hidden], the first one with the bias, for
    `sum_kernel`.
    """
    outputs, split = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1) % SPLITS
    rows = tl.program_id(1) // SPLITS * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, strip = rows < count, outputs < hidden
    begin, end = columns_of_split(width, split, SPLITS, BLOCK_K)
    wait_for_previous(DEPENDENT)
    total = projected(mixed, weight, rows, outputs, row_mask, strip, width, begin, end, BLOCK_M, BLOCK_N, BLOCK_K, WIDE)
    offset = tl.load(bias + outputs, mask=strip, other=0.0).to(tl.float32)
    total += tl.where(split == 0, offset, 0.0)[None, :]
    mask = row_mask[:, None] & strip[None, :]
    if SPLITS == 1:
        offsets = rows[:, None] * hidden + outputs[None, :]
        total += tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
        tl.store(out + offsets, total.to(out.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + (rows[:, None] * SPLITS + split) * hidden + outputs[None, :], total, mask=mask)


@triton.jit
def sum_kernel(
    x,
    parts,
    out,
    hidden,
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Add the parts [rows, PARTS, hidden] to the residual, in their order. Grid (strips of the output, rows)."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = columns < hidden
    total = tl.zeros([BLOCK_N], tl.float32)
    wait_for_previous(DEPENDENT)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (row * PARTS + part) * hidden + columns, mask=strip, other=0.0)
    total += tl.load(x + row * hidden + columns, mask=strip, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, total.to(out.dtype.element_ty), mask=strip)
