"""The experts' projections, computed directly from MXFP4 weights.

A byte holds two neighbours along the input. So a tile of bytes multiplies the even inputs by its low nibbles and the
odd ones by its high nibbles, without a shuffle. For few rows there is a program for each row and expert, which selects
the expert from the router's scores; for many rows, a kernel groups them by expert first.
"""

import triton
import triton.language as tl


@triton.jit
def _nibbles(packed):
    """Convert FP4 nibbles to f32: they become the upper bits of an f16, whose exponent is then 14 too small."""
    bits = ((packed & 7) << 9) | ((packed & 8) << 12)
    return bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32) * 16384.0


@triton.jit
def _power(scales):
    """Return 2 ** (scale - 127): the scale becomes the exponent of an f32. Exponent 0 means 2 ** -127."""
    wide = scales.to(tl.int32)
    bits = tl.where(wide == 0, 1 << 22, wide << 23)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _chosen(scores, row, rank, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr):  # noqa: N803
    """Return the expert of that rank in a row, and its softmax weight among the top CHOSEN. Ties go to the first."""
    numbers = tl.arange(0, EXPERTS)
    left = tl.load(scores + row * EXPERTS + numbers)
    best = tl.max(left, axis=0)
    expert, mine, total = 0, 0.0, 0.0
    for turn in tl.static_range(CHOSEN):
        score, found = tl.max(left, axis=0, return_indices=True)
        weight = tl.exp(score - best)
        total += weight
        expert = tl.where(turn == rank, found, expert)
        mine = tl.where(turn == rank, weight, mine)
        left = tl.where(numbers == found, float("-inf"), left)
    return expert, mine / total


