"""What requests add to the logits of their next token: a bias by token, and penalties for generated tokens.

The sums are kept on the device, so a step sends only those of the tokens generated since the step before.
"""

from array import array
from collections import Counter
from collections.abc import Sequence as Series
from dataclasses import dataclass, field

import torch

from .sampling_params import SamplingParams
from .sequence import Sequence


@dataclass(slots=True)
class _Row:
    """What the device has: the sequence's bias, and the penalties of its first `counted` tokens."""

    sequence: Sequence
    counted: int
    bias: dict[int, float]
    counts: Counter[int] = field(default_factory=Counter)


class Adjustments:
    """A table on the device [entries, vocabulary] f32, and the cells that change. Entries are those of the `State`."""

    def __init__(self, entries: int, vocabulary: int, device: torch.device) -> None:
        self.table = torch.zeros(entries, vocabulary, device=device)
        self._rows: dict[int, _Row] = {}

    def changes(self, sequence: Sequence, entry: int) -> tuple[array[int], array[float]]:
        """Return the addresses and values of changed cells. All tokens before the next one have been read."""
        row = self._rows.get(entry)
        changed: dict[int, None] = {}
        if row is None or row.sequence is not sequence:
            row = self._take(sequence, entry)
            changed = dict.fromkeys(row.bias)
        params = sequence.params
        if params.frequency_penalty or params.presence_penalty:
            new = [token for token in sequence.tokens[row.counted :] if token not in params.unpenalised]
            row.counts.update(new)
            row.counted = len(sequence.tokens)
            changed |= dict.fromkeys(new)
        start = entry * self.table.shape[-1]
        values = (_sum(params, row.bias.get(token, 0.0), row.counts[token]) for token in changed)
        return array("i", (start + token for token in changed)), array("f", values)

    def with_drafts(self, entry: int, drafts: Series[int]) -> tuple[array[int], array[float]]:
        """Return the penalised tokens among drafts of the entry's sequence, and their values if they were generated."""
        row = self._rows[entry]
        params = row.sequence.params
        drafted = Counter(token for token in drafts if token not in params.unpenalised)
        values = (_sum(params, row.bias.get(token, 0.0), row.counts[token] + n) for token, n in drafted.items())
        return array("i", drafted), array("f", values)

    def _take(self, sequence: Sequence, entry: int) -> _Row:
        """Give the entry to a sequence. An ended one would otherwise stay in memory with its tokens."""
        self._rows = {number: row for number, row in self._rows.items() if not row.sequence.gone}
        row = self._rows[entry] = _Row(sequence, sequence.prompt_tokens, dict(sequence.params.logit_bias))
        self.table[entry].zero_()
        return row


def _sum(params: SamplingParams, bias: float, count: int) -> float:
    return bias - params.frequency_penalty * count - params.presence_penalty * (count > 0)
