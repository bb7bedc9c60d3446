"""Steps that are started before the host has read what the steps before them drew, computed anew or as recorded."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from llama_stack_gpt_oss.engine.cache import Holding, Table
from llama_stack_gpt_oss.engine.graphs import Record
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.ops import Head
from llama_stack_gpt_oss.engine.runner import ModelRunner, Step
from llama_stack_gpt_oss.engine.scheduler import Work
from llama_stack_gpt_oss.engine.sequence import Params, Sequence

from .support.engines import CPU, tiny_model

WARM = Params(max_tokens=10, temperature=1.0)
UNREAD = 0  # stands in a sequence for a token that the host has not read


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return tiny_model(checkpoint)


def sequences(*params: Params) -> list[Sequence]:
    """Each with a prompt of its own, and a page for each kind of layer."""
    made = []
    for number, each in enumerate(params):
        prompt = [number * 31 + place * 7 % 29 for place in range(5 + number)]
        made.append(Sequence(f"{number}", prompt, len(prompt), each, number))
        made[-1].holding = Holding(tables=(Table([2 * number]), Table([2 * number + 1])))
    return made


def decode(sequence: Sequence, drawn: int = 0) -> Work:
    """The last token, when so many more were drawn."""
    return Work(sequence, len(sequence.tokens) + drawn - 1, 1)


def whole(sequence: Sequence, drawn: int = 0) -> Work:
    return Work(sequence, 0, len(sequence.tokens) + drawn)


def alone(model: Model, number: int, params: Params, count: int) -> list[int]:
    """What a sequence draws with nobody beside it, each token read before the next step."""
    runner, sequence = ModelRunner(model, CPU, context=512), sequences(*[params] * (number + 1))[number]
    for _ in range(count):
        (sampled,) = runner.run([whole(sequence)])
        sequence.tokens.append(sampled.token)
    return sequence.tokens[sequence.prompt_tokens :]


def read(step: Step, works: list[Work]) -> None:
    for work, sampled in zip(works, step.sampled(), strict=True):
        work.sequence.tokens[work.start + work.count] = sampled.token


def replayed(compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
    """As a graph does: nothing is computed yet, and then from the same tensors into the same tensors."""
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
def test_unread_tokens_are_the_next_steps_input(model: Model, params: Params, record: Record | None) -> None:
    """Rows change places, a sequence joins with its prompt, one is left out, one is computed from its beginning.

    Logits are kept for one of them alone.
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


def test_other_tokens_come_from_the_host(model: Model) -> None:
    """Of a sequence that drew in the step before, a piece without that token; then that token, some steps later."""
    runner = ModelRunner(model, CPU, context=512)
    a, b = sequences(WARM, WARM)
    (first,) = runner.run([whole(a)])
    a.tokens.append(first.token)
    (other,) = runner.run([Work(a, 0, 2), whole(b)])
    (second,) = runner.run([whole(a)])
    assert [first.token, second.token] == alone(model, 0, WARM, 2)
    assert [other.token] == alone(model, 1, WARM, 1)