@triton.jit(do_not_specialize=["count"])
def group_kernel(
    scores,
    order,
    counts,
    shares,
    count,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
):
    """Group the rows by chosen expert, with the same choice as `_chosen`. Grid (experts).

    order [experts, count] begins with row * CHOSEN + rank of each expert's rows, counts [experts] is their number, and
    shares [rows, CHOSEN] f32 gets the expert's weight in each row.
    """
    expert = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    members = 0
    for start in range(0, count, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        alive = rows < count
        left = tl.load(scores + rows[:, None] * EXPERTS + numbers[None, :], mask=alive[:, None], other=0.0)
        best = tl.max(left, axis=1)
        rank = tl.full([BLOCK_M], CHOSEN, tl.int32)
        mine = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for turn in tl.static_range(CHOSEN):
            score, found = tl.max(left, axis=1, return_indices=True)
            weight = tl.exp(score - best)
            total += weight
            rank = tl.where(found == expert, turn, rank)
            mine = tl.where(found == expert, weight, mine)
            left = tl.where(numbers[None, :] == found[:, None], float("-inf"), left)
        chose = alive & (rank < CHOSEN)
        pair = rows * CHOSEN + rank
        place = members + tl.cumsum(chose.to(tl.int32), axis=0) - 1
        tl.store(order + expert * count + place, pair, mask=chose)
        tl.store(shares + pair, mine / total, mask=chose)
        members += tl.sum(chose.to(tl.int32), axis=0)
    tl.store(counts + expert, members)


@triton.jit
def _row_product(x, blocks, scales, first, outputs, strip, inputs, BLOCK_N: tl.constexpr, BLOCK_B: tl.constexpr):  # noqa: N803
    """Multiply one row by the matrix rows first + outputs: [BLOCK_N] in f32. A matrix row has inputs / 2 bytes."""
    total = tl.zeros([BLOCK_N], tl.float32)
    width = inputs // 2
    for start in range(0, width, BLOCK_B):
        spots = start + tl.arange(0, BLOCK_B)
        inside = spots < width
        mask = strip[:, None] & inside[None, :]
        packed = tl.load(blocks + (first + outputs)[:, None] * width + spots[None, :], mask=mask, other=0).to(tl.int32)
        scale = tl.load(
            scales + (first + outputs)[:, None] * (inputs // 32) + (spots // 16)[None, :], mask=mask, other=0
        )
        even = tl.load(x + 2 * spots, mask=inside, other=0.0).to(tl.float32)
        odd = tl.load(x + 2 * spots + 1, mask=inside, other=0.0).to(tl.float32)
        both = _nibbles(packed & 15) * even[None, :] + _nibbles(packed >> 4) * odd[None, :]
        total += tl.sum(both * _power(scale), axis=1)
    return total


@triton.jit
def _swiglu(gate, up, limit):
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate / (1.0 + tl.exp(gate * -1.702)) * (up + 1.0)


@triton.jit
def up_row_kernel(
    normed,
    scores,
    blocks,
    scales,
    bias,
    inner,
    hidden,
    intermediate,
    limit,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_B: tl.constexpr,  # noqa: N803
):
    """Compute gate, up and SwiGLU. Grid (strips of the intermediate, rows * CHOSEN)."""
    row, rank = tl.program_id(1) // CHOSEN, tl.program_id(1) % CHOSEN
    expert, _ = _chosen(scores, row, rank, EXPERTS, CHOSEN)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = columns < intermediate
    first = expert.to(tl.int64) * 2 * intermediate
    x = normed + row * hidden
    gate = _row_product(x, blocks, scales, first, 2 * columns, strip, hidden, BLOCK_N, BLOCK_B)
    up = _row_product(x, blocks, scales, first, 2 * columns + 1, strip, hidden, BLOCK_N, BLOCK_B)
    gate += tl.load(bias + first + 2 * columns, mask=strip, other=0.0).to(tl.float32)
    up += tl.load(bias + first + 2 * columns + 1, mask=strip, other=0.0).to(tl.float32)
    target = inner + tl.program_id(1) * intermediate + columns
    tl.store(target, _swiglu(gate, up, limit).to(inner.dtype.element_ty), mask=strip)


@triton.jit
def down_row_kernel(
    inner,
    scores,
    blocks,
    scales,
    bias,
    x,
    out,
    hidden,
    intermediate,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_B: tl.constexpr,  # noqa: N803
):
    """Compute the chosen experts' down projections and their sum, best first. Grid (strips of the output, rows)."""
    row = tl.program_id(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = columns < hidden
    total = tl.zeros([BLOCK_N], tl.float32)
    for rank in range(CHOSEN):
        expert, share = _chosen(scores, row, rank, EXPERTS, CHOSEN)
        first = expert.to(tl.int64) * hidden
        source = inner + (row * CHOSEN + rank) * intermediate
        part = _row_product(source, blocks, scales, first, columns, strip, intermediate, BLOCK_N, BLOCK_B)
        total += share * (part + tl.load(bias + first + columns, mask=strip, other=0.0).to(tl.float32))
    total += tl.load(x + row * hidden + columns, mask=strip, other=0.0).to(tl.float32)
    tl.store(out + row * hidden + columns, total.to(out.dtype.element_ty), mask=strip)


@triton.jit
def _group_product(
    x,
    sources,
    alive,
    blocks,
    scales,
    first,
    outputs,
    strip,
    inputs,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_B: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Multiply the rows `sources` of x by the matrix rows first + outputs: [BLOCK_M, BLOCK_N] in f32."""
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    width = inputs // 2
    for start in range(0, width, BLOCK_B):
        spots = start + tl.arange(0, BLOCK_B)
        inside = spots < width
        mask = strip[:, None] & inside[None, :]
        packed = tl.load(blocks + (first + outputs)[:, None] * width + spots[None, :], mask=mask, other=0).to(tl.int32)
        scale = tl.load(
            scales + (first + outputs)[:, None] * (inputs // 32) + (spots // 16)[None, :], mask=mask, other=0
        )
        power = _power(scale)
        low, high = _nibbles(packed & 15) * power, _nibbles(packed >> 4) * power
        here = alive[:, None] & inside[None, :]
        even = tl.load(x + sources[:, None] * inputs + 2 * spots[None, :], mask=here, other=0.0)
        odd = tl.load(x + sources[:, None] * inputs + 2 * spots[None, :] + 1, mask=here, other=0.0)
        if WIDE:
            total += tl.dot(even.to(tl.float32), tl.trans(low), input_precision="ieee")
            total += tl.dot(odd.to(tl.float32), tl.trans(high), input_precision="ieee")
        else:
            # FP4 values times a power of two are exact in bf16.
            total += tl.dot(even, tl.trans(low.to(tl.bfloat16)))
            total += tl.dot(odd, tl.trans(high.to(tl.bfloat16)))
    return total


@triton.jit(do_not_specialize=["count"])
def up_group_kernel(
    normed,
    order,
    counts,
    blocks,
    scales,
    bias,
    inner,
    count,
    hidden,
    intermediate,
    limit,
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_B: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Compute gate, up and SwiGLU of `count` grouped rows. Grid (strips of the intermediate, experts, row blocks)."""
    expert = tl.program_id(1)
    begin, end = tl.program_id(2) * BLOCK_M, tl.load(counts + expert)
    if begin < end:
        members = begin + tl.arange(0, BLOCK_M)
        alive = members < end
        pair = tl.load(order + expert * count + members, mask=alive, other=0)
        columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        strip = columns < intermediate
        first = expert.to(tl.int64) * 2 * intermediate
        rows = pair // CHOSEN
        gate = _group_product(
            normed, rows, alive, blocks, scales, first, 2 * columns, strip, hidden, BLOCK_M, BLOCK_N, BLOCK_B, WIDE
        )
        up = _group_product(
            normed, rows, alive, blocks, scales, first, 2 * columns + 1, strip, hidden, BLOCK_M, BLOCK_N, BLOCK_B, WIDE
        )
        gate += tl.load(bias + first + 2 * columns, mask=strip, other=0.0).to(tl.float32)[None, :]
        up += tl.load(bias + first + 2 * columns + 1, mask=strip, other=0.0).to(tl.float32)[None, :]
        target = inner + pair[:, None] * intermediate + columns[None, :]
        tl.store(target, _swiglu(gate, up, limit).to(inner.dtype.element_ty), mask=alive[:, None] & strip[None, :])


@triton.jit(do_not_specialize=["count"])
def down_group_kernel(
    inner,
    order,
    counts,
    shares,
    blocks,
    scales,
    bias,
    made,
    count,
    hidden,
    intermediate,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_B: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Compute made [row * CHOSEN + rank, hidden] f32, to be summed. Grid (output strips, experts, row blocks)."""
    expert = tl.program_id(1)
    begin, end = tl.program_id(2) * BLOCK_M, tl.load(counts + expert)
    if begin < end:
        members = begin + tl.arange(0, BLOCK_M)
        alive = members < end
        pair = tl.load(order + expert * count + members, mask=alive, other=0)
        columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        strip = columns < hidden
        first = expert.to(tl.int64) * hidden
        total = _group_product(
            inner, pair, alive, blocks, scales, first, columns, strip, intermediate, BLOCK_M, BLOCK_N, BLOCK_B, WIDE
        )
        total += tl.load(bias + first + columns, mask=strip, other=0.0).to(tl.float32)[None, :]
        total *= tl.load(shares + pair, mask=alive, other=0.0)[:, None]
        tl.store(made + pair[:, None] * hidden + columns[None, :], total, mask=alive[:, None] & strip[None, :])
