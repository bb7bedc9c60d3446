"""Other kernels for a decode step of one row, which the engine may take over once a GPU has shown that they are faster.

They compute what those of the engine compute. Each changes one of these:

- `read_ahead` asks the L2 cache for weights that a later kernel reads, while memory is idle.
- A kernel that adds split products also norms their sum, which saves a launch.
- The experts of a row are ranked by comparisons of all pairs, not by one maximum after another.
- The first projection of the experts splits its inputs, so that more warps run on a multiprocessor.
- Attention in a window reads all its keys in one iteration.
"""

import triton
import triton.language as tl

from llama_stack_gpt_oss.engine.kernels.attention import add_block, with_sink
from llama_stack_gpt_oss.engine.kernels.decoding import INTERPRETED
from llama_stack_gpt_oss.engine.kernels.dependent import wait_for_previous
from llama_stack_gpt_oss.engine.kernels.experts import chosen_expert, down_product, expert_product, gate_and_up, swiglu
from llama_stack_gpt_oss.engine.kernels.linear import columns_of_split, product, rotate_kernel

# $1: an address, $2: the number of bytes from there on, a multiple of 16, or 0 for none.
PREFETCH = tl.constexpr(
    """{
    .reg .pred some;
    setp.ne.b32 some, $2, 0;
    @some cp.async.bulk.prefetch.L2.global [$1], $2;
    mov.b32 $0, $2;
    }"""
)


