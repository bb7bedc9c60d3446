"""Sampling of restricted rows from kept logits, without a sort: the result is that of `sampler.redraw`.

The first three kernels have a program for each part of a row: `adjust_kernel` adds penalties and biases and applies
masks, `weigh_kernel` sums what is above each of some bounds, and `gather_kernel` copies the tokens above the highest
bound that leaves all that top_k or top_p keep. `redraw_kernel` has a program for each row, and reads what was copied.

There, the last token that top_k or top_p keeps is found by a search over the logits' bits, which have the same order as
their values. A pass divides what is left of their range in four, so there are 16 passes at most, whatever the
distribution.
"""

import triton
import triton.language as tl

from .head import _gumbel

BOUNDS = tl.constexpr(32)  # of the values of a row: the distances from the highest one grow by the root of two
TOGETHER = tl.constexpr(8)  # of them are compared with a part at a time
NEAREST = tl.constexpr(-3.0)  # binary logarithm of the smallest distance, in units of the temperature


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
def _highest(maxima, parts, PARTS: tl.constexpr):  # noqa: N803
    """Return the highest value of a row from those of its parts."""
    places = tl.arange(0, PARTS)
    return tl.max(tl.load(maxima + places, mask=places < parts, other=float("-inf")), axis=0)


@triton.jit
def _admitted(left, width, best, warm, min_p, start, BLOCK: tl.constexpr):  # noqa: N803
    """Return values of a row; those that min_p does not keep are -inf."""
    floor = tl.where(min_p > 0, best + warm * tl.log(tl.maximum(min_p, 1e-30)), float("-inf"))
    values = _load(left, width, start, BLOCK)
    return tl.where((values >= floor) | (values == best), values, float("-inf"))


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


