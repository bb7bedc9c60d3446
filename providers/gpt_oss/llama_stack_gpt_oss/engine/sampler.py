"""Logits to tokens. Every draw is a function of seed, place and token: the rest of the batch cannot change it.

A row that asks for no more than a temperature is drawn where its logits are made, by `draw` or by a kernel that agrees
with it, and its logits are kept nowhere. Masks and top_p narrow logits that were kept, and the row is drawn again.
"""

from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from .sequence import Sampled, Sequence

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9
COLDEST = 1e-5  # the lowest temperature above 0


@dataclass(frozen=True, slots=True)
class Report:
    """Of each drawn token its log probability [wanted], and the likeliest others [wanted, most] with theirs.

    They are the model's own: before temperature, top_p and masks.
    """

    chosen: torch.Tensor
    ids: torch.Tensor
    values: torch.Tensor


def wants_logits(sequence: Sequence) -> bool:
    """Whether more than a draw is made of its row."""
    return sequence.params.top_logprobs is not None or _is_narrowed(sequence)


def _is_narrowed(sequence: Sequence) -> bool:
    params = sequence.params
    return sequence.mask is not None or (params.temperature > 0 and params.top_p < 1)


def draw(logits: torch.Tensor, temperatures: torch.Tensor, seeds: torch.Tensor) -> torch.Tensor:
    """The likeliest token of each row at temperature 0, else one by its softmax probability; [rows].

    logits [rows, vocabulary] f32, temperatures [rows] f32, seeds [rows] int64: `row_seed` of each.
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
    """Replaces the tokens of the rows that have a mask or a top_p."""
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
    """Leaves the fewest tokens whose probabilities reach top_p, and never none."""
    ordered, places = logits.sort(dim=-1, descending=True)
    shares = (ordered / temperatures[:, None].clamp_min(COLDEST)).softmax(-1)
    before = shares.cumsum(-1) - shares
    gone = (before >= top_ps[:, None]) & (top_ps[:, None] < 1)
    gone[:, 0] = False
    return torch.empty_like(logits).scatter_(-1, places, ordered.masked_fill(gone, -torch.inf))


def report(logits: torch.Tensor, tokens: torch.Tensor, sequences: Series[Sequence]) -> Report | None:
    """None where no sequence asks for log probabilities."""
    wanted = [sequence.params.top_logprobs for sequence in sequences]
    if all(most is None for most in wanted):
        return None
    shares = logits.log_softmax(-1)
    values, ids = shares.topk(max(most or 0 for most in wanted), dim=-1)
    return Report(shares.gather(-1, tokens[:, None])[:, 0], ids, values)


def sampled(tokens: torch.Tensor, made: Report | None, sequences: Series[Sequence]) -> list[Sampled]:
    """What each sequence hears of its token; the tensors are on the host by now."""
    if made is None:
        return [Sampled(token) for token in tokens.tolist()]
    told = []
    for row, (sequence, token) in enumerate(zip(sequences, tokens.tolist(), strict=True)):
        most = sequence.params.top_logprobs
        if most is None:
            told.append(Sampled(token))
        else:
            top = tuple(zip(made.ids[row, :most].tolist(), made.values[row, :most].tolist(), strict=True))
            told.append(Sampled(token, made.chosen[row].item(), top))
    return told


def row_seed(seed: int, place: int) -> int:
    """32 bits that stand for a seed and a place in a sequence."""
    return mix((mix(seed & WORD) ^ (seed >> 32 & WORD)) + mix(place ^ GOLDEN) & WORD)


def gumbel(seeds: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Noise [seeds, vocabulary]: where logits plus noise are highest is a token drawn by its softmax probability."""
    tokens = torch.arange(vocabulary, device=seeds.device)
    return noise(mix(mix(tokens)[None, :] ^ seeds[:, None]))


def noise(bits: torch.Tensor) -> torch.Tensor:
    """32 bits, read as a share of their range, to a value that so large a share of all draws exceeds.

    High values are told apart by all 32 bits: among 200,000 tokens many are high, and an unlikely token needs the
    highest. Every value is finite.
    """
    share = (bits.float() * 2.0**-32).clamp(2.0**-33, 1 - 2.0**-24)
    near = share * (1 + share * (1 / 2 + share * (1 / 3 + share / 4)))  # -log(1 - share) where 1 - share is too coarse
    return -torch.log(torch.where(share < 1 / 32, near, -torch.log(1 - share)))


def mix[Bits: (int, torch.Tensor)](bits: Bits) -> Bits:
    """Scatters 32 bits; in int64 tensors the products wrap without harm to the lower half."""
    bits = (bits ^ bits >> 16) * 0x7FEB352D & WORD
    bits = (bits ^ bits >> 15) * 0x846CA68B & WORD
    return bits ^ bits >> 16
