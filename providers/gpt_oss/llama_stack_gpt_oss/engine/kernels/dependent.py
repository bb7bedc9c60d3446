"""Programmatic dependent launch: a kernel begins while the one before it ends.

A program may read weights first. It calls `wait_for_previous` before it reads what an earlier kernel has written, and
before it writes. Every program of every kernel has to wait: an earlier kernel is known to have ended only because the
one after it has waited for it.

The next kernel may begin once all programs of this one have waited. If it could begin before, several kernels would
wait at once, and their programs would occupy the multiprocessors: on an H200, a step took an eighth longer than without
dependent launch.

DEPENDENT is False where kernels begin one after the other, as on devices before compute capability 9.0.
"""

import triton
import triton.language as tl


@triton.jit
def wait_for_previous(DEPENDENT: tl.constexpr):  # noqa: N803
    """Wait until the kernels before have ended, and what they wrote is visible; then let the next one begin."""
    if DEPENDENT:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
