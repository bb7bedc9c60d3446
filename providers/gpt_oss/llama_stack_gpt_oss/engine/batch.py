"""The input of one step, as tensors."""

from collections.abc import Mapping
from collections.abc import Sequence as Series
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch

from .cache import PAGE
from .sampler import row_seed, wants_logits
from .scheduler import ScheduledTokens
from .sequence import Sequence


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows are tokens, grouped by sequence.

    tokens, positions [rows]: token ids, and their indexes in the sequence.
    slots [kv_groups, rows]: indexes into the KV cache (block * PAGE + offset), for each KV group.
    starts [sequences + 1]: first row of each sequence. lengths [sequences]: number of its keys, including these rows.
    tables [kv_groups, sequences, blocks] int32: block tables; entries outside all rows' windows are undefined.
    sampled [wanted]: the rows that sample a next token.
    temperatures, seeds [wanted]: sampling parameters for `sampler.draw`. kept: whether logits are returned.
    decodes: number of leading sequences with one row each. longest: maximum number of rows of the other sequences; 0
    for a decode step.
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
    decodes: int
    longest: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The tokens sampled by a step: `tokens` [wanted] on the device.

    places: for each sequence, the index of the token in the sequence, and its row in `tokens`.
    """

    tokens: torch.Tensor
    places: Mapping[Sequence, tuple[int, int]]


def make_batch(scheduled: Series[ScheduledTokens], drawn: Drawn, device: torch.device) -> Batch:
    """Build the tensors of a step on the host and copy each to the device once.

    Tokens sampled by the previous step are copied on the device: the host may not know them yet.
    """
    tokens: list[int] = []
    positions: list[int] = []
    starts = [0]
    known: list[tuple[int, int]] = []  # rows whose token is on the device, and its row there
    for work in scheduled:
        places = range(work.start, work.start + work.count)
        place, row = drawn.places.get(work.sequence, (-1, -1))
        if place in places:
            known.append((len(tokens) + place - work.start, row))
        mine = work.sequence.tokens[work.start : work.start + work.count]
        tokens += mine + [0] * (work.count - len(mine))
        positions += places
        starts.append(len(tokens))
    kv_groups = range(len(scheduled[0].sequence.blocks.tables))
    slots, tables = zip(*(_slots_and_tables(scheduled, kv_group) for kv_group in kv_groups), strict=True)
    decodes = sum(1 for _ in takewhile(lambda work: work.count == 1, scheduled))
    last = [(work, end - 1) for work, end in zip(scheduled, starts[1:], strict=True) if work.last]

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
        lengths=send([work.start + work.count for work in scheduled], torch.int32),
        tables=send(tables, torch.int32),
        sampled=send([row for _, row in last]),
        temperatures=send([work.sequence.params.temperature for work, _ in last], torch.float32),
        seeds=send([row_seed(work.sequence.params.seed, work.start + work.count) for work, _ in last]),
        kept=any(wants_logits(work.sequence) for work, _ in last),
        decodes=decodes,
        longest=max((work.count for work in scheduled[decodes:]), default=0),
    )


def _slots_and_tables(scheduled: Series[ScheduledTokens], kv_group: int) -> tuple[list[int], list[list[int]]]:
    pages = [work.sequence.blocks.tables[kv_group].pages for work in scheduled]
    slots = [
        mine[place // PAGE] * PAGE + place % PAGE
        for work, mine in zip(scheduled, pages, strict=True)
        for place in range(work.start, work.start + work.count)
    ]
    widest = max(map(len, pages))
    return slots, [mine + [0] * (widest - len(mine)) for mine in pages]
