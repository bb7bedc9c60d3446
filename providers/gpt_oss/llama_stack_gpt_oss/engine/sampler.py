"""Sampling. Each result depends only on seed, position and logits, never on the rest of the batch.

A row with only a temperature is sampled where its logits are computed, by `draw` or a kernel with the same result, and
its logits are not kept. Penalties and biases are added to kept logits, which masks, min_p, top_k and top_p restrict,
and the row is sampled again: by `redraw` or a kernel with the same result. Neither waits for the device, or sorts the
vocabulary.
"""

import math
from array import array
from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from .adjustments import Adjustments
from .sampling_params import SamplingParams
from .scheduler import ScheduledTokens
from .sequence import Sampled, Sequence, TokenMask

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
COLDEST = 1e-5  # lowest temperature above 0
PREFILTER = 1024  # most likely tokens among which the last one that top_p keeps is looked for first
PARAMETERS = 8  # of a restricted row


@dataclass(frozen=True, slots=True)
class Report:
    """The log probability of each sampled token [wanted], and the most likely tokens [wanted, most] with theirs.

    They are the model's own: before penalties, biases, temperature, top_p and masks.
    """

    chosen: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Restricted:
    """The rows to sample again, as int32: `parameters` [restricted, PARAMETERS] and `masks` [masks, words].

    The parameters are a row's index, the index of its mask or -1, top_k or 0, its row of the table or -1, the bits of
    min_p and top_p as f32, and the first and the number of its own tokens, which count its drafts: what is added to
    their logits is not in the table, but the bits in `own_values`.
    A mask has a bit for each token, the lowest bit of a word first.
    table [entries, vocabulary] f32: what is added to logits, after the values' bits are written to its addresses.
    """

    parameters: torch.Tensor
    masks: torch.Tensor
    table: torch.Tensor
    addresses: torch.Tensor
    values: torch.Tensor
    own_tokens: torch.Tensor
    own_values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """The parts of `Restricted` on the host, one after the other, and their sizes."""

    rows: int
    changes: int
    own: int
    numbers: array[int]

    def sent(self, numbers: torch.Tensor, table: torch.Tensor) -> Restricted:
        """Return the parts of the numbers on the device."""
        sizes = [self.rows * PARAMETERS, self.changes, self.changes, self.own, self.own]
        parameters, *adjusted, masks = numbers.split([*sizes, len(numbers) - sum(sizes)])
        words = mask_words(table.shape[-1])
        return Restricted(parameters.view(-1, PARAMETERS), masks.view(-1, words), table, *adjusted)


def is_restricted(sequence: Sequence) -> bool:
    return sequence.mask is not None or sequence.params.is_restricted


