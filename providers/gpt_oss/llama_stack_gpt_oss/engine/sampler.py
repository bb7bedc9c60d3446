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

from .adjustments import Adjustments, is_adjusted
from .sequence import Sampled, Sequence

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
COLDEST = 1e-5  # lowest temperature above 0
PREFILTER = 1024  # most likely tokens among which the last one that top_p keeps is looked for first
PARAMETERS = 6  # of a restricted row


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

    The parameters are a row's index, the index of its mask or -1, top_k or 0, its row of the table or -1, and the bits
    of min_p and top_p as f32. A mask has a bit for each token, the lowest bit of a word first.
    table [entries, vocabulary] f32: what is added to logits, after the values' bits are written to its addresses.
    """

    parameters: torch.Tensor
    masks: torch.Tensor
    table: torch.Tensor
    addresses: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """The parts of `Restricted` on the host, one after the other, and their sizes."""

    rows: int
    changes: int
    numbers: array[int]

    def sent(self, numbers: torch.Tensor, table: torch.Tensor) -> Restricted:
        """Return the parts of the numbers on the device."""
        sizes = [self.rows * PARAMETERS, self.changes, self.changes]
        parameters, addresses, values, masks = numbers.split([*sizes, len(numbers) - sum(sizes)])
        words = mask_words(table.shape[-1])
        return Restricted(parameters.view(-1, PARAMETERS), masks.view(-1, words), table, addresses, values)


def wants_logits(sequence: Sequence) -> bool:
    """Whether the sequence's logits must be kept."""
    return sequence.params.top_logprobs is not None or is_restricted(sequence)


def is_restricted(sequence: Sequence) -> bool:
    params = sequence.params
    narrow = params.temperature > 0 and (params.top_p < 1 or params.top_k > 0 or params.min_p > 0)
    return sequence.mask is not None or narrow or is_adjusted(params)


def mask_words(vocabulary: int) -> int:
    """Return the number of int32 words of a mask."""
    return -(-vocabulary // 32)


def restrictions(sequences: Series[Sequence], entries: Series[int], adjustments: Adjustments) -> Packed:
    """Return the restricted rows of the sequences, which have the given entries.

    A sequence that is gone needs no token, and its mask may have ended.
    """
    numbers, addresses, values, masks = array("i"), array("i"), array("f"), array("i")
    size = 4 * mask_words(adjustments.table.shape[-1])
    for row, (sequence, entry) in enumerate(zip(sequences, entries, strict=True)):
        if sequence.gone or not is_restricted(sequence):
            continue
        mask, adjusted, params = -1, -1, sequence.params
        if sequence.mask is not None:
            mask = len(masks) * 4 // size
            masks.frombytes(sequence.mask.allowed()[:size].ljust(size, b"\0"))
        if is_adjusted(params):
            adjusted, changes = entry, adjustments.changes(sequence, entry)
            addresses += changes[0]
            values += changes[1]
        numbers.extend((row, mask, params.top_k, adjusted))
        numbers.frombytes(array("f", (params.min_p, params.top_p)).tobytes())
    bits = array("i", values.tobytes())
    return Packed(len(numbers) // PARAMETERS, len(addresses), numbers + addresses + bits + masks)


def draw(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """Return the most likely token of each row at temperature 0, otherwise a sample from its softmax; [rows].

    logits [rows, vocabulary] f32, temperatures [rows] f32, seeds [rows] int64 from `row_seed`.
    """
    warm = temperatures[:, None]
    noised = logits / warm.clamp_min(COLDEST) + gumbel(seeds, logits.shape[-1])
    return torch.where(warm > 0, noised, logits).argmax(-1)


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
    min_ps, top_ps = restricted.parameters[:, 4:].contiguous().view(torch.float32).unbind(-1)
    left, warmth = logits[rows], temperatures[rows]
    left[entries >= 0] += restricted.table[entries[entries >= 0]]
    masked = masks >= 0
    if masked.any():
        left[masked] = _masked(left[masked], restricted.masks[masks[masked]])
    for row in ((warmth > 0) & ((top_ps < 1) | (top_ks > 0) | (min_ps > 0))).nonzero()[:, 0].tolist():
        _narrow(left[row], warmth[row], top_ks[row].item(), min_ps[row].item(), top_ps[row].item())
    tokens[rows] = draw(left, warmth, seeds[rows])


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
    """Return the place of the last kept token among the ordered ones, and how many are kept.

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


def report(logits: torch.Tensor, tokens: torch.Tensor, sequences: Series[Sequence]) -> Report | None:
    """Compute log probabilities; None if no sequence requests them."""
    wanted = [sequence.params.top_logprobs for sequence in sequences]
    if all(most is None for most in wanted):
        return None
    shares = logits.log_softmax(-1)
    values, ids = shares.topk(max(most or 0 for most in wanted), dim=-1)
    return Report(shares.gather(-1, tokens[:, None])[:, 0], ids, values)


def sampled(tokens: torch.Tensor, made: Report | None, sequences: Series[Sequence]) -> list[Sampled]:
    """Combine tokens and log probabilities for each sequence; the tensors are on the host."""
    if made is None:
        return [Sampled(token) for token in tokens.tolist()]
    samples = []
    for row, (sequence, token) in enumerate(zip(sequences, tokens.tolist(), strict=True)):
        most = sequence.params.top_logprobs
        if most is None:
            samples.append(Sampled(token))
        else:
            top = tuple(zip(made.ids[row, :most].tolist(), made.values[row, :most].tolist(), strict=True))
            samples.append(Sampled(token, made.chosen[row].item(), top))
    return samples


def seed_base(seed: int) -> int:
    """Hash a seed to 32 bits."""
    return mix(seed & WORD) ^ (seed >> 32 & WORD)


def row_seed[Bits: (int, torch.Tensor)](base: Bits, place: Bits) -> Bits:
    """Hash the `seed_base` of a seed and a position in a sequence to 32 bits."""
    return mix(base + mix(place ^ GOLDEN) & WORD)


def signed(word: int) -> int:
    """Return the int32 with the bits of a 32-bit word."""
    return word - (word >> 31 << 32)


def gumbel(seeds: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Return Gumbel noise [seeds, vocabulary]: the argmax of logits plus noise is a sample from their softmax."""
    tokens = torch.arange(vocabulary, device=seeds.device)
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
