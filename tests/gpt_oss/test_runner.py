"""Steps that start before the host has read the tokens of earlier steps, computed anew or replayed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from llama_stack_gpt_oss.engine.cache import BlockTable, KVCacheBlocks
from llama_stack_gpt_oss.engine.errors import TooLittleMemoryError
from llama_stack_gpt_oss.engine.graphs import Record, graph_sizes
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.ops import Head
from llama_stack_gpt_oss.engine.runner import ModelRunner, Step
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Params, Sequence

from .support.engines import CPU, tiny_model

WARM = Params(max_tokens=10, temperature=1.0)
UNREAD = 0  # placeholder in a sequence for a token that the host has not read


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return tiny_model(checkpoint)


def sequences(*params: Params) -> list[Sequence]:
    """Return sequences with separate prompts, and a page for each kind of layer."""
    made = []
    for number, each in enumerate(params):
        prompt = [number * 31 + place * 7 % 29 for place in range(5 + number)]
        made.append(Sequence(f"{number}", prompt, len(prompt), each, number))
        made[-1].blocks = KVCacheBlocks(tables=(BlockTable([2 * number]), BlockTable([2 * number + 1])))
    return made


def decode(sequence: Sequence, drawn: int = 0) -> ScheduledTokens:
    """Schedule the last token after `drawn` further ones."""
    return ScheduledTokens(sequence, len(sequence.tokens) + drawn - 1, 1)


def whole(sequence: Sequence, drawn: int = 0) -> ScheduledTokens:
    return ScheduledTokens(sequence, 0, len(sequence.tokens) + drawn)


def alone(model: Model, number: int, params: Params, count: int) -> list[int]:
    """Return the tokens that a sequence draws alone, each token read before the next step."""
    runner, sequence = ModelRunner(model, CPU, context=512), sequences(*[params] * (number + 1))[number]
    for _ in range(count):
        (sampled,) = runner.run([whole(sequence)])
        sequence.tokens.append(sampled.token)
    return sequence.tokens[sequence.prompt_tokens :]


def read(step: Step, works: list[ScheduledTokens]) -> None:
    for work, sampled in zip(works, step.sampled(), strict=True):
        work.sequence.tokens[work.start + work.count] = sampled.token


def replayed(compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
    """Behave like a graph: compute nothing at first, and later from the same tensors into the same tensors."""
    place = compute()
    place.tokens.zero_()

    def again() -> None:
        made = compute()
        place.tokens.copy_(made.tokens)
        if place.logits is not None and made.logits is not None:
            place.logits.copy_(made.logits)

    return place, again


@pytest.mark.parametrize("record", [None, replayed])
@pytest.mark.parametrize("params", [WARM, replace(WARM, temperature=0.0), replace(WARM, top_logprobs=1)])
def test_unread_tokens_are_input_of_next_step(model: Model, params: Params, record: Record | None) -> None:
    """Rows change places, a sequence joins with its prompt, one is omitted, and one is recomputed from its beginning.

    Logits are kept for only one of them.
    """
    runner = ModelRunner(model, CPU, context=512, record=record)
    a, b, c = sequences(params, replace(WARM, seed=1, top_p=0.5), params)
    plan = (
        [whole(a), whole(b)],
        [decode(b, 1), decode(a, 1), whole(c)],
        [decode(c, 1), whole(a, 2), decode(b, 2)],
        [decode(a, 3), decode(c, 2)],
        [decode(c, 3)],
        [decode(c, 4), decode(b, 3), decode(a, 4)],
        [decode(b, 4), decode(a, 5)],
    )
    started: list[Step] = []
    for works in plan:
        started.append(runner.start(works))
        for work in works:
            work.sequence.tokens.append(UNREAD)
        if len(started) > 1:
            read(started[-2], plan[len(started) - 2])
    read(started[-1], plan[-1])
    for number, sequence in enumerate((a, b, c)):
        tokens = sequence.tokens[sequence.prompt_tokens :]
        assert tokens == alone(model, number, sequence.params, len(tokens))
    assert [len(sequence.tokens) - sequence.prompt_tokens for sequence in (a, b, c)] == [6, 5, 5]


def test_tokens_not_drawn_last_come_from_host(model: Model) -> None:
    """First a part of a sequence without the token drawn in the step before, then that token some steps later."""
    runner = ModelRunner(model, CPU, context=512)
    a, b = sequences(WARM, WARM)
    (first,) = runner.run([whole(a)])
    a.tokens.append(first.token)
    (other,) = runner.run([ScheduledTokens(a, 0, 2), whole(b)])
    (second,) = runner.run([whole(a)])
    assert [first.token, second.token] == alone(model, 0, WARM, 2)
    assert [other.token] == alone(model, 1, WARM, 1)


def test_no_step_after_warm_up_captures_a_graph(model: Model) -> None:
    captures: list[Head] = []

    def captured(compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
        head, again = replayed(compute)
        captures.append(head)
        return head, again

    reported: list[tuple[int, int]] = []
    runner = ModelRunner(model, CPU, context=512, sequences=5, record=captured)
    runner.warm_up(64, lambda done, total: reported.append((done, total)))
    total = len(reported)
    assert reported == [(done, total) for done in range(1, total + 1)]
    assert len(captures) == 2 * len(graph_sizes(5))
    for number in range(1, 6):
        for params in (WARM, replace(WARM, top_logprobs=1)):
            runner.run([whole(sequence) for sequence in sequences(*[params] * number)])
            runner.run([decode(sequence) for sequence in sequences(*[params] * number)])
    assert len(captures) == 2 * len(graph_sizes(5))


def test_warm_up_leaves_computed_keys_alone(model: Model) -> None:
    (sequence,) = sequences(WARM)
    (first,) = ModelRunner(model, CPU, context=512).run([whole(sequence)])
    sequence.tokens.append(first.token)
    runner = ModelRunner(model, CPU, context=512, sequences=3, record=replayed)
    runner.warm_up(64, lambda *_: None)
    assert [first.token, runner.run([decode(sequence)])[0].token] == alone(model, 0, WARM, 2)


@pytest.mark.parametrize(
    ("number", "sizes"),
    [(1, (1,)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8)), (20, (1, 2, 4, 8, 16, 20))],
)
def test_largest_graph_has_maximum_number_of_sequences(number: int, sizes: tuple[int, ...]) -> None:
    assert graph_sizes(number) == sizes


def test_padding_is_at_most_an_eighth_of_large_steps() -> None:
    sizes = graph_sizes(1024)
    assert all(after - before <= max(8, after / 8) for before, after in pairwise(sizes[3:]))
    assert len(sizes) < 50


def test_warm_up_without_enough_memory_names_settings(model: Model) -> None:
    def captured(compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
        raise torch.OutOfMemoryError(compute)

    runner = ModelRunner(model, CPU, context=512, record=captured)
    with pytest.raises(TooLittleMemoryError, match="lower memory_share, prefill_tokens or max_batch"):
        runner.warm_up(64, lambda *_: None)
