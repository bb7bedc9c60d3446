"""Dense projections, fused with norm, bias, rotary embedding, KV write and residual: one pass over the weights each.

Rows are tokens. A program takes BLOCK_M of them and a strip of the output, so that a decode step of up to BLOCK_M rows
reads every weight once. WIDE converts the operands of products to f32: for f32 weights, and for Triton's interpreter,
whose tl.dot does not support bf16.
"""

import triton
import triton.language as tl


@triton.jit
def scale_of_rows(x, rows, row_mask, hidden, epsilon, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr):  # noqa: N803
    """Return RMSNorm's factor for each row."""
    squares = tl.zeros([BLOCK_M], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        mask = row_mask[:, None] & (columns < hidden)[None, :]
        part = tl.load(x + rows[:, None] * hidden + columns[None, :], mask=mask, other=0.0).to(tl.float32)
        squares += tl.sum(part * part, axis=1)
    return tl.rsqrt(squares / hidden + epsilon)


@triton.jit
def _part_and_gain(x, norm, rows, row_mask, columns, hidden):
    """Return some columns of the rows [rows, columns], and the norm's gain for them [columns], in f32."""
    inside = columns < hidden
    mask = row_mask[:, None] & inside[None, :]
    part = tl.load(x + rows[:, None] * hidden + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    return part, tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def normed_part(x, norm, scale, rows, row_mask, columns, hidden):
    """Return some columns of the normed rows: [rows, columns] in f32."""
    part, gain = _part_and_gain(x, norm, rows, row_mask, columns, hidden)
    return part * scale[:, None] * gain[None, :]


@triton.jit
def gained_part(x, norm, rows, row_mask, columns, hidden):
    """Return some columns of the rows, before and after the product with the norm's gain: [rows, columns] in f32."""
    part, gain = _part_and_gain(x, norm, rows, row_mask, columns, hidden)
    return part, part * gain[None, :]


@triton.jit
def product(a, b, WIDE: tl.constexpr):  # noqa: N803
    """Multiply a [M, K] by the transpose of b [N, K], accumulated in f32."""
    if WIDE:
        return tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), input_precision="ieee")
    return tl.dot(a.to(tl.bfloat16), tl.trans(b))


@triton.jit
def _projected_pairs(
    x,
    norm,
    weight,
    bias,
    rows,
    row_mask,
    first_row,
    hidden,
    epsilon,
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_P: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Return the projections of the normed rows by `first_row` of the weight, and by the rows HALF behind.

    The rows are read once: the norm's factor is that of a whole row, so it is applied to the sums.
    """
    squares = tl.zeros([BLOCK_M], tl.float32)
    first = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    second = tl.zeros([BLOCK_M, BLOCK_P], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < hidden
        part, gained = gained_part(x, norm, rows, row_mask, columns, hidden)
        squares += tl.sum(part * part, axis=1)
        offsets = first_row[:, None] * hidden + columns[None, :]
        one = tl.load(weight + offsets, mask=inside[None, :], other=0.0)
        two = tl.load(weight + offsets + HALF * hidden, mask=inside[None, :], other=0.0)
        first += product(gained, one, WIDE)
        second += product(gained, two, WIDE)
    scale = tl.rsqrt(squares / hidden + epsilon)[:, None]
    first = first * scale + tl.load(bias + first_row).to(tl.float32)[None, :]
    second = second * scale + tl.load(bias + first_row + HALF).to(tl.float32)[None, :]
    return first, second


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
def qkv_kernel(
    x,
    norm,
    weight,
    bias,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    values,
    count,
    hidden,
    epsilon,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_P: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Project, rotate and store. Grid (heads of q, k and v, HALF / BLOCK_P, row blocks). Rows i and i + HALF pair."""
    head = tl.program_id(0)
    pairs = tl.program_id(1) * BLOCK_P + tl.arange(0, BLOCK_P)
    rows = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = rows < count
    first_row = head * 2 * HALF + pairs
    first, second = _projected_pairs(
        x, norm, weight, bias, rows, row_mask, first_row, hidden, epsilon, HALF, BLOCK_M, BLOCK_P, BLOCK_K, WIDE
    )
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
    count,
    hidden,
    width,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Compute out = x + mixed @ weight' + bias. Grid (strips of the output, row blocks)."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, strip = rows < count, outputs < hidden
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < width
        part = tl.load(
            mixed + rows[:, None] * width + columns[None, :], mask=row_mask[:, None] & inside[None, :], other=0.0
        )
        block = tl.load(
            weight + outputs[:, None] * width + columns[None, :], mask=strip[:, None] & inside[None, :], other=0.0
        )
        total += product(part, block, WIDE)
    mask = row_mask[:, None] & strip[None, :]
    offsets = rows[:, None] * hidden + outputs[None, :]
    total += tl.load(bias + outputs, mask=strip, other=0.0).to(tl.float32)[None, :]
    total += tl.load(x + offsets, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + offsets, total.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["count"])
def route_kernel(
    x,
    norm,
    weight,
    bias,
    scores,
    normed,
    count,
    hidden,
    width,
    epsilon,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Write the normed rows, and their scores [rows, width] in f32. Grid (strips of the experts, row blocks)."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, strip = rows < count, outputs < width
    scale = scale_of_rows(x, rows, row_mask, hidden, epsilon, BLOCK_M, BLOCK_K)
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, hidden, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < hidden
        part = normed_part(x, norm, scale, rows, row_mask, columns, hidden)
        if tl.program_id(0) == 0:
            offsets = rows[:, None] * hidden + columns[None, :]
            tl.store(normed + offsets, part.to(normed.dtype.element_ty), mask=row_mask[:, None] & inside[None, :])
        block = tl.load(
            weight + outputs[:, None] * hidden + columns[None, :], mask=strip[:, None] & inside[None, :], other=0.0
        )
        total += product(part, block, WIDE)
    total += tl.load(bias + outputs, mask=strip, other=0.0).to(tl.float32)[None, :]
    tl.store(scores + rows[:, None] * width + outputs[None, :], total, mask=row_mask[:, None] & strip[None, :])


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
):
    """Write the normed rows, and their scores [rows, width] in f32. Grid (experts, rows). BLOCK holds a whole row.

    For decodes: a program reads one row of the weight, so that all of them are read at once.
    """
    expert, row, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    inside = columns < hidden
    values = tl.load(x + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + expert * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, axis=0) / hidden + epsilon)
    made = (values * scale * gain).to(normed.dtype.element_ty)
    if expert == 0:
        tl.store(normed + row * hidden + columns, made, mask=inside)
    score = tl.sum(made.to(tl.float32) * weights, axis=0) + tl.load(bias + expert).to(tl.float32)
    tl.store(scores + row * width + expert, score)
