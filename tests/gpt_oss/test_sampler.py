"""Draws: by their probabilities, from what may come, and the same again for the same seed."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from llama_stack_gpt_oss.engine.sampler import gumbel, mix, mix_tensor, noise_key, sample
from llama_stack_gpt_oss.engine.sequence import Params, Sequence

WARM = Params(max_tokens=10, temperature=1.0)
SHARES = torch.tensor([0.5, 0.3, 0.15, 0.05])
DRAWS = 4000


class Mask:
    """Allows the tokens it is made with."""

    def __init__(self, *tokens: int) -> None:
        self.bits = bytearray(1)
        for token in tokens:
            self.bits[0] |= 1 << token

    def allowed(self) -> bytes:
        return bytes(self.bits)

    def accept(self, token: int) -> None:
        assert self.bits[0] >> token & 1


def sequence(params: Params, mask: Mask | None = None) -> Sequence:
    return Sequence("x", [1, 2, 3], 3, params, 0, mask=mask)


def drawn(params: Params, mask: Mask | None = None) -> Counter[int]:
    """What as many seeds draw from SHARES."""
    sequences = [sequence(replace(params, seed=seed), mask) for seed in range(DRAWS)]
    logits = SHARES.log().expand(DRAWS, -1).contiguous()
    return Counter(sampled.token for sampled in sample(logits, sequences))


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
        (replace(WARM, temperature=0.0), [1, 0, 0, 0]),
    ],
)
def test_tokens_come_as_often_as_they_should(params: Params, expected: list[float]) -> None:
    assert close(drawn(params), expected)


def test_every_place_of_a_sequence_draws_anew() -> None:
    sequences = [Sequence("x", [0] * place, place, replace(WARM, seed=1), 0) for place in range(1, DRAWS + 1)]
    found = sample(SHARES.log().expand(DRAWS, -1).contiguous(), sequences)
    assert close(Counter(each.token for each in found), SHARES.tolist())


def test_a_mask_leaves_the_others_their_proportions() -> None:
    found = drawn(WARM, Mask(1, 3))
    assert close(found, [0, 0.3 / 0.35, 0, 0.05 / 0.35])
    assert set(drawn(replace(WARM, temperature=0.0), Mask(2))) == {2}


def test_each_row_keeps_to_its_own_settings() -> None:
    rows = [replace(WARM, temperature=0.0), replace(WARM, top_p=0.01), WARM, replace(WARM, temperature=0.0)]
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    together = [each.token for each in sample(logits, [sequence(params) for params in rows])]
    apart = [sample(logits[n : n + 1], [sequence(params)])[0].token for n, params in enumerate(rows)]
    assert together == apart
    best = logits.argmax(-1).tolist()
    assert [together[0], together[1], together[3]] == [best[0], best[1], best[3]]


def test_log_probabilities_are_those_before_temperature_and_mask() -> None:
    params = replace(WARM, temperature=0.0, top_logprobs=2)
    (found,) = sample(SHARES.log()[None], [sequence(params, Mask(2))])
    assert found.token == 2
    assert found.logprob == pytest.approx(SHARES[2].log().item())
    assert [token for token, _ in found.top] == [0, 1]
    (without,) = sample(SHARES.log()[None], [sequence(WARM)])
    assert (without.logprob, without.top) == (None, ())


def test_noise_is_a_function_of_seed_place_and_token() -> None:
    like = torch.zeros(1, 64)
    one, again, other = (gumbel([noise_key(seed, 5)], like) for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert torch.equal(gumbel([noise_key(1, 5)], torch.zeros(1, 32)), one[:, :32])
    assert noise_key(1, 5) != noise_key(1, 6) != noise_key(1 << 33, 5)


def test_numbers_and_tensors_are_scattered_alike() -> None:
    numbers = [0, 1, 2, 77, 0xFFFFFFFF, 0x80000000, 123456789]
    assert mix_tensor(torch.tensor(numbers)).tolist() == [mix(number) for number in numbers]
