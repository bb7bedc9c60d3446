"""Sampling. Each result depends only on seed, position and logits, never on the rest of the batch.

A row with only a temperature is sampled where its logits are computed, by `draw` or a kernel with the same result, and
its logits are not kept. Masks and top_p restrict kept logits, and the row is sampled again.
"""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from .sequence import Sampled, Sequence

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
COLDEST = 1e-5  # lowest temperature above 0


@dataclass(frozen=True, slots=True)
class Report:
    """The log probability of each sampled token [wanted], and the most likely tokens [wanted, most] with theirs.

    They are the model's own: before temperature, top_p and masks.
    """

    chosen: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


def wants_logits(sequence: Sequence) -> bool:
    """Whether the sequence's logits must be kept."""
    return sequence.params.top_logprobs is not None or _is_narrowed(sequence)


def _is_narrowed(sequence: Sequence) -> bool:
    params = sequence.params
    return sequence.mask is not None or (params.temperature > 0 and params.top_p < 1)


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
    sequences: Series[Sequence],
) -> None:
    """Sample the rows with a mask or a top_p again and replace their tokens."""
    narrowed = [row for row, sequence in enumerate(sequences) if _is_narrowed(sequence)]
    if not narrowed:
        return
    rows = torch.tensor(narrowed, device=logits.device)
    left, warmth = logits[rows], temperatures[rows]
    for place, row in enumerate(narrowed):
        mask = sequences[row].mask
        if mask is not None:
            _narrow_by_mask(left[place], mask.allowed())
    top_ps = [sequences[row].params.top_p for row in narrowed]
    if min(top_ps) < 1:
        left = _nucleus(left, warmth, torch.tensor(top_ps, device=logits.device))
    tokens[rows] = draw(left, warmth, seeds[rows])


def _narrow_by_mask(logits: torch.Tensor, allowed: bytes) -> None:
    packed = torch.frombuffer(bytearray(allowed), dtype=torch.uint8).to(logits.device)
    bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=logits.device)) & 1
    logits.masked_fill_(bits.flatten()[: len(logits)] == 0, -torch.inf)


def _nucleus(logits: torch.Tensor, temperatures: torch.Tensor, top_ps: torch.Tensor) -> torch.Tensor:
    """Keep the fewest tokens whose probabilities add up to top_p, at least one."""
    ordered, places = logits.sort(dim=-1, descending=True)
    shares = (ordered / temperatures[:, None].clamp_min(COLDEST)).softmax(-1)
    before = shares.cumsum(-1) - shares
    gone = (before >= top_ps[:, None]) & (top_ps[:, None] < 1)
    gone[:, 0] = False
    return torch.empty_like(logits).scatter_(-1, places, ordered.masked_fill(gone, -torch.inf))


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


def row_seed(seed: int, place: int) -> int:
    """Hash a seed and a position in a sequence to 32 bits."""
    return mix((mix(seed & WORD) ^ (seed >> 32 & WORD)) + mix(place ^ GOLDEN) & WORD)


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
