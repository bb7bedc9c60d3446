"""Engines for tests: on a real model on the CPU, or on a runner that only counts."""

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass
from pathlib import Path

import torch

from llama_stack_gpt_oss.engine.batch import Batch, Fields, pack
from llama_stack_gpt_oss.engine.cache import PAGE, Cache, Windows
from llama_stack_gpt_oss.engine.config import read_config
from llama_stack_gpt_oss.engine.engine import Engine, Request, Runner, Update
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.runner import ModelRunner
from llama_stack_gpt_oss.engine.scheduler import Limits, ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Params, Sampled, Sequence, TokenMask
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.weights import load

CPU = torch.device("cpu")
MOST_STEPS = 20_000
KV_GROUPS: Windows = (100, None)  # of engines without a model
WIDE = Limits(sequences=64, step_tokens=4096, waiting=4096)


def no_mask(_: str) -> TokenMask:
    raise AssertionError("no test here asks for a mask")


def tiny_model(folder: Path, pages: int = 64, dtype: torch.dtype = torch.float32) -> Model:
    config = read_config(folder)
    weights = load(folder, config, CPU, dtype, lambda _: None)
    return Model(config, weights, TorchOps(config), pages, context=pages * 64)


@dataclass(frozen=True)
class Counted:
    """A step of `CountingRunner`."""

    found: list[Sampled]
    events: list[str]

    def sample(self) -> None:
        self.events.append("sample")

    def sampled(self) -> list[Sampled]:
        self.events.append("read")
        return self.found


class CountingRunner:
    """Sample tokens that depend only on the tokens of their sequence, and check each step.

    The runner records what a model would write to each page, and asserts that all that a model would read is there.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.events: list[str] = []
        self._written: dict[int, tuple[int, list[int], int]] = {}  # kv group, tokens, count up to this page
        self._drawn: dict[Sequence, tuple[int, int]] = {}  # by the last step: the place of a token, and the token

    def start(self, works: Series[ScheduledTokens]) -> Counted:
        assert sum(work.count for work in works) <= self.limits.step_tokens
        assert len(works) <= self.limits.sequences
        for work in works:
            assert work.count > 0
            assert work.start == work.sequence.computed
            self._read(work, work.start)
        for work in works:
            self._write(work)
        for work in works:
            self._read(work, work.start + work.count)
        last = [work.sequence for work in works if work.last]
        tokens = [sum(self._tokens(sequence)) * 31 % 1009 for sequence in last]
        self._drawn = {each: (each.length, token) for each, token in zip(last, tokens, strict=True)}
        self.events.append("start")
        return Counted([Sampled(token) for token in tokens], self.events)

    def _tokens(self, sequence: Sequence) -> list[int]:
        """Return the tokens of the sequence, including those drawn but not yet read."""
        drawn = [token for place, token in [self._drawn.get(sequence, (-1, -1))] if place == len(sequence.tokens)]
        assert len(drawn) == sequence.unread
        return sequence.tokens + drawn

    def _write(self, work: ScheduledTokens) -> None:
        tokens, end = work.sequence.tokens, work.start + work.count
        for kind, table in enumerate(work.sequence.blocks.tables):
            for place in range(work.start // PAGE, -(-end // PAGE)):
                assert place >= table.first
                self._written[table.pages[place]] = (kind, tokens, min(end, (place + 1) * PAGE))

    def _read(self, work: ScheduledTokens, end: int) -> None:
        """Read what the step's first token sees, up to the token before `end`."""
        tokens = work.sequence.tokens
        for kind, (table, window) in enumerate(zip(work.sequence.blocks.tables, KV_GROUPS, strict=True)):
            first = 0 if window is None else max(0, work.start - window + 1)
            for place in range(first // PAGE, -(-end // PAGE)):
                assert place >= table.first
                wanted = min(end, (place + 1) * PAGE)
                found, others, count = self._written[table.pages[place]]
                assert (found, count) == (kind, wanted)
                assert others is tokens or others[:wanted] == tokens[:wanted]


def engine_over(
    runner: Runner,
    pages: int = 64,
    limits: Limits = WIDE,
    context: int = 4096,
    open_mask: Callable[[str], TokenMask] = no_mask,
    kv_groups: Windows = KV_GROUPS,
) -> tuple[Engine, Cache]:
    cache = Cache(pages, kv_groups)
    return Engine(runner, cache, limits, context, open_mask), cache


def model_engine(model: Model, limits: Limits = WIDE, pages: int = 64) -> tuple[Engine, Cache]:
    return engine_over(ModelRunner(model, CPU, context=4096), pages, limits, kv_groups=model.config.kv_groups)


def drain(engine: Engine) -> list[Update]:
    """Step until the engine is idle. Raise AssertionError if that takes too many steps."""
    updates: list[Update] = []
    for _ in range(MOST_STEPS):
        if not engine.busy:
            return updates
        updates += engine.step()
    raise AssertionError("the engine stays busy")


def tokens_of(updates: Series[Update], name: str) -> list[int]:
    return [update.sampled.token for update in updates if update.id == name]


def generate(engine: Engine, prompt: list[int], params: Params) -> list[Update]:
    engine.add(Request(("one",), prompt, params))
    return drain(engine)


def batch_of(*works: ScheduledTokens) -> Batch:
    """Return the batch of a step, as the device unpacks it for sequences that it does not know."""
    state = State(len(works[0].sequence.blocks.tables), len(works), 64 * PAGE, 0, CPU)
    step = pack(works, *Entries(state).assign(works))
    packed = torch.tensor(list(step.packed()), dtype=torch.int32)
    return TorchOps.unpack(Fields(*packed.split(step.sizes())), step, state)
