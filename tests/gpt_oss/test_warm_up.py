"""No step after the warm-up selects a build of a kernel that the warm-up has not compiled."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from benchmarks.gpt_oss.plans import TINY, head_config, random_head, random_weights
from llama_stack_gpt_oss.engine import draft_head
from llama_stack_gpt_oss.engine.cache import Cache
from llama_stack_gpt_oss.engine.config import ModelConfig
from llama_stack_gpt_oss.engine.draft_head import DraftHead
from llama_stack_gpt_oss.engine.drafts import Drafter, NgramDrafter
from llama_stack_gpt_oss.engine.engine import Engine, Request
from llama_stack_gpt_oss.engine.graphs import most_verified
from llama_stack_gpt_oss.engine.kernels.triton_ops import TritonOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.ops import HeadOutput
from llama_stack_gpt_oss.engine.runner import ModelRunner
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits
from llama_stack_gpt_oss.engine.sequence import TokenMask

from .support.engines import CPU, drain
from .support.launches import Build, recorded_launches

CONFIG = replace(TINY, vocabulary=512, experts=32)
LARGE = replace(CONFIG, experts=128)
SEQUENCES, STEP_TOKENS, CONTEXT, PAGES = 20, 300, 1024, 400
WARM = SamplingParams(max_tokens=6, temperature=1.0)
WAYS = (
    replace(WARM, temperature=0.0),
    WARM,
    replace(WARM, top_p=0.9),
    replace(WARM, top_k=5, min_p=0.1),
    replace(WARM, top_logprobs=3),
    replace(WARM, frequency_penalty=0.5, presence_penalty=0.1, logit_bias=((3, 1.0), (5, -1.0)), top_p=0.8),
)
PROMPTS = (1, 2, 7, 16, 17, 33, 64, 65, 130, 299, 301, 700)  # tokens


class AnyToken:
    """A mask that allows every token."""

    failed = False

    def allowed(self) -> bytes:
        return b"\xff" * (CONFIG.vocabulary // 8)

    def accept(self, token: int) -> None:
        """Do nothing."""

    def rollback(self, count: int) -> None:
        """Do nothing."""


def open_mask(_: str) -> TokenMask:
    return AnyToken()


def captured(compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
    """Behave like a graph: its replay launches nothing."""
    return compute(), lambda: None


@dataclass(frozen=True)
class Case:
    config: ModelConfig = CONFIG
    kv_dtype: torch.dtype | None = None
    drafts: int = 0
    has_head: bool = False
    sequences: int = SEQUENCES
    processors: int = 132

    def engine(self) -> Engine:
        """Return an engine after its warm-up."""
        weights, config = random_weights(self.config, CPU), head_config(self.config)
        ops = TritonOps(self.config, processors=self.processors)
        features = config.features if self.has_head else ()
        model = Model(self.config, weights, ops, PAGES, CONTEXT, self.kv_dtype, features)
        head = DraftHead(config, random_head(config, weights), self.config, PAGES, CONTEXT) if self.has_head else None
        runner = ModelRunner(model, CPU, CONTEXT, self.sequences, captured, self.drafts, draft_head=head)
        runner.warm_up(STEP_TOKENS, lambda *_: None)
        drafter: Drafter | None = runner.drafter or (NgramDrafter(self.drafts) if self.drafts else None)
        limits = Limits(self.sequences, STEP_TOKENS, 99, most_verified(self.sequences, self.drafts))
        return Engine(runner, Cache(PAGES, self.config.kv_groups), limits, CONTEXT, open_mask, drafter)


CASES = {
    "20b": Case(),
    "120b": Case(LARGE),
    "fp8": Case(kv_dtype=torch.float8_e4m3fn),
    "n-grams": Case(drafts=3),
    "head": Case(drafts=4, has_head=True),
    "one sequence": Case(sequences=1),
    "large batch": Case(sequences=200),
    "few processors": Case(processors=16),
}


def serve(engine: Engine, sequences: int) -> int:
    """Generate answers in batches of each size and way of sampling, then mixed ones; return the steps."""
    sizes = sorted({*range(1, min(sequences, 20) + 1), sequences})
    for size in sizes:
        params = WAYS[size % len(WAYS)]
        for number in range(size):
            engine.add(Request((f"{number}",), [number % 7] * 5, replace(params, seed=number)))
        drain(engine)
    for number, length in enumerate(PROMPTS * 4):
        params = replace(WAYS[number % len(WAYS)], seed=number, max_tokens=3 + number)
        grammar = "start: TEXT" if number % 4 == 3 else None
        engine.add(Request((f"{number}",), [number % 5, number] * (length // 2) + [1], params, grammar))
        engine.step()
        if number % 3 == 0:
            drain(engine)
    drain(engine)
    return engine.metrics().steps


@pytest.mark.parametrize("name", CASES)
def test_no_step_after_warm_up_compiles_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]
    monkeypatch.setattr(draft_head, "choose", lambda config, *_: TritonOps(config, processors=case.processors))
    with recorded_launches() as builds:
        engine = case.engine()
        compiled = dict(builds)
        steps = serve(engine, case.sequences)
    assert steps > 100
    assert (engine.metrics().drafted_tokens > 100) is (case.drafts > 0)
    assert missing(compiled, builds) == []


def missing(compiled: dict[Build, str], builds: dict[Build, str]) -> list[str]:
    """Return launches of builds that the warm-up has not compiled, each with what differs from its nearest build."""
    found = []
    for build in builds.keys() - compiled.keys():
        same = [other for other in compiled if other[0] == build[0]]
        nearest = min(same, key=lambda other: len(set(build) - set(other)), default=())
        found.append(f"{builds[build]}: {sorted(map(str, set(build) - set(nearest)))}")
    return found
