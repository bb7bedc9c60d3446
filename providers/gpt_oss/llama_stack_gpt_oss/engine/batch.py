"""What one step computes, as tensors."""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from .cache import PAGE
from .scheduler import Work


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows are tokens, one sequence after the other.

    tokens, positions, slots [rows]: ids, places in their sequence, and places in the KV store (page * PAGE + offset).
    starts [sequences + 1]: where each sequence's rows begin. lengths [sequences]: its keys, these rows included.
    tables [sequences, pages] int32: its pages. sampled [wanted]: the rows whose logits somebody wants.
    longest: the most rows that a sequence has; with 1 this is a decode step.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    sampled: torch.Tensor
    longest: int


def make_batch(works: Series[Work], device: torch.device) -> Batch:
    """Builds the tensors of a step on the host and sends each over once."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts, sampled = [0], []
    for work in works:
        places = range(work.start, work.start + work.count)
        pages = work.sequence.holding.pages
        tokens += work.sequence.tokens[work.start : work.start + work.count]
        positions += places
        slots += [pages[place // PAGE] * PAGE + place % PAGE for place in places]
        starts.append(len(tokens))
        if work.last:
            sampled.append(len(tokens) - 1)
    widest = max(len(work.sequence.holding.pages) for work in works)
    tables = [work.sequence.holding.pages + [0] * (widest - len(work.sequence.holding.pages)) for work in works]

    def send(values: list[int] | list[list[int]], dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    return Batch(
        tokens=send(tokens),
        positions=send(positions),
        slots=send(slots),
        starts=send(starts, torch.int32),
        lengths=send([work.start + work.count for work in works], torch.int32),
        tables=send(tables, torch.int32),
        sampled=send(sampled),
        longest=max(work.count for work in works),
    )
