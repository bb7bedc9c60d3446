"""The input of one step: packed on the host into one array of integers, and unpacked on the device."""

from array import array
from collections.abc import Sequence as Series
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple

import torch

from .scheduler import ScheduledTokens

UNREAD = -1  # a token that the host has not read: it is the last one that the sequence's entry has drawn


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows are tokens, grouped by sequence. An entry is a sequence's index in the `State` of the device.

    tokens, positions [rows]: token ids, and their indexes in the sequence.
    slots [kv_groups, rows]: indexes into the KV cache (block * BLOCK_TOKENS + offset), for each KV group.
    starts [sequences + 1] int32: first row of each sequence. lengths [sequences] int32: number of its keys, including
    these rows. entries [sequences] int32.
    tables [kv_groups, entries, blocks] int32: block tables; entries outside all rows' windows are undefined.
    sampled [wanted]: the rows that sample a next token. owners [wanted]: the entries of their sequences.
    temperatures, seeds [wanted]: sampling parameters for `sampler.draw`. kept: whether logits are returned.
    decodes: number of leading sequences that decode, so with a row for their last token and one for each draft.
    decode_rows: number of their rows. width: maximum number of rows of one of them, 1 in a step without drafts.
    longest: maximum number of rows of the other sequences; 0 for a decode step.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    starts: torch.Tensor
    lengths: torch.Tensor
    entries: torch.Tensor
    tables: torch.Tensor
    sampled: torch.Tensor
    owners: torch.Tensor
    temperatures: torch.Tensor
    seeds: torch.Tensor
    kept: bool
    decodes: int
    decode_rows: int
    width: int
    longest: int


class Fields[T](NamedTuple):
    """The packed parts of a step: lists on the host, and int32 tensors on the device.

    tokens (UNREAD for those on the device only), positions and row_entries have an item for each row; starts, lengths,
    entries, sampled and owners are those of `Batch`; addresses and values are the changed cells of the `State`.
    """

    tokens: T
    positions: T
    row_entries: T
    starts: T
    lengths: T
    entries: T
    sampled: T
    owners: T
    addresses: T
    values: T


@dataclass(frozen=True, slots=True)
class StepInput:
    """A step on the host. All fields but the first are those of `Batch`."""

    fields: Fields[list[int]]
    kept: bool
    decodes: int
    decode_rows: int
    width: int
    longest: int

    @property
    def is_decode(self) -> bool:
        """Whether a token is sampled after each row."""
        return not self.longest and len(self.fields.sampled) == len(self.fields.tokens)

    def sizes(self) -> list[int]:
        return [len(field) for field in self.fields]

    def batch(self, fields: Fields[torch.Tensor], tables: torch.Tensor, **unpacked: torch.Tensor) -> Batch:
        """Return the batch of the step's fields on the device, and of what was unpacked from them."""
        return Batch(
            starts=fields.starts,
            lengths=fields.lengths,
            entries=fields.entries,
            tables=tables,
            kept=self.kept,
            decodes=self.decodes,
            decode_rows=self.decode_rows,
            width=self.width,
            longest=self.longest,
            **unpacked,
        )

    def packed(self) -> array[int]:
        numbers = array("i")
        for field in self.fields:
            numbers.extend(field)
        return numbers


def pack(
    scheduled: Series[ScheduledTokens], numbers: Series[int], addresses: list[int], values: list[int], width: int = 1
) -> StepInput:
    """Return the step of sequences with the given entries, and with the changed cells of the state.

    width: maximum number of rows of a decode.
    """
    plain = _plain_decodes(scheduled)
    positions = [work.start for work in scheduled[:plain]]
    tokens = [UNREAD if work.sequence.unread else work.sequence.tokens[-1] for work in scheduled[:plain]]
    row_entries, owners = list(numbers[:plain]), list(numbers[:plain])
    starts, sampled = list(range(plain + 1)), list(range(plain))
    lengths = [start + 1 for start in positions]
    # A list, since a generator would be called for each sequence.
    kept = True in [work.sequence.mask is not None or work.sequence.params.keeps_logits for work in scheduled[:plain]]
    for work, number in zip(scheduled[plain:], numbers[plain:], strict=True):
        sequence, start, end, drafts = work.sequence, work.start, work.start + work.count, work.drafts
        mine = sequence.tokens[start:end]
        tokens += [*mine, *[UNREAD] * (work.count - len(mine)), *drafts]
        positions += range(start, end + len(drafts))
        row_entries += [number] * (work.count + len(drafts))
        starts.append(len(tokens))
        lengths.append(end + len(drafts))
        if work.last:
            sampled.extend(range(len(tokens) - 1 - len(drafts), len(tokens)))
            owners.extend([number] * (1 + len(drafts)))
            kept = kept or sequence.mask is not None or sequence.params.keeps_logits
    decodes = plain + sum(1 for _ in takewhile(lambda work: work.count == 1, scheduled[plain:]))
    longest = max((work.count for work in scheduled[decodes:]), default=0)
    entries = list(numbers)
    fields = Fields(tokens, positions, row_entries, starts, lengths, entries, sampled, owners, addresses, values)
    return StepInput(fields, kept, decodes, starts[decodes], width, longest)


def _plain_decodes(scheduled: Series[ScheduledTokens]) -> int:
    """Return the number of leading sequences with a row for their last token only. Most steps have no others."""
    plain = 0
    for work in scheduled:
        sequence = work.sequence
        if work.count != 1 or work.drafts or work.start + 1 != len(sequence.tokens) + sequence.unread:
            break
        plain += 1
    return plain


def padded(step: StepInput, rows: int, changes: int, spare: int, unused: int) -> StepInput:
    """Pad a decode step to numbers of rows and changed cells: to rows of the spare entry, and to an unused cell.

    The number of its sequences becomes that of its rows: behind those with a row, they are empty.
    """
    fields, more = step.fields, rows - len(step.fields.tokens)
    blanks = changes - len(fields.addresses)
    everyone, spares = list(range(rows)), [spare] * more
    absent = rows - len(fields.lengths)
    return replace(
        step,
        fields=Fields(
            tokens=fields.tokens + [0] * more,
            positions=fields.positions + [0] * more,
            row_entries=fields.row_entries + spares,
            starts=fields.starts + list(range(rows - more + 1, rows + 1)) + [rows] * (absent - more),
            lengths=fields.lengths + [1] * absent,
            entries=fields.entries + [spare] * absent,
            sampled=everyone,
            owners=fields.owners + spares,
            addresses=fields.addresses + [unused] * blanks,
            values=fields.values + [0] * blanks,
        ),
        decodes=rows,
        decode_rows=rows,
    )
