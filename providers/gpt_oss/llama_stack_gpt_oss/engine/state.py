"""What the device keeps of the sequences from step to step, so that a step sends only what has changed.

Each sequence of the last steps has an entry: its block tables and sampling parameters, and its last sampled token.
"""

from array import array
from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from .cache import KVCacheBlocks, blocks_filled
from .sampler import seed_base, signed
from .scheduler import ScheduledTokens
from .sequence import Sequence


class State:
    """The entries' tensors on the device. The `spare` entry, the last one, is for padding rows.

    cells [all] int32: the numbers that the host writes; the others are views of it. unused: a cell without a meaning.
    tables [kv_groups, entries, blocks], temperatures [entries] f32, seeds [entries]: bases for `sampler.row_seed`.
    drawn [entries] int64: the last sampled tokens.
    """

    def __init__(self, kv_groups: int, sequences: int, context: int, scratch: int, device: torch.device) -> None:
        """Create the state for `sequences` entries of up to `context` tokens; all tables have the scratch block."""
        entries, widest = sequences + 1, blocks_filled(context)
        self.spare = sequences
        self.warmths = kv_groups * entries * widest  # address of the first temperature
        self.bases = self.warmths + entries
        self.unused = self.bases + entries
        self.cells = torch.zeros(self.unused + 1, dtype=torch.int32, device=device)
        self.tables = self.cells[: self.warmths].view(kv_groups, entries, widest).fill_(scratch)
        self.temperatures = self.cells[self.warmths : self.bases].view(torch.float32)
        self.seeds = self.cells[self.bases : self.unused]
        self.drawn = torch.zeros(entries, dtype=torch.long, device=device)


@dataclass(slots=True)
class _Entry:
    """The number of an entry, and what the device has of the sequence's blocks: the first `sent` of each table."""

    number: int
    blocks: KVCacheBlocks | None = None
    sent: int = 0


class Entries:
    """Assigns entries to sequences, and finds the cells that change."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._free = list(range(state.spare - 1, -1, -1))
        self._entries: dict[Sequence, _Entry] = {}

    def assign(self, scheduled: Series[ScheduledTokens]) -> tuple[list[int], list[int], list[int]]:
        """Return the entry of each sequence, and the addresses and values of changed cells."""
        numbers: list[int] = []
        addresses: list[int] = []
        values: list[int] = []
        for work in scheduled:
            sequence = work.sequence
            entry = self._entries.get(sequence)
            if entry is None:
                entry = self._take(sequence, scheduled)
                addresses += (self._state.warmths + entry.number, self._state.bases + entry.number)
                values += (float_bits(sequence.params.temperature), signed(seed_base(sequence.params.seed)))
            blocks = sequence.blocks
            if entry.blocks is not blocks or entry.sent != len(blocks.tables[0].blocks):
                self._update(entry, blocks, addresses, values)
            numbers.append(entry.number)
        return numbers, addresses, values

    def known(self, sequence: Sequence) -> tuple[int, int] | None:
        """Return the entry of a sequence of the last step, and how many of its blocks the device knows."""
        entry = self._entries.get(sequence)
        return None if entry is None or entry.blocks is not sequence.blocks else (entry.number, entry.sent)

    def _update(self, entry: _Entry, blocks: KVCacheBlocks, addresses: list[int], values: list[int]) -> None:
        first = entry.sent if entry.blocks is blocks else 0
        _, entries, widest = self._state.tables.shape
        for kv_group, table in enumerate(blocks.tables):
            start = (kv_group * entries + entry.number) * widest
            addresses += range(start + first, start + blocks.count)
            values += table.blocks[first:]
        entry.blocks, entry.sent = blocks, blocks.count

    def _take(self, sequence: Sequence, scheduled: Series[ScheduledTokens]) -> _Entry:
        """Return a free entry, after freeing those of ended sequences and, if none is free, of all that are absent.

        An ended sequence would otherwise stay in memory with its tokens until all entries are in use.
        """
        present = {work.sequence for work in scheduled}
        absent = [each for each in self._entries if each not in present and (each.gone or not self._free)]
        self._free += [self._entries.pop(each).number for each in absent]
        entry = self._entries[sequence] = _Entry(self._free.pop())
        return entry


def float_bits(value: float) -> int:
    """Return the bits of an f32 as an int32."""
    return memoryview(array("f", [value])).cast("B").cast("i")[0]
