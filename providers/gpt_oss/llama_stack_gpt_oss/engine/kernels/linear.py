"""The projections around attention, fused with norm, bias, rotary embedding, KV write and residual.

Rows are tokens. A program takes BLOCK_M of them and a strip of the output, so that a decode step of up to BLOCK_M rows
reads every weight once. With SPLITS, it takes a part of the inputs, as a few hundred strips would leave some
multiprocessors with more work than others. Another kernel adds the splits in their order, so that a result does not
depend on which ends first.

For prompts, cuBLAS multiplies the normed rows, and `rotate_kernel` does the rest. WIDE converts the operands of
products to f32: for f32 weights, and for Triton's interpreter, whose tl.dot does not support bf16.
"""

import triton
import triton.language as tl

from .dependent import prefetch, start_next, wait_for_previous


@triton.jit
def gained_part(x, norm, rows, row_mask, columns, hidden):
    """Return some columns of the rows, before and after the product with the norm's gain: [rows, columns] in f32."""
    inside = columns < hidden
    mask = row_mask[:, None] & inside[None, :]
    part = tl.load(x + rows[:, None] * hidden + columns[None, :], mask=mask, other=0.0).to(tl.float32)
    return part, part * tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)[None, :]


@triton.jit
def product(a, b, WIDE: tl.constexpr):  # noqa: N803
    """Multiply a [M, K] by the transpose of b [N, K], accumulated in f32."""
    if WIDE:
        return tl.dot(a.to(tl.float32), tl.trans(b.to(tl.float32)), input_precision="ieee")
    return tl.dot(a.to(tl.bfloat16), tl.trans(b))


@triton.jit
def _columns_of_split(width, split, SPLITS: tl.constexpr, BLOCK_K: tl.constexpr):  # noqa: N803
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
def _projected_pairs(
    x,
    norm,
    weight,
    rows,
    row_mask,
    first_row,
    hidden,
    begin,
    end,
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Return the projections of rows by `first_row` of the weight, by the rows HALF behind, and the rows' squares.

    The rows are read once: the norm's factor is that of a whole row, so it is applied to the sums.
    """
    squares = tl.zeros([BLOCK_M], tl.float32)
    first = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    second = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        inside = columns < hidden
        part, gained = gained_part(x, norm, rows, row_mask, columns, hidden)
        squares += tl.sum(part * part, axis=1)
        offsets = first_row[:, None] * hidden + columns[None, :]
        one = tl.load(weight + offsets, mask=inside[None, :], other=0.0)
        two = tl.load(weight + offsets + HALF * hidden, mask=inside[None, :], other=0.0)
        first += product(gained, one, WIDE)
        second += product(gained, two, WIDE)
    return first, second, squares


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


@triton.jit
def _rotate_and_store(
    first,
    second,
    bias,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    values,
    head,
    pairs,
    rows,
    row_mask,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
):
    """Add the bias to pairs of a head, rotate those of q and k, and store them: k and v in their slots."""
    first += tl.load(bias + head * 2 * HALF + pairs).to(tl.float32)[None, :]
    second += tl.load(bias + head * 2 * HALF + HALF + pairs).to(tl.float32)[None, :]
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
    partial,
    partial_squares,
    count,
    hidden,
    epsilon,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Project, rotate and store. Grid (heads of q, k and v, HALF / BLOCK_N pairs, row blocks * SPLITS).

    Rows i and i + HALF of a head are a pair.
    With several splits, each writes its sums to `partial` [rows, SPLITS, heads * 2 * HALF], and the rows' squares to
    `partial_squares` [rows, SPLITS], for `rotate_kernel`.
    """
    start_next(DEPENDENT)
    head, split = tl.program_id(0), tl.program_id(2) % SPLITS
    pairs = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(2) // SPLITS * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, first_row = rows < count, head * 2 * HALF + pairs
    begin, end = _columns_of_split(hidden, split, SPLITS, BLOCK_K)
    prefetch(weight, first_row, hidden, begin, DEPENDENT)
    prefetch(weight, first_row + HALF, hidden, begin, DEPENDENT)
    wait_for_previous(DEPENDENT)
    first, second, squares = _projected_pairs(
        x, norm, weight, rows, row_mask, first_row, hidden, begin, end, HALF, BLOCK_M, BLOCK_N, BLOCK_K, WIDE
    )
    if SPLITS == 1:
        scale = tl.rsqrt(squares / hidden + epsilon)[:, None]
        _rotate_and_store(
            first * scale,
            second * scale,
            bias,
            cos,
            sin,
            positions,
            slots,
            queries,
            keys,
            values,
            head,
            pairs,
            rows,
            row_mask,
            QUERY_HEADS,
            KV_HEADS,
            HALF,
        )
    else:
        spots = rows * SPLITS + split
        target = partial + spots[:, None] * (QUERY_HEADS + 2 * KV_HEADS) * 2 * HALF + first_row[None, :]
        tl.store(target, first, mask=row_mask[:, None])
        tl.store(target + HALF, second, mask=row_mask[:, None])
        if (head == 0) & (tl.program_id(1) == 0):
            tl.store(partial_squares + spots, squares, mask=row_mask)


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def rotate_kernel(
    partial,
    partial_squares,
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
    SPLITS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Do what `qkv_kernel` does after its sums. Grid (heads of q, k and v, row blocks).

    With one split, `partial` [rows, heads * 2 * HALF] is of normed rows. With several ones, they are added in order.
    """
    start_next(DEPENDENT)
    head, pairs = tl.program_id(0), tl.arange(0, HALF)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask = rows < count
    first = tl.zeros([BLOCK_M, HALF], tl.float32)
    second = tl.zeros([BLOCK_M, HALF], tl.float32)
    squares = tl.zeros([BLOCK_M], tl.float32)
    wait_for_previous(DEPENDENT)
    for split in tl.static_range(SPLITS):
        spots = rows * SPLITS + split
        source = partial + ((spots * (QUERY_HEADS + 2 * KV_HEADS) + head) * 2 * HALF)[:, None] + pairs[None, :]
        first += tl.load(source, mask=row_mask[:, None], other=0.0).to(tl.float32)
        second += tl.load(source + HALF, mask=row_mask[:, None], other=0.0).to(tl.float32)
        if SPLITS > 1:
            squares += tl.load(partial_squares + spots, mask=row_mask, other=0.0)
    if SPLITS > 1:
        scale = tl.rsqrt(squares / hidden + epsilon)[:, None]
        first, second = first * scale, second * scale
    _rotate_and_store(
        first,
        second,
        bias,
        cos,
        sin,
        positions,
        slots,
        queries,
        keys,
        values,
        head,
        pairs,
        rows,
        row_mask,
        QUERY_HEADS,
        KV_HEADS,
        HALF,
    )


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
    start_next(DEPENDENT)
    outputs, split = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N), tl.program_id(1) % SPLITS
    rows = tl.program_id(1) // SPLITS * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, strip = rows < count, outputs < hidden
    begin, end = _columns_of_split(width, split, SPLITS, BLOCK_K)
    prefetch(weight, tl.minimum(outputs, hidden - 1), width, begin, DEPENDENT)
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
    start_next(DEPENDENT)
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = columns < hidden
    total = tl.zeros([BLOCK_N], tl.float32)
    wait_for_previous(DEPENDENT)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (row * PARTS + part) * hidden + columns, mask=strip, other=0.0)
    total += tl.load(x + row * hidden + columns, mask=strip, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, total.to(out.dtype.element_ty), mask=strip)
