"""Steps that are run before the engine is ready, so that no request waits for a kernel's compilation or a capture.

They read and write the scratch block only.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Series
from itertools import accumulate
from typing import NamedTuple

from .batch import Fields, StepInput
from .sampling_params import SamplingParams
from .scheduler import ScheduledTokens
from .sequence import Sequence

FEWEST_ROWS = 16  # of a tile; the others have twice as many each, so each build is for rows up to a power of two


class WarmUpStep(NamedTuple):
    """A step: the number of tokens of each sequence, whether it keeps its logits, and its `Batch.width`."""

    counts: tuple[int, ...]
    kept: bool
    width: int = 1


def warm_up_steps(
    sizes: Series[int], step_tokens: int, context: int, verified: Series[int] = (), width: int = 1
) -> list[WarmUpStep]:
    """Return decode steps of each captured size, largest first, and a step with a prompt for each build of a kernel.

    verified, width: the captured sizes of steps with drafts, and the width of these steps.
    Of those that keep their logits, and of the others, the last is the largest: if it fits in the memory, all do.
    The first ones keep their logits, so that the largest captured step makes the room for those of all captured steps.
    """
    captured = sorted([*((size, 1) for size in sizes), *((size, width) for size in verified)], reverse=True)
    decodes = min(max(1, sizes[-1] - 1), step_tokens - 2)  # next to a prompt, which is also a sequence
    steps = [((1,) * size, each) for size, each in captured]
    steps += [((1, *_prompts(rows - 1, context)), 1) for rows in _prompt_rows(step_tokens)]
    steps.append(((*(1,) * decodes, *_prompts(step_tokens - decodes, context)), 1))
    return [WarmUpStep(counts, kept, each) for kept in (True, False) for counts, each in steps]


def _prompt_rows(step_tokens: int) -> Iterator[int]:
    """Yield the powers of two below the rows of the largest step."""
    rows = FEWEST_ROWS
    while rows < step_tokens:
        yield rows
        rows *= 2


def _prompts(tokens: int, context: int) -> list[int]:
    """Return the lengths of prompts within the context that have so many tokens in all."""
    whole, rest = divmod(tokens, context)
    return [context] * whole + [rest] * (rest > 0)


def scratch_step(step: WarmUpStep, spare: int) -> StepInput:
    """Return a step with the first tokens of sequences that all have the spare entry, so the scratch block."""
    counts, kept, width = step
    rows = sum(counts)
    decodes = len(counts) if max(counts) == 1 else next(n for n, count in enumerate(counts) if count > 1)
    starts = [0, *accumulate(counts)]
    spares = [spare] * len(counts)
    fields = Fields(
        tokens=[0] * rows,
        positions=[position for count in counts for position in range(count)],
        row_entries=[spare] * rows,
        starts=starts,
        lengths=list(counts),
        entries=spares,
        sampled=[end - 1 for end in starts[1:]],
        owners=spares,
        addresses=[],
        values=[],
    )
    return StepInput(fields, kept, decodes, starts[decodes], width, max(counts) if decodes < len(counts) else 0)


def demanding_works(number: int) -> list[ScheduledTokens]:
    """Return works of sequences that use all of the sampler but a mask."""
    params = SamplingParams(max_tokens=1, top_k=20, min_p=0.01, top_p=0.5, logit_bias=((0, 1.0),), top_logprobs=20)
    return [ScheduledTokens(Sequence(f"{each}", [0], 1, params, each), 0, 1) for each in range(number)]
