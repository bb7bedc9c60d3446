"""What one step computes, as tensors."""

from collections.abc import Mapping
from collections.abc import Sequence as Series
from dataclasses import dataclass
from typing import Any

import torch

from .cache import PAGE
from .sampler import row_seed, wants_logits
from .scheduler import Work
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows are tokens, one sequence after the other.

    tokens, positions [rows]: ids, and places in their sequence.
    slots [kinds, rows]: places in the KV store (page * PAGE + offset), for each kind of layer.
    starts [sequences + 1]: where each sequence's rows begin. lengths [sequences]: its keys, these rows included.
    tables [kinds, sequences, pages] int32: its pages; what stands for those that no row sees means nothing.
    sampled [wanted]: the rows that draw a next token.
    temperatures, seeds [wanted]: how each of them draws, as `sampler.draw` takes it. kept: whether logits are kept.
    longest: the most rows that a sequence has; with 1 this is a decode step.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    tables: torch.Tensor
    sampled: torch.Tensor
    temperatures: torch.Tensor
    seeds: torch.Tensor
    kept: bool
    longest: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a step drew, where it drew it: `tokens` [wanted] on the device.

    places: of each sequence the place that its token has in it, and the row of the token.
    """

    tokens: torch.Tensor
    places: Mapping[Sequence, tuple[int, int]]


def make_batch(works: Series[Work], drawn: Drawn, device: torch.device) -> Batch:
    """Builds the tensors of a step on the host and sends each over once.

    Tokens that the step before drew come from there: the host may not know them yet.
    """
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    known: list[tuple[int, int]] = []  # rows whose token is on the device, and where there
    for work in works:
        places = range(work.start, work.start + work.count)
        place, row = drawn.places.get(work.sequence, (-1, -1))
        if place in places:
            known.append((len(tokens) + place - work.start, row))
        mine = work.sequence.tokens[work.start : work.start + work.count]
        tokens += mine + [0] * (work.count - len(mine))
        positions += places
        starts.append(len(tokens))
    kinds = range(len(works[0].sequence.holding.tables))
    slots, tables = zip(*(_slots_and_tables(works, kind) for kind in kinds), strict=True)
    last = [(work, end - 1) for work, end in zip(works, starts[1:], strict=True) if work.last]

    def send(values: Series[Any], dtype: torch.dtype = torch.long) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)

    ids = send(tokens)
    if known:
        rows, sources = zip(*known, strict=True)
        ids.index_copy_(0, send(list(rows)), drawn.tokens[send(list(sources))])
    return Batch(
        tokens=ids,
        positions=send(positions),
        slots=send(slots),
        starts=send(starts, torch.int32),
        lengths=send([work.start + work.count for work in works], torch.int32),
        tables=send(tables, torch.int32),
        sampled=send([row for _, row in last]),
        temperatures=send([work.sequence.params.temperature for work, _ in last], torch.float32),
        seeds=send([row_seed(work.sequence.params.seed, work.start + work.count) for work, _ in last]),
        kept=any(wants_logits(work.sequence) for work, _ in last),
        longest=max(work.count for work in works),
    )


def _slots_and_tables(works: Series[Work], kind: int) -> tuple[list[int], list[list[int]]]:
    pages = [work.sequence.holding.tables[kind].pages for work in works]
    slots = [
        mine[place // PAGE] * PAGE + place % PAGE
        for work, mine in zip(works, pages, strict=True)
        for place in range(work.start, work.start + work.count)
    ]
    widest = max(map(len, pages))
    return slots, [mine + [0] * (widest - len(mine)) for mine in pages]
