"""Sampling of restricted rows from kept logits, without a sort: the result is that of `sampler.redraw`.

The last token that top_k or top_p keeps is found by a search over the logits' bits, which have the same order as their
values. A pass divides what is left of their range in four, so there are 16 passes at most, whatever the distribution.
One program handles a row, whose logits stay in the L2 cache.
"""

import triton
import triton.language as tl

from .head import _gumbel


@triton.jit
def _keys(values):
    """Return int64 numbers in the order of the f32 values; equal values have equal numbers."""
    bits = tl.where(values == 0, 0.0, values).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.int64)


@triton.jit
def _load(left, width, start, BLOCK: tl.constexpr):  # noqa: N803
    tokens = start + tl.arange(0, BLOCK)
    return tl.load(left + tokens, mask=tokens < width, other=float("-inf"))


@triton.jit
def _mass(left, width, least, best, warm, COUNTED: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Return the sum of the shares, or the number, of values whose key is at least `least`; -inf is not counted."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        values = _load(left, width, start, BLOCK)
        share = tl.full([BLOCK], 1.0, tl.float32) if COUNTED else tl.exp((values - best) / warm)
        total += tl.where((_keys(values) >= least) & (values > float("-inf")), share, 0.0)
    return tl.sum(total, axis=0)


@triton.jit
def _masses(left, width, first, second, third, best, warm, COUNTED: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Return the `_mass` of three keys in one pass over the values. All keys fit in 32 bits."""
    first, second, third = first.to(tl.int32), second.to(tl.int32), third.to(tl.int32)
    one, two, three = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        values = _load(left, width, start, BLOCK)
        share = tl.full([BLOCK], 1.0, tl.float32) if COUNTED else tl.exp((values - best) / warm)
        share, keys = tl.where(values > float("-inf"), share, 0.0), _keys(values).to(tl.int32)
        one += tl.where(keys >= first, share, 0.0)
        two += tl.where(keys >= second, share, 0.0)
        three += tl.where(keys >= third, share, 0.0)
    return tl.sum(one, axis=0), tl.sum(two, axis=0), tl.sum(three, axis=0)


@triton.jit
def _cut(left, width, target, best, warm, COUNTED: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Keep the fewest values, highest first, whose mass is at least the target; the others become -inf."""
    top = tl.max(_keys(tl.full([1], best, tl.float32)), axis=0)
    low = top * 0 - 2139095041  # the key of -inf
    high = top
    while low < high:
        # The keys divide the range: the mass of a higher one is at most that of a lower one.
        span = high - low
        first, second, third = low + (span + 3) // 4, low + (2 * span + 3) // 4, low + (3 * span + 3) // 4
        one, two, three = _masses(left, width, first, second, third, best, warm, COUNTED, BLOCK)
        high = tl.where(one < target, first - 1, tl.where(two < target, second - 1, high))
        high = tl.where((two >= target) & (three < target), third - 1, high)
        low = tl.where(one >= target, first, low)
        low = tl.where(two >= target, second, low)
        low = tl.where(three >= target, third, low)
    share = 1.0
    if not COUNTED:
        bits = tl.where(low < 0, low ^ 0x7FFFFFFF, low).to(tl.int32)
        share = tl.exp((bits.to(tl.float32, bitcast=True) - best) / warm)
    above = _mass(left, width, low + 1, best, warm, COUNTED, BLOCK)
    spare = tl.maximum(tl.ceil((target - above) / share), 1.0)
    tied = above * 0
    for start in range(0, width, BLOCK):
        tokens = start + tl.arange(0, BLOCK)
        values = _load(left, width, start, BLOCK)
        ties = (_keys(values) == low).to(tl.float32)
        rank = tied + tl.cumsum(ties, axis=0)
        kept = (_keys(values) > low) | ((ties > 0) & (rank <= spare))
        tl.store(left + tokens, tl.where(kept, values, float("-inf")), mask=tokens < width)
        tied += tl.sum(ties, axis=0)
    tl.debug_barrier()


@triton.jit
def _restrict(left, width, best, warm, top_k, min_p, top_p, BLOCK: tl.constexpr):  # noqa: N803
    """Apply min_p, then top_k, then top_p to what is left."""
    everything = -2139095041  # the key of -inf, which `_mass` does not count
    if min_p > 0:
        floor = best + warm * tl.log(min_p)
        for start in range(0, width, BLOCK):
            candidates = start + tl.arange(0, BLOCK)
            values = _load(left, width, start, BLOCK)
            kept = (values >= floor) | (values == best)
            tl.store(left + candidates, tl.where(kept, values, float("-inf")), mask=candidates < width)
        tl.debug_barrier()
    if top_k > 0:
        remaining = _mass(left, width, everything, best, warm, True, BLOCK)
        _cut(left, width, tl.minimum(top_k.to(tl.float32), remaining), best, warm, True, BLOCK)
    if top_p < 1:
        total = _mass(left, width, everything, best, warm, False, BLOCK)
        _cut(left, width, top_p * total, best, warm, False, BLOCK)


# Arguments that change from step to step must not select another build of a kernel: it would compile in a request.
@triton.jit(do_not_specialize_on_alignment=["logits", "numbers", "fractions", "masks", "own_tokens", "own_values"])
def redraw_kernel(
    logits,
    left,
    tokens,
    temperatures,
    seeds,
    numbers,
    fractions,
    masks,
    adjustments,
    own_tokens,
    own_values,
    width,
    words,
    coldest,
    PARAMETERS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Sample the restricted rows again. Grid (restricted rows). `left` [restricted, width] is working memory."""
    numbers += tl.program_id(0) * PARAMETERS
    fractions += tl.program_id(0) * PARAMETERS
    left += tl.program_id(0).to(tl.int64) * width
    row, mask, top_k, entry = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2), tl.load(numbers + 3)
    min_p, top_p = tl.load(fractions + 4), tl.load(fractions + 5)
    first_own = tl.load(numbers + 6)
    past_own = first_own + tl.load(numbers + 7)
    temperature = tl.load(temperatures + row)
    warm = tl.maximum(temperature, coldest)
    highest = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, width, BLOCK):
        candidates = start + tl.arange(0, BLOCK)
        inside = candidates < width
        values = tl.load(logits + row.to(tl.int64) * width + candidates, mask=inside, other=float("-inf"))
        adjusted = tl.where(entry >= 0, candidates, width) < width
        added = tl.load(adjustments + entry.to(tl.int64) * width + candidates, mask=adjusted, other=0.0)
        for number in range(first_own, past_own):
            added = tl.where(candidates == tl.load(own_tokens + number), tl.load(own_values + number), added)
        values += added
        masked = tl.where(mask >= 0, candidates, width) < width
        word = tl.load(masks + mask.to(tl.int64) * words + candidates // 32, mask=masked, other=-1)
        allowed = ((word >> (candidates % 32)) & 1) != 0
        values = tl.where(allowed & (values == values), values, float("-inf"))
        tl.store(left + candidates, values, mask=inside)
        highest = tl.maximum(highest, values)
    tl.debug_barrier()
    best = tl.max(highest, axis=0)
    if (temperature > 0) & (best > float("-inf")):
        _restrict(left, width, best, warm, top_k, min_p, top_p, BLOCK)
    seed = tl.load(seeds + row + tl.arange(0, 1))
    highest = best * 0 + float("-inf")
    chosen = row * 0
    for start in range(0, width, BLOCK):
        candidates = start + tl.arange(0, BLOCK)
        values = _load(left, width, start, BLOCK)
        if temperature > 0:
            values = values / warm + tl.reshape(_gumbel(candidates, seed), [BLOCK])
        top, index = tl.max(values, axis=0, return_indices=True)
        chosen = tl.where(top > highest, start + index, chosen)
        highest = tl.maximum(highest, top)
    tl.store(tokens + row, chosen.to(tl.int64))
