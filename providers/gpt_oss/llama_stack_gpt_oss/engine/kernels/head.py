"""The end of a step: logits and sampling in one pass over the unembedding.

Each program keeps the best token of its strip; a second kernel picks the best strip, the first of ties. The sampling
noise is computed together with the logit, from the row's seed and the token id alone: the same random bits as in
`sampler.gumbel`.
"""

import triton
import triton.language as tl

from .dependent import wait_for_previous
from .linear import projected


@triton.jit
def _mix(x):
    """Compute `sampler.mix` on uint32, with wrapping products."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _gumbel(tokens, seeds):
    """Compute `sampler.gumbel` [seeds, tokens]."""
    bits = _mix(_mix(tokens.to(tl.uint32))[None, :] ^ seeds.to(tl.uint32)[:, None])
    share = tl.minimum(tl.maximum(bits.to(tl.float32) * 2.0**-32, 2.0**-33), 1.0 - 2.0**-24)
    near = share * (1.0 + share * (1.0 / 2 + share * (1.0 / 3 + share / 4)))
    return -tl.log(tl.where(share < 1.0 / 32, near, -tl.log(1.0 - share)))


@triton.jit(do_not_specialize=["count", "first_token"])
def head_kernel(
    normed,
    weight,
    temperatures,
    seeds,
    logits,
    best_scores,
    best_tokens,
    count,
    first_token,
    hidden,
    width,
    coldest,
    KEEP: tl.constexpr,  # noqa: N803
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
    WIDE: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Write the best token of each normed row and strip, [rows, strips]. Grid (strips of the vocabulary, row blocks).

    first_token is the token of the first row of the weight. With KEEP, also write the logits [rows, width] in f32.
    """
    outputs = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rows = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_mask, strip = rows < count, outputs < width
    wait_for_previous(DEPENDENT)
    total = projected(
        normed, weight, rows, outputs.to(tl.int64), row_mask, strip, hidden, 0, hidden, BLOCK_M, BLOCK_N, BLOCK_K, WIDE
    )
    if KEEP:
        offsets = rows[:, None].to(tl.int64) * width + outputs[None, :]
        tl.store(logits + offsets, total, mask=row_mask[:, None] & strip[None, :])
    temperature = tl.load(temperatures + rows, mask=row_mask, other=0.0)
    if tl.max(temperature, axis=0) > 0:
        noise = _gumbel(first_token + outputs, tl.load(seeds + rows, mask=row_mask, other=0))
        warm = temperature[:, None]
        total = tl.where(warm > 0, total / tl.maximum(warm, coldest) + noise, total)
    # NaN (which does not equal itself) is no score, so the result is always a token of the vocabulary.
    total = tl.where(strip[None, :] & (total == total), total, float("-inf"))
    best, index = tl.max(total, axis=1, return_indices=True)
    offsets_of_strip = rows * tl.num_programs(0) + tl.program_id(0)
    tl.store(best_scores + offsets_of_strip, best, mask=row_mask)
    tl.store(best_tokens + offsets_of_strip, first_token + tl.program_id(0) * BLOCK_N + index, mask=row_mask)


@triton.jit
def pick_kernel(
    best_scores,
    best_tokens,
    tokens,
    scores,
    strips,
    BLOCK: tl.constexpr,  # noqa: N803
    DEPENDENT: tl.constexpr,  # noqa: N803
):
    """Pick the best of a row's strips, of which there are at most BLOCK, and its score. Grid (rows)."""
    wait_for_previous(DEPENDENT)
    row, numbers = tl.program_id(0), tl.arange(0, BLOCK)
    strip_scores = tl.load(best_scores + row * strips + numbers, mask=numbers < strips, other=float("-inf"))
    best, index = tl.max(strip_scores, axis=0, return_indices=True)
    tl.store(scores + row, best)
    tl.store(tokens + row, tl.load(best_tokens + row * strips + index).to(tl.int64))