# Arguments that change from step to step must not select another build of a kernel: it would compile in a request.
@triton.jit(do_not_specialize_on_alignment=["logits", "numbers", "masks", "own_tokens", "own_values"])
def adjust_kernel(
    logits,
    left,
    maxima,
    numbers,
    masks,
    adjustments,
    own_tokens,
    own_values,
    width,
    words,
    PARAMETERS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write the adjusted, masked logits to `left` [restricted, width]. Grid (restricted rows, parts of BLOCK tokens).

    maxima [restricted, parts]: the highest value of each part.
    """
    numbers += tl.program_id(0) * PARAMETERS
    row, mask, entry = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 3)
    first_own = tl.load(numbers + 6)
    past_own = first_own + tl.load(numbers + 7)
    candidates = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
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
    values = tl.minimum(values, 3.4028234663852886e38)  # the shares of infinite values are NaN: no search would end
    tl.store(left + tl.program_id(0).to(tl.int64) * width + candidates, values, mask=inside)
    tl.store(maxima + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.max(values, axis=0))


@triton.jit(do_not_specialize_on_alignment=["numbers", "fractions"])
def weigh_kernel(
    left,
    maxima,
    counts,
    masses,
    bounds,
    temperatures,
    numbers,
    fractions,
    width,
    coldest,
    PARAMETERS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Count and sum what of a part is above each of the bounds [restricted, BOUNDS], of which the first is -inf.

    Grid (restricted rows, parts). counts, masses [restricted, parts, BOUNDS].
    """
    index, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    best = _highest(maxima + index * parts, parts, PARTS)
    best = tl.where(best > float("-inf"), best, 0.0)
    warm = tl.maximum(tl.load(temperatures + tl.load(numbers + index * PARAMETERS)), coldest)
    min_p = tl.load(fractions + index * PARAMETERS + 4)
    values = _admitted(left + index.to(tl.int64) * width, width, best, warm, min_p, part * BLOCK, BLOCK)
    shares = tl.exp((values - best) / warm)
    for first in range(0, BOUNDS, TOGETHER):
        number = first + tl.arange(0, TOGETHER)
        distance = tl.exp2(number.to(tl.float32) * -0.5 + ((BOUNDS - 1) * 0.5 + NEAREST))
        bound = tl.where(number == 0, float("-inf"), best - warm * distance)
        above = (values[None, :] >= bound[:, None]) & (values > float("-inf"))[None, :]
        places = (index * parts + part) * BOUNDS + number
        tl.store(counts + places, tl.sum(above.to(tl.int32), axis=1))
        tl.store(masses + places, tl.sum(tl.where(above, shares[None, :], 0.0), axis=1))
        if part == 0:
            tl.store(bounds + index * BOUNDS + number, bound)


@triton.jit(do_not_specialize_on_alignment=["numbers", "fractions"])
def gather_kernel(
    left,
    maxima,
    counts,
    masses,
    bounds,
    temperatures,
    numbers,
    fractions,
    kept,
    kept_tokens,
    sizes,
    totals,
    width,
    coldest,
    PARAMETERS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Copy the values and tokens above a bound, in their order, to the front of `kept` and `kept_tokens`.

    Grid (restricted rows, parts). sizes, totals [restricted]: how many these are, and the mass of the whole row.
    """
    index, part, parts = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    temperature = tl.load(temperatures + tl.load(numbers + index * PARAMETERS))
    top_k = tl.where(temperature > 0, tl.load(numbers + index * PARAMETERS + 2), 1)
    min_p, top_p = tl.load(fractions + index * PARAMETERS + 4), tl.load(fractions + index * PARAMETERS + 5)
    number, others = tl.arange(0, BOUNDS), tl.arange(0, PARTS)
    places = (index * parts + others[:, None]) * BOUNDS + number[None, :]
    counted = tl.load(counts + places, mask=(others < parts)[:, None], other=0)
    mass = tl.sum(tl.load(masses + places, mask=(others < parts)[:, None], other=0.0), axis=0)
    count = tl.sum(counted, axis=0)
    total = tl.sum(tl.where(number == 0, mass, 0.0), axis=0)
    wanted = tl.minimum(top_k, tl.sum(tl.where(number == 0, count, 0), axis=0))
    by_mass = tl.where(mass >= tl.where(top_p < 1, top_p * total, float("inf")), number, 0)
    chosen = tl.max(tl.where(top_k > 0, tl.where(count >= wanted, number, 0), by_mass), axis=0)
    of_chosen = tl.where(number[None, :] == chosen, counted, 0)
    before = tl.sum(tl.sum(tl.where((others < part)[:, None], of_chosen, 0), axis=1), axis=0)
    best, warm = _highest(maxima + index * parts, parts, PARTS), tl.maximum(temperature, coldest)
    values = _admitted(left + index.to(tl.int64) * width, width, best, warm, min_p, part * BLOCK, BLOCK)
    above = (values >= tl.load(bounds + index * BOUNDS + chosen)) & (values > float("-inf"))
    spots = index.to(tl.int64) * width + before + tl.cumsum(above.to(tl.int32), axis=0) - 1
    tl.store(kept + spots, values, mask=above)
    tl.store(kept_tokens + spots, part * BLOCK + tl.arange(0, BLOCK), mask=above)
    if part == 0:
        tl.store(sizes + index, tl.sum(tl.sum(of_chosen, axis=1), axis=0))
        tl.store(totals + index, total)


@triton.jit(do_not_specialize_on_alignment=["numbers", "fractions"])
def redraw_kernel(
    kept,
    kept_tokens,
    sizes,
    totals,
    maxima,
    tokens,
    temperatures,
    seeds,
    numbers,
    fractions,
    width,
    part_count,
    coldest,
    PARAMETERS: tl.constexpr,  # noqa: N803
    PARTS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Apply top_k, then top_p, to what was copied of a row, and sample. Grid (restricted rows)."""
    index = tl.program_id(0)
    kept += index.to(tl.int64) * width
    kept_tokens += index.to(tl.int64) * width
    row, top_k = tl.load(numbers + index * PARAMETERS), tl.load(numbers + index * PARAMETERS + 2)
    top_p = tl.load(fractions + index * PARAMETERS + 5)
    temperature, size, total = tl.load(temperatures + row), tl.load(sizes + index), tl.load(totals + index)
    best, warm = _highest(maxima + index * part_count, part_count, PARTS), tl.maximum(temperature, coldest)
    if (temperature > 0) & (size > 0):
        if top_k > 0:
            _cut(kept, size, tl.minimum(top_k, size).to(tl.float32), best, warm, True, BLOCK)
            total = _mass(kept, size, -2139095041, best, warm, False, BLOCK)  # above the key of -inf
        if top_p < 1:
            _cut(kept, size, top_p * total, best, warm, False, BLOCK)
    seed = tl.load(seeds + row + tl.arange(0, 1))
    highest = best * 0 + float("-inf")
    drawn = row * 0
    for start in range(0, size, BLOCK):
        values = _load(kept, size, start, BLOCK)
        if temperature > 0:
            candidates = tl.load(
                kept_tokens + start + tl.arange(0, BLOCK), mask=start + tl.arange(0, BLOCK) < size, other=0
            )
            values = values / warm + tl.reshape(_gumbel(candidates, seed), [BLOCK])
        top, place = tl.max(values, axis=0, return_indices=True)
        drawn = tl.where(top > highest, tl.load(kept_tokens + start + place), drawn)
        highest = tl.maximum(highest, top)
    tl.store(tokens + row, drawn.to(tl.int64))
