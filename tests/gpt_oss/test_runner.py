"""Steps that start before the host has read the tokens of earlier steps, computed anew or replayed."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llama_stack_gpt_oss.engine.cache import BlockTable, KVCacheBlocks
from llama_stack_gpt_oss.engine.errors import TooLittleMemoryError
from llama_stack_gpt_oss.engine.graphs import Capture, graph_sizes
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.ops import HeadOutput
from llama_stack_gpt_oss.engine.runner import ModelRunner, Step
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sequence
from llama_stack_gpt_oss.engine.state import Entries, State

from .support.engines import CPU, tiny_model
from .support.records import replayed

pytestmark = pytest.mark.usefixtures("experts_decoded_once")

WARM = SamplingParams(max_tokens=10, temperature=1.0)


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return tiny_model(checkpoint)


def sequences(*params: SamplingParams) -> list[Sequence]:
    """Return sequences with separate prompts, and a block for each kind of layer."""
    created = []
    for number, each in enumerate(params):
        prompt = [number * 31 + place * 7 % 29 for place in range(5 + number)]
        created.append(Sequence(f"{number}", prompt, len(prompt), each, number))
        created[-1].blocks = KVCacheBlocks(tables=(BlockTable([2 * number]), BlockTable([2 * number + 1])))
    return created


def decode(sequence: Sequence, drawn: int = 0) -> ScheduledTokens:
    """Schedule the last token after `drawn` further ones."""
    return ScheduledTokens(sequence, len(sequence.tokens) + drawn - 1, 1)


def whole(sequence: Sequence, drawn: int = 0) -> ScheduledTokens:
    return ScheduledTokens(sequence, 0, len(sequence.tokens) + drawn)


def alone(model: Model, number: int, params: SamplingParams, count: int) -> list[int]:
    """Return the tokens that a sequence draws alone, each token read before the next step."""
    runner, sequence = ModelRunner(model, CPU, context=512), sequences(*[params] * (number + 1))[number]
    for _ in range(count):
        (sampled,) = runner.run([whole(sequence)])
        sequence.tokens.append(sampled.token)
    return sequence.tokens[sequence.prompt_tokens :]


def read(step: Step, works: list[ScheduledTokens]) -> None:
    for work, sampled in zip(works, step.sampled(), strict=True):
        assert work.start + work.count == len(work.sequence.tokens)
        work.sequence.append(sampled.token)


@pytest.mark.parametrize("capture", [None, replayed])
@pytest.mark.parametrize(
    "params",
    [
        WARM,
        replace(WARM, temperature=0.0),
        replace(WARM, top_logprobs=1),
        replace(WARM, temperature=0.0, frequency_penalty=-2.0, logit_bias=((5, 1.0),)),
    ],
)
def test_unread_tokens_are_input_of_next_step(model: Model, params: SamplingParams, capture: Capture | None) -> None:
    """Rows change places, a sequence joins with its prompt, one is omitted, and one is recomputed from its beginning.

    Logits are kept for only one of them.
    """
    runner = ModelRunner(model, CPU, context=512, capture=capture)
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
            work.sequence.unread += 1
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


class OperationCounter(TorchDispatchMode):
    """Counts torch's operations, without views and allocations."""

    FREE = ("view", "split", "slice", "empty", "unbind", "detach", "select", "as_strided", "resolve")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counted: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if not name.startswith(self.FREE):
            self.counted.append(name)
        return func(*args, **(kwargs or {}))


