"""The start of a step: changed cells are written to the state, and the packed numbers become the batch."""

import triton
import triton.language as tl

from .head import _mix


# Arguments that change from step to step must not select another build of a kernel: it would compile in a request.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["addresses", "contents"])
def write_kernel(cells, addresses, contents, count, BLOCK: tl.constexpr):  # noqa: N803
    """Write a value to each address. Grid (blocks of them)."""
    numbers = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = numbers < count
    address = tl.load(addresses + numbers, mask=mask, other=0)
    tl.store(cells + address, tl.load(contents + numbers, mask=mask, other=0), mask=mask)


@triton.jit(
    do_not_specialize=["count", "wanted", "row_stride", "wanted_stride"],
    do_not_specialize_on_alignment=["packed_tokens", "packed_positions", "row_entries", "packed_sampled", "owners"],
)
def unpack_kernel(
    packed_tokens,
    packed_positions,
    row_entries,
    packed_sampled,
    owners,
    tables,
    warmths,
    bases,
    drawn,
    unpacked,
    chosen,
    temperatures,
    count,
    wanted,
    row_stride,
    wanted_stride,
    entry_count,
    widest,
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    KV_GROUPS: tl.constexpr,  # noqa: N803
    BLOCK: tl.constexpr,  # noqa: N803
):
    """Write tokens, positions and slots to `unpacked` [2 + KV_GROUPS, row_stride]. Grid (blocks of rows).

    Sampled rows, their entries and their seeds go to `chosen` [3, wanted_stride], and their temperatures.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = rows < count
    entry = tl.load(row_entries + rows, mask=mask, other=0)
    token = tl.load(packed_tokens + rows, mask=mask, other=0).to(tl.int64)
    last = tl.load(drawn + entry, mask=mask & (token < 0), other=0)
    tl.store(unpacked + rows, tl.where(token < 0, last, token), mask=mask)
    position = tl.load(packed_positions + rows, mask=mask, other=0)
    tl.store(unpacked + row_stride + rows, position.to(tl.int64), mask=mask)
    for kv_group in tl.static_range(KV_GROUPS):
        block = tl.load(
            tables + (kv_group * entry_count + entry) * widest + position // BLOCK_TOKENS, mask=mask, other=0
        )
        slot = block.to(tl.int64) * BLOCK_TOKENS + position % BLOCK_TOKENS
        tl.store(unpacked + (2 + kv_group) * row_stride + rows, slot, mask=mask)
    inside = rows < wanted
    sampled = tl.load(packed_sampled + rows, mask=inside, other=0)
    owner = tl.load(owners + rows, mask=inside, other=0)
    next_position = tl.load(packed_positions + sampled, mask=inside, other=0) + 1
    base = tl.load(bases + owner, mask=inside, other=0).to(tl.uint32, bitcast=True)
    seed = _mix(base + _mix(next_position.to(tl.uint32) ^ 0x9E3779B9))
    tl.store(chosen + rows, sampled.to(tl.int64), mask=inside)
    tl.store(chosen + wanted_stride + rows, owner.to(tl.int64), mask=inside)
    tl.store(chosen + 2 * wanted_stride + rows, seed.to(tl.int64), mask=inside)
    tl.store(temperatures + rows, tl.load(warmths + owner, mask=inside, other=0.0), mask=inside)