@triton.jit
def read_ahead(weights, size, program, programs, LANES: tl.constexpr, WARPS: tl.constexpr):  # noqa: N803
    """Ask the L2 cache for `size` bytes of weights, in equal parts for LANES lanes of each warp of all programs.

    size: a multiple of 16. It needs compute capability 9.0, and does nothing in Triton's interpreter.
    """
    if not INTERPRETED:
        threads = tl.arange(0, 32 * WARPS)
        part = tl.cdiv(tl.cdiv(size, 16), programs * LANES * WARPS) * 16
        begin = ((program * WARPS + threads // 32) * LANES + threads % 32) * part
        count = tl.where(threads % 32 < LANES, tl.minimum(tl.maximum(size - begin, 0), part), 0)
        addresses = weights.to(tl.pointer_type(tl.uint8), bitcast=True) + begin
        tl.inline_asm_elementwise(
            PREFETCH, "=r,l,r", [addresses.to(tl.int64), count], dtype=tl.int32, is_pure=False, pack=1
        )


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def rotate_ahead_kernel(
    projected_rows,
    bias,
    cos,
    sin,
    positions,
    slots,
    queries,
    keys,
    values,
    following,
    size,
    count,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Do what `rotate_kernel` does, and read the first `size` bytes of the weights `following` ahead. One warp."""
    read_ahead(following, size, tl.program_id(0), tl.num_programs(0), LANES=32, WARPS=1)
    rotate_kernel(
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
        QUERY_HEADS,
        KV_HEADS,
        HALF,
        BLOCK_M,
        DEPENDENT,
    )


@triton.jit
def _summed(x, parts, row, columns, inside, hidden, PARTS: tl.constexpr):  # noqa: N803
    """Return the sum of a row of the residual and of its parts, in f32, in the order of `sum_kernel`."""
    total = tl.zeros([columns.shape[0]], tl.float32)
    for part in tl.static_range(PARTS):
        total += tl.load(parts + (row * PARTS + part) * hidden + columns, mask=inside, other=0.0)
    return total + tl.load(x + row * hidden + columns, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _normed(values, gain, hidden, epsilon):
    return values * tl.rsqrt(tl.sum(values * values, axis=0) / hidden + epsilon) * gain


@triton.jit
def sum_norm_kernel(
    x,
    parts,
    norm,
    out,
    normed,
    hidden,
    epsilon,
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the sums of the residual and the parts [rows, PARTS, hidden], and the normed sums. Grid (rows)."""
    row, columns = tl.program_id(0), tl.arange(0, BLOCK)
    inside = columns < hidden
    gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    wait_for_previous(DEPENDENT)
    made = _summed(x, parts, row, columns, inside, hidden, PARTS).to(out.dtype.element_ty)
    tl.store(out + row * hidden + columns, made, mask=inside)
    values = _normed(made.to(tl.float32), gain, hidden, epsilon)
    tl.store(normed + row * hidden + columns, values.to(normed.dtype.element_ty), mask=inside)


@triton.jit
def sum_route_kernel(
    x,
    parts,
    norm,
    weight,
    bias,
    out,
    scores,
    normed,
    hidden,
    width,
    epsilon,
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the sums, the normed sums and their scores [rows, width] in f32. Grid (experts, rows)."""
    expert, row, columns = tl.program_id(0), tl.program_id(1), tl.arange(0, BLOCK)
    inside = columns < hidden
    gain = tl.load(norm + columns, mask=inside, other=0.0).to(tl.float32)
    weights = tl.load(weight + expert * hidden + columns, mask=inside, other=0.0).to(tl.float32)
    offset = tl.load(bias + expert).to(tl.float32)
    wait_for_previous(DEPENDENT)
    total = _summed(x, parts, row, columns, inside, hidden, PARTS).to(out.dtype.element_ty)
    made = _normed(total.to(tl.float32), gain, hidden, epsilon).to(normed.dtype.element_ty)
    if expert == 0:
        tl.store(out + row * hidden + columns, total, mask=inside)
        tl.store(normed + row * hidden + columns, made, mask=inside)
    tl.store(scores + row * width + expert, tl.sum(made.to(tl.float32) * weights, axis=0) + offset)


@triton.jit
def _ranked(scores, row, rank, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr):  # noqa: N803
    """Return what `chosen_expert` does. An expert's rank is the number of better ones; NaN is the worst score."""
    numbers = tl.arange(0, EXPERTS)
    loaded, others = tl.load(scores + row * EXPERTS + numbers)[:, None], numbers[None, :]
    beside = tl.load(scores + row * EXPERTS + others)
    mine = tl.where(loaded == loaded, loaded, float("-inf"))
    other = tl.where(beside == beside, beside, float("-inf"))
    better = (other > mine) | ((other == mine) & (others < numbers[:, None]))
    ranks = tl.sum(better.to(tl.int32), axis=1)
    own = tl.sum(mine, axis=1)
    weights = tl.where(ranks < CHOSEN, tl.exp(own - tl.max(own, axis=0)), 0.0)
    expert = tl.sum(tl.where(ranks == rank, numbers, 0), axis=0)
    return expert, tl.sum(tl.where(ranks == rank, weights, 0.0), axis=0) / tl.sum(weights, axis=0)


@triton.jit
def _selected(scores, row, rank, EXPERTS: tl.constexpr, CHOSEN: tl.constexpr, RANKED: tl.constexpr):  # noqa: N803
    if RANKED:
        expert, share = _ranked(scores, row, rank, EXPERTS, CHOSEN)
    else:
        expert, share = chosen_expert(scores, row, rank, EXPERTS, CHOSEN)
    return expert, share


@triton.jit
def up_kernel(
    normed,
    scores,
    packed,
    scales,
    bias,
    inner,
    partial,
    arrived,
    following,
    size,
    hidden,
    intermediate,
    limit,
    SPLITS: tl.constexpr,  # noqa: N803
    RANKED: tl.constexpr,  # noqa: N803
    AHEAD: tl.constexpr,  # noqa: N803
    WARPS: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Compute gate, up and SwiGLU of one row. Grid (strips of the outputs, CHOSEN, SPLITS).

    With several splits, each writes its sums to `partial` [CHOSEN, SPLITS, 2 * intermediate] f32, and the last one to
    arrive adds them in their order. arrived [CHOSEN, strips] int32 counts the splits, is 0 before, and 0 after.
    AHEAD: read the same expert ahead in `following`, which has `size` bytes for each expert.
    """
    wait_for_previous(DEPENDENT)
    strip_number, rank, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    expert, _ = _selected(scores, 0, rank, EXPERTS, CHOSEN, RANKED)
    strips = tl.num_programs(0)
    if AHEAD:
        read_ahead(
            following + expert.to(tl.int64) * (size // 4),
            size,
            split * strips + strip_number,
            strips * SPLITS,
            LANES=4,
            WARPS=WARPS,
        )
    member = tl.arange(0, BLOCK_M)
    if SPLITS == 1:
        gate_and_up(
            normed,
            member,
            member < 1,
            rank + member,
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
    else:
        outputs = strip_number * BLOCK_N + tl.arange(0, BLOCK_N)
        strip = outputs < 2 * intermediate
        first = expert.to(tl.int64) * 2 * intermediate
        begin, end = columns_of_split(hidden, split, SPLITS, BLOCK_K)
        total = expert_product(
            normed,
            member,
            member < 1,
            packed,
            scales,
            first,
            outputs,
            strip,
            hidden,
            begin,
            end,
            BLOCK_M,
            BLOCK_N,
            BLOCK_K,
            WIDE,
        )
        sums = partial + rank * SPLITS * 2 * intermediate
        target = sums + (split + member[:, None]) * 2 * intermediate + outputs[None, :]
        tl.store(target, total, mask=(member < 1)[:, None] & strip[None, :])
        tl.debug_barrier()
        counter = arrived + rank * strips + strip_number
        if tl.atomic_add(counter, 1, sem="acq_rel") == SPLITS - 1:
            both = tl.load(bias + first + outputs, mask=strip, other=0.0).to(tl.float32)
            for number in tl.static_range(SPLITS):
                part = sums + number * 2 * intermediate + outputs
                both += tl.load(part, mask=strip, other=0.0, cache_modifier=".cg")
            gate, up = tl.split(tl.reshape(both, (BLOCK_N // 2, 2)))
            columns = strip_number * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
            made = swiglu(gate, up, limit).to(inner.dtype.element_ty)
            tl.store(inner + rank * intermediate + columns, made, mask=columns < intermediate)
            tl.store(counter, 0)


@triton.jit
def down_kernel(
    inner,
    scores,
    packed,
    scales,
    bias,
    parts,
    following,
    size,
    hidden,
    intermediate,
    RANKED: tl.constexpr,  # noqa: N803
    AHEAD: tl.constexpr,  # noqa: N803
    WARPS: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    EXPERTS: tl.constexpr,  # noqa: N803
    CHOSEN: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Do what `down_row_kernel` does for one row. AHEAD: read the first `size` bytes of the weights `following`."""
    rank, split = tl.program_id(1), tl.program_id(2)
    if AHEAD:
        strips = tl.num_programs(0)
        number = (rank * SPLITS + split) * strips + tl.program_id(0)
        read_ahead(following, size, number, strips * CHOSEN * SPLITS, LANES=4, WARPS=WARPS)
    wait_for_previous(DEPENDENT)
    expert, share = _selected(scores, 0, rank, EXPERTS, CHOSEN, RANKED)
    member = tl.arange(0, BLOCK_M)
    down_product(
        inner,
        rank + member,
        member < 1,
        share,
        expert,
        packed,
        scales,
        bias,
        parts,
        hidden,
        intermediate,
        split,
        SPLITS,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
        WIDE,
    )


@triton.jit(do_not_specialize_on_alignment=["starts", "lengths", "entries"])
def window_kernel(
    queries,
    keys,
    values,
    sinks,
    tables,
    starts,
    lengths,
    entries,
    mixed,
    widest,
    softmax_scale,
    WINDOW: tl.constexpr,  # noqa: N803
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Attend to the last WINDOW keys of decodes of one row each. Grid (sequences, KV heads)."""
    wait_for_previous(DEPENDENT)
    GROUP: tl.constexpr = QUERY_HEADS // KV_HEADS  # noqa: N806
    sequence, kv_head = tl.program_id(0), tl.program_id(1)
    row, past, length = tl.load(starts + sequence), tl.load(starts + sequence + 1), tl.load(lengths + sequence)
    places = tl.maximum(0, length - WINDOW) + tl.arange(0, WINDOW)
    some = row < past  # otherwise the sequence is the padding of a step
    seen = places < tl.where(some, length, 0)
    table = tables + tl.load(entries + sequence) * widest
    blocks = tl.load(table + places // BLOCK_TOKENS, mask=seen, other=0).to(tl.int64)
    member, dims = tl.arange(0, BLOCK_M), tl.arange(0, SIZE)
    alive, head = member < tl.where(some, GROUP, 0), kv_head * GROUP + member
    q = tl.load(queries + (row * QUERY_HEADS + head)[:, None] * SIZE + dims[None, :], mask=alive[:, None], other=0.0)
    slots = blocks * BLOCK_TOKENS + places % BLOCK_TOKENS
    addresses = (slots * KV_HEADS + kv_head)[:, None] * SIZE + dims[None, :]
    k = tl.load(keys + addresses, mask=seen[:, None], other=0.0).to(queries.dtype.element_ty)
    v = tl.load(values + addresses, mask=seen[:, None], other=0.0).to(queries.dtype.element_ty)
    scores = tl.where(seen[None, :] & alive[:, None], product(q, k, WIDE) * softmax_scale, float("-inf"))
    nothing = tl.zeros([BLOCK_M], tl.float32)
    highest, weights, total = add_block(
        scores, v, nothing - float("inf"), nothing, tl.zeros([BLOCK_M, SIZE], tl.float32), WIDE
    )
    sink = tl.load(sinks + head, mask=alive, other=0.0).to(tl.float32)
    target = mixed + (row * QUERY_HEADS + head)[:, None] * SIZE + dims[None, :]
    result = with_sink(highest, weights, total, sink)
    tl.store(target, result.to(mixed.dtype.element_ty), mask=alive[:, None])