def empty_replay(compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
    return compute(), lambda: None


def test_replayed_step_takes_three_copies(model: Model) -> None:
    """Into the pinned buffer, from there to the device, and the tokens to the host; with any number of sequences."""
    for number in (1, 5):
        runner = ModelRunner(model, CPU, context=512, sequences=5, capture=empty_replay)
        running = sequences(*[WARM] * number)
        runner.run([whole(each) for each in running])
        runner.run([decode(each) for each in running])
        with OperationCounter() as operations:
            runner.run([decode(each) for each in running])
        assert operations.counted == ["copy_"] * 3


def test_step_sends_only_changed_cells(model: Model) -> None:
    """A sequence's entry and blocks are sent once, then only a new block, and all blocks if they are new."""
    state = State(2, 3, 512, model.scratch, CPU)
    entries, (a, b) = Entries(state), sequences(WARM, WARM)

    def changes(*works: ScheduledTokens) -> int:
        _, addresses, values = entries.assign(works)
        assert len(set(addresses)) == len(addresses) == len(values)
        return len(addresses)

    assert changes(whole(a), whole(b)) == 2 * (2 + 2)
    assert changes(decode(b, 1), decode(a, 1)) == 0
    for table in a.blocks.tables:
        table.blocks.append(7)
    assert changes(decode(b, 2), decode(a, 2)) == 2
    b.blocks = KVCacheBlocks(tables=b.blocks.tables)
    assert changes(decode(b, 3), decode(a, 3)) == 2


def test_entry_of_ended_sequence_goes_to_next_that_joins(model: Model) -> None:
    """It goes there although other entries are free, so no ended sequence stays in memory with its tokens."""
    entries, (a, b, c) = Entries(State(2, 4, 512, model.scratch, CPU)), sequences(WARM, WARM, WARM)
    assert entries.assign([whole(a), whole(b)])[0] == [0, 1]
    a.gone = True
    assert entries.assign([whole(b), whole(c)])[0] == [1, 0]


def test_entry_of_absent_sequence_is_reused(model: Model) -> None:
    """More sequences than entries take turns; each draws the tokens that it draws alone."""
    runner = ModelRunner(model, CPU, context=512, sequences=2)
    running = sequences(WARM, WARM, WARM)
    for _ in range(3):
        for pair in ((0, 1), (1, 2), (2, 0)):
            works = [whole(running[number]) for number in pair]
            for work, sampled in zip(works, runner.run(works), strict=True):
                work.sequence.tokens.append(sampled.token)
    for number, sequence in enumerate(running):
        assert sequence.tokens[sequence.prompt_tokens :] == alone(model, number, WARM, 6)


def test_replayed_step_writes_more_cells_than_graph_has_room_for(model: Model) -> None:
    """A sequence with many blocks joins with its last token only, as if all others were cached."""
    tokens = []
    for capture in (None, replayed):
        runner = ModelRunner(model, CPU, context=512, sequences=2, capture=capture)
        (long,) = sequences(WARM)
        long.tokens = [place % 50 for place in range(300)]
        long.blocks = KVCacheBlocks(tables=(BlockTable([2, 4, 6, 8, 10]), BlockTable([3, 5, 7, 9, 11])))
        ModelRunner(model, CPU, context=512).run([ScheduledTokens(long, 0, 299)])
        tokens.append(runner.run([ScheduledTokens(long, 299, 1)])[0].token)
    assert tokens[0] == tokens[1]


def test_masked_row_is_drawn_after_start_of_its_step(model: Model) -> None:
    """The mask of a step may depend on the token of the step before, which is read after the step's start."""

    class Ascending:
        """Allows the token after the last accepted one."""

        failed = False

        def __init__(self) -> None:
            self.token = 10

        def allowed(self) -> bytes:
            return (1 << self.token).to_bytes(64, "little")

        def accept(self, token: int) -> None:
            assert token == self.token
            self.token += 1

        def rollback(self, count: int) -> None:
            raise AssertionError(count)

    runner = ModelRunner(model, CPU, context=512, capture=replayed)
    free, bound = sequences(WARM, WARM)
    bound.mask = Ascending()
    works = [whole(free), whole(bound)]
    before: tuple[Step, list[ScheduledTokens]] | None = None
    for count in range(1, 6):
        step = runner.start(works)
        for work in works:
            work.sequence.unread += 1
        if before is not None:
            read(*before)
        step.sample()
        before = step, works
        works = [ScheduledTokens(each, each.prompt_tokens + count - 1, 1) for each in (free, bound)]
    assert before is not None
    read(*before)
    assert bound.tokens[bound.prompt_tokens :] == [10, 11, 12, 13, 14]
    assert free.tokens[free.prompt_tokens :] == alone(model, 0, WARM, 5)


def test_no_step_after_warm_up_captures_a_graph(model: Model) -> None:
    captures: list[HeadOutput] = []

    def captured(compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
        head, again = replayed(compute)
        captures.append(head)
        return head, again

    reported: list[tuple[int, int]] = []
    runner = ModelRunner(model, CPU, context=512, sequences=5, capture=captured)
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
    runner = ModelRunner(model, CPU, context=512, sequences=3, capture=replayed)
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
    def captured(compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
        raise torch.OutOfMemoryError(compute)

    runner = ModelRunner(model, CPU, context=512, capture=captured)
    with pytest.raises(TooLittleMemoryError, match="lower memory_share, prefill_tokens or max_batch"):
        runner.warm_up(64, lambda *_: None)
