"""Engines for tests: on a real model on the CPU, or on a runner that only counts."""

from collections.abc import Callable
from collections.abc import Sequence as Series
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import torch

from llama_stack_gpt_oss.engine import mxfp4
from llama_stack_gpt_oss.engine.batch import Batch, Fields, pack, padded
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS, Cache, Windows
from llama_stack_gpt_oss.engine.config import read_config
from llama_stack_gpt_oss.engine.drafts import Drafter
from llama_stack_gpt_oss.engine.engine import Engine, Request, Runner, Update
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.runner import ModelRunner
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits, ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sampled, Sequence, TokenMask
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.weights import load

CPU = torch.device("cpu")
MOST_STEPS = 20_000
KV_GROUPS: Windows = (100, None)  # of engines without a model
WIDE = Limits(sequences=64, step_tokens=4096, waiting=4096)


def no_mask(_: str) -> TokenMask:
    raise AssertionError("no test here asks for a mask")


def tiny_model(
    folder: Path, blocks: int = 64, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None
) -> Model:
    config = read_config(folder)
    weights = load(folder, config, CPU, dtype, lambda _: None)
    return Model(config, weights, TorchOps(config), blocks, context=blocks * 64, kv_dtype=kv_dtype)


class DecodedOnce:
    """Stands in for the module `mxfp4` of the operations in plain torch, where decoding takes half of a step.

    Weights that change after their first use are not seen.
    """

    def __init__(self) -> None:
        self._decoded: dict[tuple[object, ...], tuple[torch.Tensor, ...]] = {}

    def decode(self, words: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        key = words.data_ptr(), scales.data_ptr(), words.shape, dtype
        if key not in self._decoded:
            # The words and scales are kept, so that their addresses are not used again.
            self._decoded[key] = words, scales, mxfp4.decode(words, scales, dtype)
        return self._decoded[key][-1]


@dataclass(frozen=True)
class CountingStep:
    """A step of `CountingRunner`."""

    found: list[Sampled]
    events: list[str]

    def sample(self) -> None:
        self.events.append("sample")

    def sampled(self) -> list[Sampled]:
        self.events.append("read")
        return self.found


def counted_token(tokens: list[int]) -> int:
    """Return the token that `CountingRunner` samples after these."""
    return sum(tokens) * 31 % 1009


class CountingRunner:
    """Sample tokens that depend only on the tokens of their sequence, and check each step.

    The runner records what a model would write to each block, and asserts that all that a model would read is there.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.events: list[str] = []
        self._written: dict[int, tuple[int, list[int]]] = {}  # kv group, and tokens up to the last one in the block
        self._drawn: dict[Sequence, tuple[int, int]] = {}  # by the last step: the index of a token, and the token

    def start(self, works: Series[ScheduledTokens]) -> CountingStep:
        assert sum(work.count + len(work.drafts) for work in works) <= self.limits.step_tokens
        if any(work.drafts for work in works):
            decodes = takewhile(lambda work: work.count == 1, works)
            assert sum(1 + len(work.drafts) for work in decodes) <= self.limits.verified
        assert len(works) <= self.limits.sequences
        for work in works:
            assert work.count > 0
            assert work.start == work.sequence.computed
            self._read(work, work.start)
        for work in works:
            self._write(work)
        for work in works:
            self._read(work, work.start + work.count + len(work.drafts))
        last = [work for work in works if work.last]
        drawn = [self._draw(work) for work in last]
        self._drawn = {work.sequence: (work.sequence.length, found[0]) for work, found in zip(last, drawn, strict=True)}
        self.events.append("start")
        return CountingStep([Sampled(token) for found in drawn for token in found], self.events)

    def _draw(self, work: ScheduledTokens) -> list[int]:
        """Return the tokens after the last one and after each draft."""
        known = self._tokens(work.sequence)
        return [counted_token([*known, *work.drafts[:number]]) for number in range(1 + len(work.drafts))]

    def _tokens(self, sequence: Sequence) -> list[int]:
        """Return the tokens of the sequence, including those drawn but not yet read."""
        drawn = [token for index, token in [self._drawn.get(sequence, (-1, -1))] if index == len(sequence.tokens)]
        assert len(drawn) == sequence.unread
        return sequence.tokens + drawn

    def _write(self, work: ScheduledTokens) -> None:
        end = work.start + work.count + len(work.drafts)
        tokens = [*self._tokens(work.sequence)[: work.start + work.count], *work.drafts]
        for kind, table in enumerate(work.sequence.blocks.tables):
            for index in range(work.start // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)):
                assert index >= table.first
                self._written[table.blocks[index]] = (kind, tokens[: (index + 1) * BLOCK_TOKENS])

    def _read(self, work: ScheduledTokens, end: int) -> None:
        """Read what the step's first token sees, up to the token before `end`."""
        tokens = [*self._tokens(work.sequence), *work.drafts]
        for kind, (table, window) in enumerate(zip(work.sequence.blocks.tables, KV_GROUPS, strict=True)):
            first = 0 if window is None else max(0, work.start - window + 1)
            for index in range(first // BLOCK_TOKENS, -(-end // BLOCK_TOKENS)):
                assert index >= table.first
                wanted = min(end, (index + 1) * BLOCK_TOKENS)
                found, others = self._written[table.blocks[index]]
                assert found == kind
                assert others[:wanted] == tokens[:wanted]


def engine_over(
    runner: Runner,
    blocks: int = 64,
    limits: Limits = WIDE,
    context: int = 4096,
    open_mask: Callable[[str], TokenMask] = no_mask,
    kv_groups: Windows = KV_GROUPS,
    drafter: Drafter | None = None,
) -> tuple[Engine, Cache]:
    cache = Cache(blocks, kv_groups)
    return Engine(runner, cache, limits, context, open_mask, drafter), cache


def model_engine(model: Model, limits: Limits = WIDE, blocks: int = 64) -> tuple[Engine, Cache]:
    return engine_over(ModelRunner(model, CPU, context=4096), blocks, limits, kv_groups=model.config.kv_groups)


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


def generate(engine: Engine, prompt: list[int], params: SamplingParams) -> list[Update]:
    engine.add(Request(("one",), prompt, params))
    return drain(engine)


def batch_of(*works: ScheduledTokens, rows: int = 0) -> Batch:
    """Return the batch of a step, as the device unpacks it for sequences that it does not know.

    rows: the number that a decode step is padded to, as for a graph; 0 for no padding.
    """
    state = State(len(works[0].sequence.blocks.tables), len(works), 64 * BLOCK_TOKENS, 0, CPU)
    width = 1 + max(len(work.drafts) for work in works)
    step = pack(works, *Entries(state).assign(works), width)
    if rows:
        step = padded(step, rows, len(step.fields.addresses), state.spare, state.unused)
    packed = torch.tensor(list(step.packed()), dtype=torch.int32)
    return TorchOps.unpack(Fields(*packed.split(step.sizes())), step, state)
