"""Steps that are run before the engine is ready, so that no request waits for a kernel's compilation or a capture.

They read and write the scratch block only.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Series
from itertools import accumulate

import torch

from .batch import Batch
from .cache import PAGE, places_filled
from .model import Model
from .sequence import Params, Sequence

PROMPTS = (16, 32, 64, 128)  # rows: one step for each block size of the kernels


def warm_up_batches(model: Model, sizes: Series[int], step_tokens: int) -> Iterator[Batch]:
    """Yield decode steps of each captured size, largest first, and a step with a prompt for each block size.

    The last step is the largest: if it fits in the memory, all do. Half of the steps keep their logits.
    """
    for kept in (True, False):
        for size in sorted(sizes, reverse=True):
            yield scratch_batch(model, (1,) * size, kept)
        for rows in PROMPTS:
            yield scratch_batch(model, (1, rows - 1), kept)
        decodes = min(sizes[-1], step_tokens - 2)
        yield scratch_batch(model, (*(1,) * decodes, step_tokens - decodes), kept)


def warm_up_steps(sizes: Series[int]) -> int:
    """Return the number of batches of `warm_up_batches`."""
    return 2 * (len(sizes) + len(PROMPTS) + 1)


def scratch_batch(model: Model, counts: Series[int], kept: bool) -> Batch:
    """Return a step that computes the first `counts` tokens of sequences whose blocks are all the scratch block."""
    device, groups = model.weights.embedding.device, len(model.config.kv_groups)
    decodes = len(counts) if max(counts) == 1 else next(n for n, count in enumerate(counts) if count > 1)
    starts = torch.tensor((0, *accumulate(counts)), dtype=torch.int32, device=device)
    positions = torch.cat([torch.arange(count, device=device) for count in counts])
    return Batch(
        tokens=torch.zeros_like(positions),
        positions=positions,
        slots=(model.scratch * PAGE + positions % PAGE).repeat(groups, 1),
        starts=starts,
        lengths=starts.diff(),
        tables=starts.new_full((groups, len(counts), places_filled(max(counts))), model.scratch),
        sampled=starts[1:].long() - 1,
        temperatures=torch.ones(len(counts), device=device),
        seeds=torch.zeros_like(starts[1:], dtype=torch.long),
        kept=kept,
        decodes=decodes,
        longest=max(counts) if decodes < len(counts) else 0,
    )


def demanding_sequences(number: int) -> list[Sequence]:
    """Return sequences that use all of the sampler but a mask."""
    params = Params(max_tokens=1, top_p=0.5, top_logprobs=20)
    return [Sequence(f"{each}", [0], 1, params, each) for each in range(number)]
