"""The experts' projections with `tl.dot_scaled`, whose decoding of MXFP4 is the compiler's."""

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl

from llama_stack_gpt_oss.engine.weights import Experts

STRIP, DEPTH = 64, 128
MAX_ROWS = 64  # of an expert: a program holds all of them


@triton.jit
def scaled_kernel(
    x,
    blocks,
    scales,
    out,
    outputs,
    inputs,
    row_scales,
    BLOCK_M: tl.constexpr,  # noqa: N803
    BLOCK_N: tl.constexpr,  # noqa: N803
    BLOCK_K: tl.constexpr,  # noqa: N803
):
    """Multiply x [BLOCK_M, inputs] by each expert's matrix, in a checkpoint's layout. Grid (strips, experts)."""
    expert, rows = tl.program_id(1).to(tl.int64), tl.arange(0, BLOCK_M)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    strip = columns < outputs
    matrix_rows = (expert * outputs + columns)[:, None]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        places = start + tl.arange(0, BLOCK_K)
        spots = start // 2 + tl.arange(0, BLOCK_K // 2)
        groups = start // 32 + tl.arange(0, BLOCK_K // 32)
        mask = strip[:, None] & (spots < inputs // 2)[None, :]
        packed = tl.load(blocks + matrix_rows * (inputs // 2) + spots[None, :], mask=mask, other=0)
        mask = strip[:, None] & (groups < row_scales)[None, :]
        scale = tl.load(scales + matrix_rows * row_scales + groups[None, :], mask=mask, other=0)
        part = tl.load(x + rows[:, None] * inputs + places[None, :], mask=(places < inputs)[None, :], other=0.0)
        total = tl.dot_scaled(part, None, "bf16", tl.trans(packed), scale, "e2m1", total)
    target = out + (expert * BLOCK_M + rows[:, None]) * outputs + columns[None, :]
    tl.store(target, total, mask=strip[None, :])


def scaled_launch(layers: Sequence[Experts], rows: int, chosen: int) -> tuple[float, Callable[[int], object]]:
    """Return the bytes of weights that a launch for so many rows reads, and a launch with the n-th layer.

    The rows are evenly divided among their experts, at most `MAX_ROWS` for each. Words are read as if they were blocks:
    other values, same bytes.
    """
    count, outputs, groups, _ = layers[0].words.shape
    used = min(count, rows * chosen)
    block = min(MAX_ROWS, max(16, triton.next_power_of_2(-(-rows * chosen // used))))
    inputs, device = groups * 32, layers[0].words.device
    x = torch.randn(block, inputs, device=device).to(torch.bfloat16)
    out = torch.empty(used, block, outputs, device=device)

    def launch(number: int) -> None:
        experts = layers[number % len(layers)]
        scaled_kernel[(triton.cdiv(outputs, STRIP), used)](
            x,
            experts.words.view(torch.uint8),
            experts.scales,
            out,
            outputs,
            inputs,
            experts.scales.shape[-1],
            BLOCK_M=block,
            BLOCK_N=STRIP,
            BLOCK_K=DEPTH,
            num_warps=4,
        )

    return used / count * (layers[0].words.nbytes + layers[0].scales.nbytes), launch
