"""Drafts of an EAGLE-3 head, computed on the device between two steps."""

from collections.abc import Sequence as Series
from typing import NamedTuple

import torch

from .batch import Batch
from .cache import BLOCK_TOKENS
from .draft_head import DraftHead
from .drafts import DraftLength, before_stop
from .ops import HeadOutput
from .sampler import COLDEST, WORD, mix, noise, row_seed
from .scheduler import ScheduledTokens
from .sequence import Sequence
from .state import Entries, State


class _Wanted(NamedTuple):
    """A sequence to draft for.

    result_index: the index of its drafts in the result of `propose`. row: of the last step, after which it goes on.
    entry: its entry in the state on the device. length: its number of tokens, which is the position of its first draft.
    drafts: how many to draft. is_random: whether its temperature is above 0.
    """

    result_index: int
    row: int
    entry: int
    length: int
    drafts: int
    is_random: bool


class HeadDrafter:
    """Runs the head on all rows of each step, and on its own outputs for further drafts.

    Draft and model use the same random noise at a position, so they usually draw the same token when their
    probabilities are similar.
    """

    waits = True  # the row from which it drafts depends on how many drafts the last step accepted

    def __init__(self, head: DraftHead, state: State, entries: Entries, most: int) -> None:
        """Create a drafter of at most `most` tokens for a step."""
        self._draft_head = head
        self._state = state
        self._entries = entries
        self._most = most
        self._lengths: dict[Sequence, DraftLength] = {}
        self._rows: dict[Sequence, int] = {}  # of the last step: the one after which each sequence goes on
        self._hidden: torch.Tensor | None = None

    def computed(
        self, output: HeadOutput, batch: Batch, works: Series[ScheduledTokens], ends: Series[tuple[int, int]] = ()
    ) -> None:
        """Compute the rows of a step, which has sampled.

        ends: (row, next token) for each row whose next token is already known from the prompt.
        """
        assert output.features is not None
        wanted = batch.sampled[: len(output.tokens)]
        following = batch.tokens.roll(-1)
        following[wanted] = output.tokens
        if ends:
            rows, tokens = torch.tensor(ends, device=following.device).unbind(-1)
            following[rows] = tokens
        combined = self._draft_head.combined(output.features)
        self._hidden = self._draft_head.forward(combined, following, batch)[wanted]
        self._rows, row = {}, 0
        for work in works:
            self._rows[work.sequence] = row
            row += 1 + len(work.drafts)

    @torch.inference_mode()
    def propose(self, sequences: Series[Sequence]) -> list[list[int]]:
        """Return drafts of the sequences of the last step, all of whose tokens have been read."""
        drafts: list[list[int]] = [[] for _ in sequences]
        candidates = [self._wanted(index, sequence) for index, sequence in enumerate(sequences)]
        wanted = sorted((each for each in candidates if each is not None), key=lambda each: -each.drafts)
        if not wanted:
            return drafts
        for each, tokens in zip(wanted, self._draft(wanted), strict=True):
            stop_ids = sequences[each.result_index].params.stop_ids
            drafts[each.result_index] = before_stop(tokens[: each.drafts], stop_ids)
        return drafts

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        self._lengths[sequence].verified(sequence, drafted, accepted)
        self._rows[sequence] += accepted

    def forget(self, sequence: Sequence) -> None:
        self._lengths.pop(sequence, None)
        self._rows.pop(sequence, None)

    def warm_up(self, output: HeadOutput, batch: Batch) -> None:
        """Compile what a step and drafts for its sequences need, in the scratch block."""
        self.computed(output, batch, ())
        spare = self._state.spare
        self._draft([_Wanted(0, row, spare, 1, min(2, self._most), True) for row in range(len(output.tokens))])

    def _wanted(self, index: int, sequence: Sequence) -> _Wanted | None:
        row, known = self._rows.get(sequence), self._entries.known(sequence)
        if row is None or known is None:
            return None
        entry, blocks = known
        length = self._lengths.setdefault(sequence, DraftLength(self._most, self._most))
        # The first draft needs no further row of the head; each other one writes to a block that the device knows.
        room = 1 + blocks * BLOCK_TOKENS - (sequence.length - 1)
        count = min(length.allowed(sequence), room)
        if count < 1:
            return None
        return _Wanted(index, row, entry, sequence.length, count, sequence.params.temperature > 0)

    def _draft(self, wanted: Series[_Wanted]) -> list[list[int]]:
        """Return the drafts of each.

        `wanted` is sorted, most drafts first. Every row gets as many tokens as the first; the caller cuts off the
        surplus.
        """
        assert self._hidden is not None
        numbers = torch.tensor([each[1:4] for each in wanted], device=self._hidden.device)
        rows, entries, lengths = numbers.unbind(-1)
        hidden, is_random = self._hidden[rows], any(each.is_random for each in wanted)
        tokens = [self._drawn(hidden, entries, lengths, is_random)]
        for number in range(1, wanted[0].drafts):
            active = sum(each.drafts > number for each in wanted)
            # A row has a token's position, reads the token after it, and predicts the one after that.
            batch = self._rows_of(entries[:active], lengths[:active] + number - 2)
            hidden = self._draft_head.forward(hidden[:active], tokens[-1][:active], batch)
            tokens.append(tokens[-1].clone())
            tokens[-1][:active] = self._drawn(hidden, entries[:active], lengths[:active] + number, is_random)
        return torch.stack(tokens, -1).tolist()

    def _drawn(
        self, hidden: torch.Tensor, entries: torch.Tensor, positions: torch.Tensor, is_random: bool
    ) -> torch.Tensor:
        """Draw the token of each position as `sampler.draw` does, from what the head predicts."""
        logits, ids = self._draft_head.logits(hidden)
        if is_random:
            temperatures = self._state.temperatures[entries][:, None]
            seeds = row_seed(self._state.seeds[entries].long() & WORD, positions)
            noised = logits / temperatures.clamp_min(COLDEST) + noise(mix(mix(ids)[None, :] ^ seeds[:, None]))
            logits = torch.where(temperatures > 0, noised, logits)
        return ids[logits.argmax(-1)]

    def _rows_of(self, entries: torch.Tensor, positions: torch.Tensor) -> Batch:
        """Return a batch of one row for each entry."""
        count, state = len(entries), self._state
        blocks = state.tables[:, entries, positions // BLOCK_TOKENS].long()
        return Batch(
            tokens=entries,
            positions=positions,
            slots=blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS,
            starts=torch.arange(count + 1, dtype=torch.int32, device=entries.device),
            lengths=(positions + 1).int(),
            entries=entries.int(),
            tables=state.tables,
            sampled=entries,
            owners=entries,
            temperatures=state.temperatures,
            seeds=entries,
            kept=False,
            decodes=count,
            decode_rows=count,
            width=1,
            longest=0,
        )
