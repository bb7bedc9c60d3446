"""The experts' projections, computed directly from MXFP4 weights.

For one row there is a program for each chosen expert, which selects the expert from the router's scores. Its product
fills one row of a tile: what counts is the time to read the weights. For more rows, a kernel groups them by expert
first.
"""

import triton
import triton.language as tl

from .decoding import SHRUNK, decoded
from .dependent import wait_for_previous
from .linear import columns_of_split


@triton.jit
def chosen_expert(scores, row, rank, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr):  # noqa: N803
    """Return the expert of that rank in a row, and its softmax weight among the top CHOSEN. Ties go to the first."""
    numbers = tl.arange(0, EXPERTS)
    left = tl.load(scores + row * EXPERTS + numbers)
    best = tl.max(left, axis=0)
    expert, mine, total = 0, 0.0, 0.0
    for choice in tl.static_range(CHOSEN):
        score, winner = tl.max(left, axis=0, return_indices=True)
        weight = tl.exp(score - best)
        total += weight
        expert = tl.where(choice == rank, winner, expert)
        mine = tl.where(choice == rank, weight, mine)
        left = tl.where(numbers == winner, float("-inf"), left)
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
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Group the rows by chosen expert, with the same choice as `chosen_expert`. Grid (experts).

    order [experts, count] begins with row * CHOSEN + rank of each expert's rows, counts [experts] is their number, and
    shares [rows, CHOSEN] f32 gets the expert's weight in each row.
    """
    expert = tl.program_id(0)
    numbers = tl.arange(0, EXPERTS)
    members = 0
    wait_for_previous(DEPENDENT)
    for start in range(0, count, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        alive = rows < count
        left = tl.load(scores + rows[:, None] * EXPERTS + numbers[None, :], mask=alive[:, None], other=0.0)
        best = tl.max(left, axis=1)
        rank = tl.full([BLOCK_M], CHOSEN, tl.int32)
        mine = tl.zeros([BLOCK_M], tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        for choice in tl.static_range(CHOSEN):
            score, winner = tl.max(left, axis=1, return_indices=True)
            weight = tl.exp(score - best)
            total += weight
            rank = tl.where(winner == expert, choice, rank)
            mine = tl.where(winner == expert, weight, mine)
            left = tl.where(numbers[None, :] == winner[:, None], float("-inf"), left)
        chose = alive & (rank < CHOSEN)
        pair = rows * CHOSEN + rank
        index = members + tl.cumsum(chose.to(tl.int32), axis=0) - 1
        tl.store(order + expert * count + index, pair, mask=chose)
        tl.store(shares + pair, mine / total, mask=chose)
        members += tl.sum(chose.to(tl.int32), axis=0)
    tl.store(counts + expert, members)


@triton.jit
def expert_product(
    x,
    sources,
    alive,
    packed,
    scales,
    first,
    outputs,
    strip,
    inputs,
    begin,
    end,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Multiply the rows `sources` of x by the matrix rows first + outputs: [BLOCK_M, BLOCK_N] in f32.

    Only the inputs from begin, a multiple of BLOCK_K, to end.

    The weights are the left operand of a transposed product, as tensor cores read only this one from registers.
    """
    total = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    row_words = tl.multiple_of(inputs // 8, 4)
    row_scales = 4 * tl.cdiv(inputs, 128)
    packed += first * row_words
    scales += first * row_scales
    for start in range(begin, end, BLOCK_K):
        columns = start + tl.arange(0, BLOCK_K)
        word_offsets = start // 8 + tl.arange(0, BLOCK_K // 8)
        groups = start // 32 + tl.arange(0, BLOCK_K // 32)
        words = tl.load(
            packed + outputs[:, None] * row_words + word_offsets[None, :],
            mask=strip[:, None] & (word_offsets < row_words)[None, :],
            other=0,
        )
        scale = tl.load(
            scales + outputs[:, None] * row_scales + groups[None, :],
            mask=strip[:, None] & (groups < row_scales)[None, :],
            other=0,
        )
        part = tl.load(
            x + sources[:, None] * inputs + columns[None, :],
            mask=alive[:, None] & (columns < inputs)[None, :],
            other=0.0,
        )
        weights = decoded(words, scale, BLOCK_N, BLOCK_K, WIDE)
        total = tl.dot(weights, tl.trans(part.to(weights.dtype)), total, input_precision="ieee")
    return tl.trans(total) * SHRUNK


@triton.jit
def swiglu(gate, up, limit):
    gate = tl.minimum(gate, limit)
    up = tl.minimum(tl.maximum(up, -limit), limit)
    return gate / (1.0 + tl.exp(gate * -1.702)) * (up + 1.0)


@triton.jit
def gate_and_up(
    x,
    sources,
    alive,
    pair,
    expert,
    packed,
    scales,
    bias,
    inner,
    hidden,
    intermediate,
    limit,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Compute inner [pair, strip of BLOCK_N / 2] for the rows `sources` of x. Rows 2n and 2n + 1 are gate and up."""
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = outputs < 2 * intermediate
    first = expert.to(tl.int64) * 2 * intermediate
    both = expert_product(
        x, sources, alive, packed, scales, first, outputs, strip, hidden, 0, hidden, BLOCK_M, BLOCK_N, BLOCK_K, WIDE
    )
    both += tl.load(bias + first + outputs, mask=strip, other=0.0).to(tl.float32)[None, :]
    gate, up = tl.split(tl.reshape(both, (BLOCK_M, BLOCK_N // 2, 2)))
    columns = tl.program_id(0) * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    target = inner + pair[:, None] * intermediate + columns[None, :]
    mask = alive[:, None] & (columns < intermediate)[None, :]
    tl.store(target, swiglu(gate, up, limit).to(inner.dtype.element_ty), mask=mask)


@triton.jit
def up_row_kernel(
    normed,
    scores,
    packed,
    scales,
    bias,
    inner,
    hidden,
    intermediate,
    limit,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute gate, up and SwiGLU. Grid (strips of the outputs, rows * CHOSEN). Only one row of a tile is used."""
    wait_for_previous(DEPENDENT)
    row, rank = tl.program_id(1) // CHOSEN, tl.program_id(1) % CHOSEN
    expert, _ = chosen_expert(scores, row, rank, EXPERTS, CHOSEN)
    member = tl.arange(0, BLOCK_M)
    gate_and_up(
        normed,
        row + member,
        member < 1,
        tl.program_id(1) + member,
        expert,
        packed,
        scales,
        bias,
        inner,
        hidden,
        intermediate,
        limit,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WIDE,
    )


@triton.jit
def _tile(counts, number, EXPERTS: tl.constexpr, BLOCK_M: tl.constexpr):  # noqa: N803
    """Return the expert of a tile of at most BLOCK_M of its rows, the first of them, and the one after the last.

    Tiles are numbered expert by expert, so that those that read the same weights are next to each other. The ones
    behind the last have no rows.
    """
    experts = tl.arange(0, EXPERTS)
    rows = tl.load(counts + experts)
    tiles = tl.cdiv(rows, BLOCK_M)
    ends = tl.cumsum(tiles, axis=0)
    expert = tl.minimum(tl.sum((ends <= number).to(tl.int32), axis=0), EXPERTS - 1)
    first = tl.sum(tl.where(experts == expert, ends - tiles, 0), axis=0)
    return expert, (number - first) * BLOCK_M, tl.load(counts + expert)


@triton.jit
def _members(order, begin, end, BLOCK_M: tl.constexpr):  # noqa: N803
    """Return the pairs [BLOCK_M] from `begin` on of an expert's `order`, and whether each is before `end`."""
    members = begin + tl.arange(0, BLOCK_M)
    alive = members < end
    return tl.load(order + members, mask=alive, other=0), alive


@triton.jit(do_not_specialize=["count"])
def up_group_kernel(
    normed,
    order,
    counts,
    packed,
    scales,
    bias,
    inner,
    count,
    hidden,
    intermediate,
    limit,
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute gate, up and SwiGLU of `count` grouped rows. Grid (strips of the outputs, tiles)."""
    wait_for_previous(DEPENDENT)
    expert, begin, end = _tile(counts, tl.program_id(1), EXPERTS, BLOCK_M)
    if begin < end:
        pair, alive = _members(order + expert * count, begin, end, BLOCK_M)
        gate_and_up(
            normed,
            pair // CHOSEN,
            alive,
            pair,
            expert,
            packed,
            scales,
            bias,
            inner,
            hidden,
            intermediate,
            limit,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            WIDE,
        )


@triton.jit
def down_product(
    inner,
    pair,
    alive,
    share,
    expert,
    packed,
    scales,
    bias,
    parts,
    hidden,
    intermediate,
    split,
    SPLITS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
):
    """Compute parts [pair, split, strip of BLOCK_N] f32: an expert's output for its rows, times the expert's weight.

    It is the sum of the splits, each of which has a part of the inputs.
    """
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = outputs < hidden
    first = expert.to(tl.int64) * hidden
    begin, end = columns_of_split(intermediate, split, SPLITS, BLOCK_K)
    total = expert_product(
        inner,
        pair,
        alive,
        packed,
        scales,
        first,
        outputs,
        strip,
        intermediate,
        begin,
        end,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WIDE,
    )
    offset = tl.load(bias + first + outputs, mask=strip, other=0.0).to(tl.float32)
    total += tl.where(split == 0, offset, 0.0)[None, :]
    target = parts + (pair * SPLITS + split)[:, None] * hidden + outputs[None, :]
    tl.store(target, total * share, mask=alive[:, None] & strip[None, :])


@triton.jit
def down_row_kernel(
    inner,
    scores,
    packed,
    scales,
    bias,
    parts,
    hidden,
    intermediate,
    SPLITS: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute parts [row * CHOSEN + rank, SPLITS, hidden] f32. Grid (strips of the output, rows * CHOSEN, SPLITS)."""
    wait_for_previous(DEPENDENT)
    row, rank = tl.program_id(1) // CHOSEN, tl.program_id(1) % CHOSEN
    expert, share = chosen_expert(scores, row, rank, EXPERTS, CHOSEN)
    member = tl.arange(0, BLOCK_M)
    down_product(
        inner,
        tl.program_id(1) + member,
        member < 1,
        share,
        expert,
        packed,
        scales,
        bias,
        parts,
        hidden,
        intermediate,
        tl.program_id(2),
        SPLITS,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WIDE,
    )


@triton.jit(do_not_specialize=["count"])
def down_group_kernel(
    inner,
    order,
    counts,
    shares,
    packed,
    scales,
    bias,
    parts,
    count,
    hidden,
    intermediate,
    EXPERTS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute parts [row * CHOSEN + rank, hidden] f32 of grouped rows. Grid (strips of the output, tiles)."""
    wait_for_previous(DEPENDENT)
    expert, begin, end = _tile(counts, tl.program_id(1), EXPERTS, BLOCK_M)
    if begin < end:
        pair, alive = _members(order + expert * count, begin, end, BLOCK_M)
        share = tl.load(shares + pair, mask=alive, other=0.0)[:, None]
        down_product(
            inner,
            pair,
            alive,
            share,
            expert,
            packed,
            scales,
            bias,
            parts,
            hidden,
            intermediate,
            0,
            1,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            WIDE,
        )
