"""Logits to tokens. Every draw is a function of seed, place and token: the rest of the batch cannot change it."""

from collections.abc import Sequence as Series

import torch

from .sequence import Sampled, Sequence

WORD = 0xFFFFFFFF
GOLDEN = 0x9E3779B9


def sample(logits: torch.Tensor, sequences: Series[Sequence]) -> list[Sampled]:
    """logits [sequences, vocabulary] f32: the next token of each."""
    allowed = _masked(logits, sequences)
    tokens = choose(allowed, sequences).tolist()
    if all(sequence.params.top_logprobs is None for sequence in sequences):
        return [Sampled(token) for token in tokens]
    return _reported(logits, sequences, tokens)


def choose(logits: torch.Tensor, sequences: Series[Sequence]) -> torch.Tensor:
    """The likeliest token at temperature 0, else a draw from what top_p leaves."""
    temperatures = [sequence.params.temperature for sequence in sequences]
    if not any(temperatures):
        return logits.argmax(-1)
    warm = torch.tensor(temperatures, device=logits.device)[:, None]
    scaled = logits / warm.clamp_min(1e-5)
    if any(sequence.params.top_p < 1 for sequence in sequences):
        scaled = _nucleus(scaled, torch.tensor([sequence.params.top_p for sequence in sequences], device=logits.device))
    noise = gumbel([noise_key(each.params.seed, len(each.tokens)) for each in sequences], logits)
    return torch.where(warm > 0, scaled + noise, logits).argmax(-1)


def _nucleus(scaled: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Leaves the fewest tokens whose probabilities reach top_p, and never none."""
    ordered, places = scaled.sort(dim=-1, descending=True)
    shares = ordered.softmax(-1)
    before = shares.cumsum(-1) - shares
    ordered = ordered.masked_fill((before >= top_p[:, None]) & (top_p[:, None] < 1), -torch.inf)
    ordered[:, 0] = scaled.amax(-1)
    return torch.empty_like(scaled).scatter_(-1, places, ordered)


def noise_key(seed: int, place: int) -> int:
    """32 bits that stand for a seed and a place in a sequence."""
    return mix((mix(seed & WORD) ^ (seed >> 32 & WORD)) + mix(place ^ GOLDEN) & WORD)


def gumbel(keys: list[int], like: torch.Tensor) -> torch.Tensor:
    """Noise [keys, vocabulary]: the token where logits plus noise are highest is drawn with its softmax probability."""
    key = torch.tensor(keys, device=like.device)[:, None]
    token = torch.arange(like.shape[-1], device=like.device)[None, :]
    bits = mix_tensor((token * GOLDEN + key) & WORD)
    uniform = ((bits >> 8).float() + 0.5) * 2.0**-24
    return -torch.log(-torch.log(uniform))


def mix(x: int) -> int:
    """Scatters 32 bits."""
    x = (x ^ x >> 16) * 0x7FEB352D & WORD
    x = (x ^ x >> 15) * 0x846CA68B & WORD
    return x ^ x >> 16


def mix_tensor(x: torch.Tensor) -> torch.Tensor:
    """mix() of each element; int64, whose products wrap without harm to the low 32 bits."""
    x = (x ^ x >> 16) * 0x7FEB352D & WORD
    x = (x ^ x >> 15) * 0x846CA68B & WORD
    return x ^ x >> 16


def _masked(logits: torch.Tensor, sequences: Series[Sequence]) -> torch.Tensor:
    bound = [(row, sequence.mask) for row, sequence in enumerate(sequences) if sequence.mask is not None]
    if not bound:
        return logits
    made = logits.clone()
    for row, mask in bound:
        packed = torch.frombuffer(bytearray(mask.allowed()), dtype=torch.uint8).to(logits.device)
        bits = (packed[:, None] >> torch.arange(8, dtype=torch.uint8, device=logits.device)) & 1
        made[row].masked_fill_(bits.flatten()[: logits.shape[-1]] == 0, -torch.inf)
    return made


def _reported(logits: torch.Tensor, sequences: Series[Sequence], tokens: list[int]) -> list[Sampled]:
    """Log probabilities are the model's own: before temperature, top_p and masks."""
    shares = logits.log_softmax(-1)
    most = max(sequence.params.top_logprobs or 0 for sequence in sequences)
    values, ids = shares.topk(most, dim=-1)
    chosen = shares.gather(-1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0].tolist()
    made = []
    for row, (sequence, token) in enumerate(zip(sequences, tokens, strict=True)):
        wanted = sequence.params.top_logprobs
        if wanted is None:
            made.append(Sampled(token))
        else:
            top = tuple(zip(ids[row, :wanted].tolist(), values[row, :wanted].tolist(), strict=True))
            made.append(Sampled(token, chosen[row], top))
    return made
