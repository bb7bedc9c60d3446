"""Attention over the paged KV cache, with sinks and windows: split by keys for decode, by queries for prefill."""

import triton
import triton.language as tl

from .dependent import wait_for_previous
from .linear import product


@triton.jit
def _blocks_of_split(
    begin,
    end,
    length,
    query_block,
    split,
    WINDOW: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_Q: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
):
    """Return the first KV block that a split of a query block reads, and the one after the last."""
    last = tl.minimum(length, length - (end - begin) + (query_block + 1) * BLOCK_Q)  # keys that any of the rows sees
    first_block = 0
    if WINDOW > 0:
        first_block = tl.maximum(0, length - (end - begin) + query_block * BLOCK_Q - WINDOW + 1) // BLOCK_TOKENS
    # A query block past the sequence's end reads no keys.
    past_block = tl.where(begin + query_block * BLOCK_Q < end, (last + BLOCK_TOKENS - 1) // BLOCK_TOKENS, first_block)
    per_split = (past_block - first_block + SPLITS - 1) // SPLITS
    from_block = first_block + split * per_split
    return from_block, tl.minimum(from_block + per_split, past_block)


@triton.jit
def add_block(scores, v, highest, weights, total, WIDE: tl.constexpr):  # noqa: N803
    """Add a KV block's values to the weighted sum, as Flash-Attention does; return highest, weights and total.

    The weights are those of the softmax, divided by exp(highest), so that they do not overflow.
    """
    now = tl.maximum(highest, tl.max(scores, axis=1))
    safe = tl.where(now == float("-inf"), 0.0, now)
    shrink = tl.exp(highest - safe)
    shares = tl.exp(scores - safe[:, None])
    weights = weights * shrink + tl.sum(shares, axis=1)
    if WIDE:  # noqa: SIM108 -- resolved at compile time
        added = tl.dot(shares, v.to(tl.float32), input_precision="ieee")
    else:
        added = tl.dot(shares.to(v.dtype), v)
    return now, weights, total * shrink[:, None] + added


@triton.jit
def with_sink(highest, weights, total, sink):
    """Return the weighted mean of the values; the sink is a score without a value."""
    top = tl.maximum(highest, sink)
    shrink = tl.exp(highest - top)
    return total * (shrink / (weights * shrink + tl.exp(sink - top)))[:, None]


# Arguments that change from step to step must not select another build of a kernel: it would compile in a request.
@triton.jit(do_not_specialize=["first_sequence"], do_not_specialize_on_alignment=["starts", "lengths", "entries"])
def attention_kernel(
    queries,
    keys,
    values,
    sinks,
    tables,
    starts,
    lengths,
    entries,
    mixed,
    partial,
    first_sequence,
    widest,
    softmax_scale,
    WINDOW: tl.constexpr,  # noqa: N803
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    KV_HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    BLOCK_Q: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Run on the grid (sequences from first_sequence on, KV heads, query blocks * SPLITS).

    A program's rows are BLOCK_Q queries of the heads that share a KV head, padded to BLOCK_M. With one split it writes
    the result. Otherwise each split writes to `partial` [rows, heads, SPLITS, SIZE + 2] (weighted sum, highest score,
    sum of weights), to be merged as in Flash-Decoding. WINDOW 0 sees all keys.
    """
    wait_for_previous(DEPENDENT)
    GROUP: tl.constexpr = QUERY_HEADS // KV_HEADS  # noqa: N806
    sequence, kv_head = first_sequence + tl.program_id(0), tl.program_id(1)
    query_block, split = tl.program_id(2) // SPLITS, tl.program_id(2) % SPLITS
    begin, end = tl.load(starts + sequence), tl.load(starts + sequence + 1)
    length = tl.load(lengths + sequence)
    table = tables + tl.load(entries + sequence) * widest
    member = tl.arange(0, BLOCK_M)
    row = begin + query_block * BLOCK_Q + member // GROUP
    head = kv_head * GROUP + member % GROUP
    alive = (row < end) & (member < BLOCK_Q * GROUP)
    position = length - (end - row)  # index of the query among the keys
    dims = tl.arange(0, SIZE)
    q = tl.load(queries + (row * QUERY_HEADS + head)[:, None] * SIZE + dims[None, :], mask=alive[:, None], other=0.0)

    from_block, to_block = _blocks_of_split(
        begin, end, length, query_block, split, WINDOW, BLOCK_TOKENS, BLOCK_Q, SPLITS
    )
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    weights = tl.zeros([BLOCK_M], tl.float32)
    total = tl.zeros([BLOCK_M, SIZE], tl.float32)
    for number in range(from_block, to_block):
        block = tl.load(table + number).to(tl.int64)
        offsets = tl.arange(0, BLOCK_TOKENS)
        key_positions = number * BLOCK_TOKENS + offsets
        addresses = ((block * BLOCK_TOKENS + offsets) * KV_HEADS + kv_head)[:, None] * SIZE + dims[None, :]
        written = (key_positions < length)[:, None]
        k = tl.load(keys + addresses, mask=written, other=0.0).to(queries.dtype.element_ty)
        v = tl.load(values + addresses, mask=written, other=0.0).to(queries.dtype.element_ty)
        seen = (key_positions[None, :] <= position[:, None]) & alive[:, None]
        if WINDOW > 0:
            seen = seen & (key_positions[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, product(q, k, WIDE) * softmax_scale, float("-inf"))
        highest, weights, total = add_block(scores, v, highest, weights, total, WIDE)

    if SPLITS == 1:
        sink = tl.load(sinks + head, mask=alive, other=0.0).to(tl.float32)
        result = with_sink(highest, weights, total, sink)
        target = mixed + (row * QUERY_HEADS + head)[:, None] * SIZE + dims[None, :]
        tl.store(target, result.to(mixed.dtype.element_ty), mask=alive[:, None])
    else:
        base = partial + ((row * QUERY_HEADS + head) * SPLITS + split) * (SIZE + 2)
        tl.store(base[:, None] + dims[None, :], total, mask=alive[:, None])
        tl.store(base + SIZE, highest, mask=alive)
        tl.store(base + SIZE + 1, weights, mask=alive)


@triton.jit
def merge_kernel(
    partial,
    sinks,
    mixed,
    QUERY_HEADS: tl.constexpr,  # noqa: N803
    SIZE: tl.constexpr,  # noqa: N803
    SPLITS: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Merge the results of the splits, and the sink. Grid (rows, query heads)."""
    row, head = tl.program_id(0), tl.program_id(1)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, SIZE)
    base = partial + ((row * QUERY_HEADS + head) * SPLITS + splits) * (SIZE + 2)
    sink = tl.load(sinks + head).to(tl.float32)
    wait_for_previous(DEPENDENT)
    highest = tl.load(base + SIZE)
    weights = tl.load(base + SIZE + 1)
    top = tl.maximum(tl.max(highest, axis=0), sink)
    shrink = tl.exp(highest - top)
    parts = tl.load(base[:, None] + dims[None, :])
    total = tl.sum(parts * shrink[:, None], axis=0)
    weight = tl.sum(weights * shrink, axis=0) + tl.exp(sink - top)
    target = mixed + (row * QUERY_HEADS + head) * SIZE + dims
    tl.store(target, (total / weight).to(mixed.dtype.element_ty))
