"""What the host does for a decode step, counted as calls: not a time, so it is the same on every machine."""

import statistics
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch

from benchmarks.gpt_oss.plans import TINY, random_weights
from benchmarks.gpt_oss.steps import without_kernels
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS, Cache
from llama_stack_gpt_oss.engine.engine import Engine, Request
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.runner import ModelRunner
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits

from .support.engines import CPU, no_mask

STEPS = 20
CONTEXT = 2048
# Calls of Python functions and of functions in C. The limits are those of today: lower them with the counts.
CALLS_PER_SEQUENCE = 18
CALLS_PER_STEP = 130


def calls(run: Callable[[], object]) -> int:
    counted = 0

    def count(_: FrameType, event: str, __: Any) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run()
    finally:
        sys.setprofile(None)
    return counted


def calls_of_a_step(sequences: int, tokens: int) -> int:
    """Return the median number of calls in a decode step of the whole engine, without kernels."""
    blocks = sequences * 2 * (CONTEXT // BLOCK_TOKENS)
    model = Model(TINY, random_weights(TINY, CPU), TorchOps(TINY), blocks, CONTEXT)
    with without_kernels(model):
        runner = ModelRunner(model, CPU, CONTEXT, sequences, lambda compute: (compute(), lambda: None))
        limits = Limits(sequences, sequences * tokens, 0)
        engine = Engine(runner, Cache(blocks, TINY.kv_groups), limits, CONTEXT, no_mask)
        for number in range(sequences):
            prompt = torch.randint(TINY.vocabulary, (tokens,)).tolist()
            engine.add(Request((f"{number}",), prompt, SamplingParams(max_tokens=500, seed=number)))
        for _ in range(3):  # all prompts, and the first tokens: all sequences go on in step, and so do their blocks
            engine.step()
        return int(statistics.median(calls(engine.step) for _ in range(STEPS)))


def test_calls_of_a_decode_step_are_few_and_do_not_depend_on_length() -> None:
    few, many = calls_of_a_step(16, 100), calls_of_a_step(48, 100)
    per_sequence = (many - few) / 32
    assert per_sequence <= CALLS_PER_SEQUENCE
    assert few - 16 * per_sequence <= CALLS_PER_STEP
    assert calls_of_a_step(16, 1500) == few
