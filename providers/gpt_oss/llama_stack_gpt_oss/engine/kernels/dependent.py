"""Programmatic dependent launch: a kernel begins while the one before it ends.

Each program calls `start_next` first. It may then read weights, and calls `wait_for_previous` before it reads what an
earlier kernel has written, and before it writes. Every program of every kernel has to wait: an earlier kernel is known
to have ended only because the one after it has waited for it.

DEPENDENT is False where kernels begin one after the other, as on devices before compute capability 9.0.
"""

import triton
import triton.language as tl

LINE = tl.constexpr(64)  # numbers of bf16 in a line of the L2 cache
AHEAD = tl.constexpr(4)  # lines of each row of the weights that a program prefetches before it waits

PREFETCH = tl.constexpr("prefetch.global.L2 [$1]; mov.b32 $0, 0;")


@triton.jit
def start_next(DEPENDENT: tl.constexpr):  # noqa: N803
    """Let the next kernel begin as soon as all programs of this one have begun."""
    if DEPENDENT:
        tl.extra.cuda.gdc_launch_dependents()


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):  # noqa: N803
    """Wait until the kernels before this one have ended, and what they wrote is visible."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()


@triton.jit
def prefetch(weight, rows, width, begin, DEPENDENT: tl.constexpr):  # noqa: N803
    """Prefetch the rows of a weight [any, width], from the column `begin` on: what a loop over them reads first."""
    if DEPENDENT:
        columns = begin + tl.arange(0, AHEAD) * LINE
        offsets = rows[:, None].to(tl.int64) * width + tl.minimum(columns, width - 1)[None, :]
        tl.inline_asm_elementwise(PREFETCH, "=r,l", [weight + offsets], dtype=tl.int32, is_pure=False, pack=1)
