"""Answers with drafts have exactly the probabilities of the model: all answers of a tiny vocabulary are enumerated."""

from collections import Counter
from collections.abc import Sequence as Series
from dataclasses import dataclass
from itertools import product

import torch

from llama_stack_gpt_oss.engine.engine import Engine, Request, Update
from llama_stack_gpt_oss.engine.sampler import draw, row_seed, seed_base
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits, ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sampled, Sequence

from .support.engines import drain, engine_over, tokens_of

# The logits of each of four tokens after the last one. The best token has between 39% and 58%.
LOGITS = torch.tensor([[0.0, 1.2, 0.4, -0.3], [1.0, 0.1, -0.5, 0.6], [-0.2, 0.3, 1.5, 0.5], [0.8, -0.4, 0.2, 1.1]])
TOKENS = 3  # of an answer
ANSWERS = 16_000
LIMITS = Limits(sequences=64, step_tokens=512, waiting=0, verified=512)
# Chi-square of 64 answers: an exact sampler exceeds it in one of ten thousand sets of seeds. These seeds are fixed.
LIMIT = 112.0


@dataclass(frozen=True)
class Drawn:
    """A computed step."""

    samples: list[Sampled]

    def sample(self) -> None:
        """Do nothing: it is done."""

    def sampled(self) -> list[Sampled]:
        return self.samples


class MarkovRunner:
    """Samples each token from the row of LOGITS of the token before it, with the engine's own noise.

    shared_noise: all rows of a step have the noise of the first one, which is wrong.
    """

    def __init__(self, shared_noise: bool = False) -> None:
        self._shared_noise = shared_noise

    def start(self, works: Series[ScheduledTokens]) -> Drawn:
        before: list[int] = []
        seeds: list[int] = []
        for work in works:
            assert work.last
            assert work.sequence.unread == 0
            place = len(work.sequence.tokens)
            before += [work.sequence.tokens[-1], *work.drafts]
            for number in range(1 + len(work.drafts)):
                offset = 0 if self._shared_noise else number
                seeds.append(row_seed(seed_base(work.sequence.params.seed), place + offset))
        tokens = draw(LOGITS[before], torch.ones(len(before)), torch.tensor(seeds))
        return Drawn([Sampled(token) for token in tokens.tolist()])


class BestTwice:
    """Drafts the most likely token, and the most likely one after it."""

    waits = True

    def propose(self, sequences: Series[Sequence]) -> list[list[int]]:
        return [self._drafts(sequence) for sequence in sequences]

    def _drafts(self, sequence: Sequence) -> list[int]:
        first = int(LOGITS[sequence.tokens[-1]].argmax())
        return [first, int(LOGITS[first].argmax())][: TOKENS - sequence.generated - 1]

    def verified(self, sequence: Sequence, drafted: int, accepted: int) -> None:
        """Do nothing: it always drafts."""

    def forget(self, sequence: Sequence) -> None:
        """Do nothing: it keeps nothing."""


class TooLenient(Engine):
    """Also accepts a draft in place of which another token was sampled, if that is the second best: a wrong rule."""

    def _verify(self, work: ScheduledTokens, samples: Series[Sampled]) -> "list[Update]":  # type: ignore[override]
        second = int(LOGITS[work.sequence.tokens[-1]].topk(2).indices[1])
        if work.drafts and samples[0].token == second:
            samples = [Sampled(work.drafts[0]), *samples[1:]]
        return list(super()._verify(work, samples))


def chi_square(engine: Engine) -> float:
    """Return the statistic of all answers to one prompt over many seeds."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(0, ANSWERS, LIMITS.sequences):
        names = tuple(f"{seed + number}" for number in range(LIMITS.sequences))
        engine.add(Request(names, [0], SamplingParams(max_tokens=TOKENS, seed=seed)))
        updates = drain(engine)
        counts.update(tuple(tokens_of(updates, name)) for name in names)
    shares = LOGITS.double().softmax(-1)
    statistic = 0.0
    for answer in product(range(len(LOGITS)), repeat=TOKENS):
        share = float(torch.stack([shares[one, two] for one, two in zip((0, *answer), answer, strict=False)]).prod())
        assert share * ANSWERS > 5
        statistic += (counts[answer] - share * ANSWERS) ** 2 / (share * ANSWERS)
    assert counts.total() == ANSWERS
    return statistic


def engine_of(runner: MarkovRunner) -> Engine:
    engine, _ = engine_over(runner, 256, LIMITS, drafter=BestTwice())
    return engine


def test_answers_with_drafts_have_probabilities_of_model() -> None:
    engine = engine_of(MarkovRunner())
    assert chi_square(engine) < LIMIT
    metrics = engine.metrics()
    assert 0.2 < metrics.accepted_tokens / metrics.drafted_tokens < 0.8


def test_rule_that_accepts_too_much_has_other_probabilities() -> None:
    engine = engine_of(MarkovRunner())
    engine.__class__ = TooLenient
    assert chi_square(engine) > 10 * LIMIT


def test_noise_that_rows_of_a_step_share_has_other_probabilities() -> None:
    assert chi_square(engine_of(MarkovRunner(shared_noise=True))) > 10 * LIMIT
