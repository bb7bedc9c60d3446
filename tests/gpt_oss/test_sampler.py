"""Draws follow the probabilities of the allowed tokens, and are the same for the same seed."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from llama_stack_gpt_oss.engine.adjustments import Adjustments
from llama_stack_gpt_oss.engine.sampler import (
    PREFILTER,
    draw,
    gumbel,
    mix,
    noise,
    redraw,
    report,
    restrictions,
    row_seed,
    sampled,
    seed_base,
)
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sampled, Sequence

from .support.engines import CPU

WARM = SamplingParams(max_tokens=10, temperature=1.0)
SHARES = torch.tensor([0.5, 0.3, 0.15, 0.05])
DRAWS = 4000


class Mask:
    """A mask that allows the given tokens."""

    failed = False

    def __init__(self, *tokens: int) -> None:
        self.bits = bytearray(1)
        for token in tokens:
            self.bits[0] |= 1 << token

    def allowed(self) -> bytes:
        return bytes(self.bits)

    def accept(self, token: int) -> None:
        assert self.bits[0] >> token & 1

    def rollback(self, count: int) -> None:
        raise AssertionError(count)


def sequence(params: SamplingParams, mask: Mask | None = None) -> Sequence:
    return Sequence("x", [1, 2, 3], 3, params, 0, mask=mask)


def sample(logits: torch.Tensor, sequences: list[Sequence], adjustments: Adjustments | None = None) -> list[Sampled]:
    """Draw a token for each row, with all parameters of its sequence."""
    temperatures = torch.tensor([each.params.temperature for each in sequences])
    seeds = torch.tensor([row_seed(seed_base(each.params.seed), len(each.tokens)) for each in sequences])
    tokens = draw(logits, temperatures, seeds)
    adjustments = adjustments or Adjustments(len(sequences), logits.shape[-1], CPU)
    works = [ScheduledTokens(each, len(each.tokens) - 1, 1) for each in sequences]
    packed = restrictions(works, range(len(works)), adjustments)
    if packed.rows:
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        redraw(tokens, logits, temperatures, seeds, packed.sent(numbers, adjustments.table))
    return sampled(tokens, report(logits, tokens, works), works)


def drawn(params: SamplingParams, mask: Mask | None = None) -> Counter[int]:
    """Count the tokens that DRAWS seeds draw from SHARES."""
    sequences = [sequence(replace(params, seed=seed), mask) for seed in range(DRAWS)]
    logits = SHARES.log().expand(DRAWS, -1).contiguous()
    return Counter(each.token for each in sample(logits, sequences))


def close(found: Counter[int], expected: list[float]) -> bool:
    return all(abs(found[token] / DRAWS - share) < 0.03 for token, share in enumerate(expected))


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (WARM, [0.5, 0.3, 0.15, 0.05]),
        (replace(WARM, temperature=0.5), [0.25 / 0.365, 0.09 / 0.365, 0.0225 / 0.365, 0.0025 / 0.365]),
        (replace(WARM, top_p=0.8), [0.625, 0.375, 0, 0]),
        (replace(WARM, top_p=0.81), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (replace(WARM, top_p=0.0), [1, 0, 0, 0]),
        (replace(WARM, top_k=2), [0.625, 0.375, 0, 0]),
        (replace(WARM, top_k=3, top_p=0.6), [0.625, 0.375, 0, 0]),
        (replace(WARM, min_p=0.25), [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        (replace(WARM, min_p=0.5, top_p=0.7), [0.625, 0.375, 0, 0]),
        (replace(WARM, temperature=0.0), [1, 0, 0, 0]),
    ],
)
def test_token_frequencies_match_parameters(params: SamplingParams, expected: list[float]) -> None:
    assert close(drawn(params), expected)


def test_each_place_of_sequence_draws_independently() -> None:
    sequences = [Sequence("x", [0] * place, place, replace(WARM, seed=1), 0) for place in range(1, DRAWS + 1)]
    found = sample(SHARES.log().expand(DRAWS, -1).contiguous(), sequences)
    assert close(Counter(each.token for each in found), SHARES.tolist())


def test_mask_keeps_proportions_of_allowed_tokens() -> None:
    found = drawn(WARM, Mask(1, 3))
    assert close(found, [0, 0.3 / 0.35, 0, 0.05 / 0.35])
    assert set(drawn(replace(WARM, temperature=0.0), Mask(2))) == {2}


@pytest.mark.parametrize(
    ("params", "added"),
    [
        (replace(WARM, frequency_penalty=0.5), [-1.0, 0, -0.5, 0]),
        (replace(WARM, presence_penalty=1.5), [-1.5, 0, -1.5, 0]),
        (replace(WARM, frequency_penalty=-0.5, presence_penalty=0.25), [0.75, 0, 0.25, 0]),
        (replace(WARM, frequency_penalty=2.0, unpenalised=frozenset({0})), [0, 0, -2.0, 0]),
        (replace(WARM, logit_bias=((3, 2.0), (0, -100.0))), [-100.0, 0, 0, 2.0]),
        (replace(WARM, logit_bias=((0, 1.0), (1, 1.0)), presence_penalty=0.5), [0.5, 1.0, -0.5, 0]),
    ],
)
def test_penalties_of_generated_tokens_and_biases_are_added_to_logits(
    params: SamplingParams, added: list[float]
) -> None:
    """The prompt has token 1; tokens 0 and 2 are generated, 0 twice."""
    sequences = [
        Sequence("x", [1, 0, 2, 0], 1, replace(params, seed=seed, temperature=0.8), 0) for seed in range(DRAWS)
    ]
    logits = SHARES.log().expand(DRAWS, -1).contiguous()
    found = Counter(each.token for each in sample(logits, sequences))
    assert close(found, ((SHARES.log() + torch.tensor(added)) / 0.8).softmax(-1).tolist())


def test_bias_does_not_allow_masked_token_and_counts_at_temperature_zero() -> None:
    best = replace(WARM, temperature=0.0, logit_bias=((3, 100.0),))
    assert set(drawn(best)) == {3}
    assert set(drawn(best, Mask(1, 2))) == {1}


def test_only_changed_adjustments_are_sent() -> None:
    """All of them for a new sequence, then one for each generated token that is penalised."""
    adjustments = Adjustments(3, 8, CPU)
    params = replace(WARM, frequency_penalty=1.0, logit_bias=((5, 2.0), (1, 3.0)), unpenalised=frozenset({7}))
    one, other = (Sequence(f"{token}", [0, 1, 1, token], 2, params, 0) for token in (4, 6))

    def changes(of: Sequence) -> dict[int, float]:
        addresses, values = adjustments.changes(of, 1)
        adjustments.table.view(-1)[list(addresses)] = torch.tensor(list(values))
        return dict(zip(addresses, values, strict=True))

    assert changes(one) == {8 + 5: 2.0, 8 + 1: 2.0, 8 + 4: -1.0}
    one.tokens += [4, 7]
    assert changes(one) == {8 + 4: -2.0}
    assert changes(one) == {}
    one.tokens.append(5)
    assert changes(one) == {8 + 5: 1.0}
    assert changes(other) == {8 + 5: 2.0, 8 + 1: 2.0, 8 + 6: -1.0}
    assert adjustments.table.tolist() == [[0.0] * 8, [0, 2, 0, 0, 0, 2, -1, 0], [0.0] * 8]


def test_each_row_uses_its_own_parameters() -> None:
    rows = [replace(WARM, temperature=0.0), replace(WARM, top_p=0.01), WARM, replace(WARM, temperature=0.0)]
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    together = [each.token for each in sample(logits, [sequence(params) for params in rows])]
    apart = [sample(logits[n : n + 1], [sequence(params)])[0].token for n, params in enumerate(rows)]
    assert together == apart
    best = logits.argmax(-1).tolist()
    assert [together[0], together[1], together[3]] == [best[0], best[1], best[3]]


def sorted_nucleus(logits: torch.Tensor, temperature: float, top_p: float) -> torch.Tensor:
    """Return the tokens that top_p keeps, by a sort of the whole vocabulary."""
    ordered, places = logits.double().sort(descending=True, stable=True)
    shares = (ordered / temperature).softmax(-1)
    kept = (shares.cumsum(-1) - shares) < top_p
    kept[0] = True
    return places[kept]


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("top_p", [0.1, 0.9, 0.999])
def test_top_p_draws_same_tokens_as_with_sorted_vocabulary(spread: float, top_p: float) -> None:
    """With a small spread, more tokens are kept than the prefilter has."""
    size = 20 * PREFILTER
    logits = torch.randn(3, size, generator=torch.Generator().manual_seed(5)) * spread
    params = [replace(WARM, temperature=0.8, top_p=top_p, seed=seed) for seed in range(3)]
    found = [each.token for each in sample(logits, [sequence(each) for each in params])]
    left = torch.full_like(logits, -torch.inf)
    for row in range(3):
        kept = sorted_nucleus(logits[row], 0.8, top_p)
        left[row, kept] = logits[row, kept]
    seeds = torch.tensor([row_seed(seed_base(seed), 3) for seed in range(3)])
    assert found == draw(left, torch.full((3,), 0.8), seeds).tolist()


def test_first_of_equal_tokens_are_kept() -> None:
    same = torch.zeros(1, 8)
    found = {sample(same, [sequence(replace(WARM, top_p=0.4, seed=seed))])[0].token for seed in range(200)}
    assert found == {0, 1, 2, 3}
    found = {sample(same, [sequence(replace(WARM, top_k=2, seed=seed))])[0].token for seed in range(100)}
    assert found == {0, 1}


def test_logprobs_are_those_before_temperature_and_mask() -> None:
    params = replace(WARM, temperature=0.0, top_logprobs=2)
    (found,) = sample(SHARES.log()[None], [sequence(params, Mask(2))])
    assert found.token == 2
    assert found.logprob == pytest.approx(SHARES[2].log().item())
    assert [token for token, _ in found.top] == [0, 1]
    (without,) = sample(SHARES.log()[None], [sequence(WARM)])
    assert (without.logprob, without.top) == (None, ())


def test_noise_depends_on_seed_place_and_token_only() -> None:
    one, again, other = (gumbel(torch.tensor([row_seed(seed_base(seed), 5)]), 64) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(gumbel(torch.tensor([row_seed(seed_base(1), 5)]), 32), one[:, :32])
    assert row_seed(seed_base(1), 5) != row_seed(seed_base(1), 6) != row_seed(seed_base(1 << 33), 5)


def test_draws_follow_softmax() -> None:
    """Chi-square test over a thousand seeds with 32 places each: one set of seeds in a hundred exceeds 21.67."""
    logits = torch.tensor([2.0, 1.5, 0.0, -1.0, 0.5, -3.0, 1.0, 0.2, -0.5, -5.0])
    seeds = torch.tensor([row_seed(seed_base(seed), place) for seed in range(1000) for place in range(32)])
    tokens = draw(logits.expand(len(seeds), -1), torch.full(seeds.shape, 0.8), seeds)
    expected = (logits / 0.8).softmax(-1) * len(seeds)
    assert ((tokens.bincount(minlength=10) - expected).square() / expected).sum() < 21.67


def test_noise_is_finite_and_monotonic() -> None:
    bits = torch.tensor([0, 1, 2, 100, 1 << 26, (1 << 27) - 1, 1 << 27, 1 << 31, (1 << 32) - 2000, (1 << 32) - 1])
    found = noise(bits)
    assert found.isfinite().all()
    assert torch.equal(found, found.sort(descending=True).values)
    assert found[:4].unique().numel() == 4
    exact = -(-(1 - bits[1:-2].double() / 2**32).log()).log()
    assert (found[1:-2] - exact).abs().max() < 2e-6


def test_unlikely_tokens_stay_unlikely_in_whole_vocabulary() -> None:
    logits = torch.full((1, 201_088), -30.0).index_fill(1, torch.tensor([7]), 0.0)
    seeds = [torch.tensor([row_seed(seed_base(0), place)]) for place in range(50, 100)]
    assert {draw(logits, torch.ones(1), seed).item() for seed in seeds} == {7}


def test_numbers_and_tensors_have_equal_hashes() -> None:
    numbers = [0, 1, 2, 77, 0xFFFFFFFF, 0x80000000, 123456789]
    assert mix(torch.tensor(numbers)).tolist() == [mix(number) for number in numbers]