def mask_words(vocabulary: int) -> int:
    """Return the number of int32 words of a mask."""
    return -(-vocabulary // 32)


class _Packing:
    """Collects the restricted rows of a step."""

    def __init__(self, adjustments: Adjustments) -> None:
        self._adjustments = adjustments
        self._mask_bytes = 4 * mask_words(adjustments.table.shape[-1])
        self._parameters, self._masks = array("i"), array("i")
        self._addresses, self._values = array("i"), array("f")
        self._own_tokens, self._own_values = array("i"), array("f")

    def add(self, work: ScheduledTokens, first_row: int, entry: int) -> None:
        """Add the rows of a sequence: after its last token, and after each draft."""
        sequence, adjusted = work.sequence, work.sequence.params.is_adjusted
        if adjusted:
            addresses, values = self._adjustments.changes(sequence, entry)
            self._addresses += addresses
            self._values += values
        masks = self._masks_of(sequence.mask, work.drafts)
        for number in range(1 + len(work.drafts)):
            own = self._add_own(entry, work.drafts[:number]) if adjusted and number else 0
            mask = masks[min(number, len(masks) - 1)]
            self._add_row(first_row + number, mask, sequence.params, entry if adjusted else -1, own)

    def packed(self) -> Packed:
        numbers = self._parameters + self._addresses + _bits(self._values)
        numbers += self._own_tokens + _bits(self._own_values) + self._masks
        return Packed(len(self._parameters) // PARAMETERS, len(self._addresses), len(self._own_tokens), numbers)

    def _add_row(self, row: int, mask: int, params: SamplingParams, adjusted: int, own: int) -> None:
        self._parameters.extend((row, mask, params.top_k, adjusted))
        self._parameters += _bits(array("f", (params.min_p, params.top_p)))
        self._parameters.extend((len(self._own_tokens) - own, own))

    def _add_own(self, entry: int, drafts: Series[int]) -> int:
        """Add what the drafts before a row change; return how many tokens it changes."""
        tokens, values = self._adjustments.with_drafts(entry, drafts)
        self._own_tokens += tokens
        self._own_values += values
        return len(tokens)

    def _masks_of(self, mask: TokenMask | None, drafts: Series[int]) -> list[int]:
        """Return the index of each row's mask, up to the first draft that is not allowed: no row after it counts."""
        if mask is None:
            return [-1]
        numbers = [self._add_mask(mask)]
        for draft in drafts:
            word = self._masks[numbers[-1] * self._mask_bytes // 4 + draft // 32]
            if not word >> draft % 32 & 1:
                break
            mask.accept(draft)
            numbers.append(self._add_mask(mask))
        if len(numbers) > 1:
            mask.rollback(len(numbers) - 1)
        return numbers

    def _add_mask(self, mask: TokenMask) -> int:
        self._masks.frombytes(mask.allowed()[: self._mask_bytes].ljust(self._mask_bytes, b"\0"))
        return len(self._masks) * 4 // self._mask_bytes - 1


def restrictions(works: Series[ScheduledTokens], entries: Series[int], adjustments: Adjustments) -> Packed:
    """Return the restricted rows of the works, which all sample. Each row has the entry of its sequence.

    A sequence that is gone needs no token, and its mask may have ended.
    """
    packing, row = _Packing(adjustments), 0
    for work in works:
        if not work.sequence.gone and is_restricted(work.sequence):
            packing.add(work, row, entries[row])
        row += 1 + len(work.drafts)
    return packing.packed()


def _bits(values: array[float]) -> array[int]:
    """Return the bits of f32 numbers."""
    return array("i", values.tobytes())


def draw(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Return the most likely token of each row at temperature 0, otherwise a sample from its softmax; [rows].

    logits [rows, vocabulary] f32, temperatures [rows] f32, seeds [rows] int64 from `row_seed`.
    """
    return noised(logits, temperatures, seeds).argmax(-1)


def noised(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor, first_token: int = 0) -> torch.Tensor:
    """Return the scores whose highest one is drawn. first_token: the token of the first logit."""
    warm = temperatures[:, None]
    scores = logits / warm.clamp_min(COLDEST) + gumbel(seeds, logits.shape[-1], first_token)
    return torch.where(warm > 0, scores, logits)


def redraw(
    tokens: torch.Tensor,
    logits: torch.Tensor,
    temperatures: torch.Tensor,
    seeds: torch.Tensor,
    restricted: Restricted,
) -> None:
    """Sample the restricted rows again and replace their tokens."""
    restricted.table.view(torch.int32).view(-1).index_copy_(0, restricted.addresses.long(), restricted.values)
    rows, masks, top_ks, entries = restricted.parameters[:, :4].long().unbind(-1)
    min_ps, top_ps = restricted.parameters[:, 4:6].contiguous().view(torch.float32).unbind(-1)
    left, warmth = logits[rows], temperatures[rows]
    left[entries >= 0] += _added(restricted, entries)[entries >= 0]
    masked = masks >= 0
    if masked.any():
        left[masked] = _masked(left[masked], restricted.masks[masks[masked]])
    for row in ((warmth > 0) & ((top_ps < 1) | (top_ks > 0) | (min_ps > 0))).nonzero()[:, 0].tolist():
        _narrow(left[row], warmth[row], top_ks[row].item(), min_ps[row].item(), top_ps[row].item())
    tokens[rows] = draw(left, warmth, seeds[rows])


def _added(restricted: Restricted, entries: torch.Tensor) -> torch.Tensor:
    """Return what is added to the logits of each restricted row with an entry; any numbers for the others."""
    added = restricted.table[entries]
    values = restricted.own_values.view(torch.float32)
    for row, (first, count) in enumerate(restricted.parameters[:, 6:].tolist()):
        added[row, restricted.own_tokens[first : first + count].long()] = values[first : first + count]
    return added


def _masked(logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    bits = masks[:, :, None] >> torch.arange(32, dtype=torch.int32, device=logits.device) & 1
    return logits.masked_fill(bits.flatten(1)[:, : logits.shape[-1]] == 0, -torch.inf)


def _narrow(logits: torch.Tensor, temperature: torch.Tensor, top_k: float, min_p: float, top_p: float) -> None:
    """Keep, in place, the tokens of a row that min_p, then top_k, then top_p of the remaining probability keep.

    Of equally likely tokens, the first are kept. The most likely token always is.
    """
    for size in dict.fromkeys((min(PREFILTER, len(logits)), len(logits))):
        ordered = logits.topk(size).values
        last, kept = _last_kept(logits, ordered, temperature, int(top_k), min_p, top_p)
        if kept < size:
            break
    value = ordered[last]
    ties = logits == value
    spare = kept - (ordered > value).sum()
    logits.masked_fill_((logits < value) | (ties & (ties.cumsum(0) > spare)), -torch.inf)


def _last_kept(
    logits: torch.Tensor, ordered: torch.Tensor, temperature: torch.Tensor, top_k: int, min_p: float, top_p: float
) -> tuple[int, int]:
    """Return the index of the last kept token among the ordered ones, and how many are kept.

    As many as there are ordered ones: more may have to be looked at.
    """
    warm, size = temperature.clamp_min(COLDEST), len(ordered)
    left = size if min_p <= 0 else int((ordered >= ordered[0] + warm * math.log(min_p)).sum())
    left = max(1, min(left, top_k or size))
    shares = ((ordered - ordered[0]) / warm).exp().double()
    if top_p >= 1 or (left == size < len(logits) and (top_k or min_p > 0)):
        return left - 1, left
    unrestricted = not top_k and min_p <= 0
    total = ((logits - ordered[0]) / warm).exp().double().sum() if unrestricted else shares[:left].sum()
    before = shares[:left].cumsum(0) - shares[:left]
    kept = max(1, int((before < top_p * total).sum()))
    return kept - 1, kept


def report(logits: torch.Tensor, tokens: torch.Tensor, works: Series[ScheduledTokens]) -> Report | None:
    """Compute log probabilities; None if no sequence requests them."""
    wanted = [work.sequence.params.top_logprobs for work in works]
    if all(most is None for most in wanted):
        return None
    shares = logits.log_softmax(-1)
    values, ids = shares.topk(max(most or 0 for most in wanted), dim=-1)
    return Report(shares.gather(-1, tokens[:, None])[:, 0], ids, values)


def sampled(tokens: torch.Tensor, made: Report | None, works: Series[ScheduledTokens]) -> list[Sampled]:
    """Combine the tokens and log probabilities of all rows; the tensors are on the host."""
    if made is None:
        return [Sampled(token) for token in tokens.tolist()]
    samples = []
    wanted = [work.sequence.params.top_logprobs for work in works for _ in range(1 + len(work.drafts))]
    for row, (most, token) in enumerate(zip(wanted, tokens.tolist(), strict=True)):
        if most is None:
            samples.append(Sampled(token))
        else:
            top = tuple(zip(made.ids[row, :most].tolist(), made.values[row, :most].tolist(), strict=True))
            samples.append(Sampled(token, made.chosen[row].item(), top))
    return samples


def seed_base(seed: int) -> int:
    """Hash a seed to 32 bits."""
    return mix(seed & WORD) ^ (seed >> 32 & WORD)


def row_seed[Bits: (int, torch.Tensor)](base: Bits, position: Bits) -> Bits:
    """Hash the `seed_base` of a seed and a position in a sequence to 32 bits."""
    return mix(base + mix(position ^ GOLDEN) & WORD)


def signed(word: int) -> int:
    """Return the int32 with the bits of a 32-bit word."""
    return word - (word >> 31 << 32)


def gumbel(seeds: torch.Tensor, vocabulary: int, first_token: int = 0) -> torch.Tensor:
    """Return Gumbel noise [seeds, vocabulary]: the argmax of logits plus noise is a sample from their softmax."""
    tokens = torch.arange(first_token, first_token + vocabulary, device=seeds.device)
    return noise(mix(mix(tokens)[None, :] ^ seeds[:, None]))


def noise(bits: torch.Tensor) -> torch.Tensor:
    """Convert 32 random bits, read as a fraction of their range, to Gumbel noise that is exceeded with that
    probability.

    The resolution is highest for high values: among 200,000 tokens many are high, and an unlikely token needs the
    highest. Every value is finite.
    """
    share = (bits.float() * 2.0**-32).clamp(2.0**-33, 1 - 2.0**-24)
    near = share * (1 + share * (1 / 2 + share * (1 / 3 + share / 4)))  # a series for -log(1 - share)
    return -torch.log(torch.where(share < 1 / 32, near, -torch.log(1 - share)))


def mix[Bits: (int, torch.Tensor)](bits: Bits) -> Bits:
    """Mix 32 bits (the hash lowbias32); in int64 tensors, overflow does not affect the lower half."""
    bits = (bits ^ bits >> 16) * 0x7FEB352D & WORD
    bits = (bits ^ bits >> 15) * 0x846CA68B & WORD
    return bits ^ bits >> 16
