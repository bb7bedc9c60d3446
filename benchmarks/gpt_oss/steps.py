"""Whole steps: decoding, sampling, prompts, the start, and what the host does for a step."""

import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import torch

from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS, Cache
from llama_stack_gpt_oss.engine.draft_head import DraftHead
from llama_stack_gpt_oss.engine.drafts import NgramDrafter
from llama_stack_gpt_oss.engine.engine import Engine, Metrics, Request
from llama_stack_gpt_oss.engine.graphs import Capture, CudaGraphs, most_verified
from llama_stack_gpt_oss.engine.head_drafter import HeadDrafter
from llama_stack_gpt_oss.engine.kernels import choose, has_fp8
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.mxfp4 import words_of
from llama_stack_gpt_oss.engine.ops import HeadOutput, Ops
from llama_stack_gpt_oss.engine.runner import ModelRunner, Step
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits, ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sequence, TokenMask
from llama_stack_gpt_oss.engine.weights import Weights, load

from .checkpoints import write_checkpoint
from .measures import EveryThird, Row, blocks_of, copy_bandwidth, sequences, step_bytes, timed
from .plans import GPT_OSS_120B, TINY, Plan, head_config, random_head, random_weights

# Share of the tokens that are the same after a cached prefix. The rest of a prompt is computed in other tiles, so bf16
# rounds other sums, and an answer differs from its first different token on. Random tokens would never be equal.
REUSED = 0.25
COMPILATION_SECONDS = 40.0  # of all kernels with an empty cache: a budget, not a measurement
GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
WAYS = {
    "greedy": GREEDY,
    "temperature": replace(GREEDY, temperature=1.0),
    "top_p": replace(GREEDY, temperature=1.0, top_p=0.9),
    "min_p and top_k": replace(GREEDY, temperature=1.0, min_p=0.05, top_k=40),
    "penalties": replace(GREEDY, temperature=1.0, frequency_penalty=0.5),
    "log probabilities": replace(GREEDY, temperature=1.0, top_logprobs=5),
}


def no_mask(grammar: str) -> TokenMask:
    raise ValueError(grammar)


def eager(compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
    """Compute a captured step anew at each replay, in place of a graph."""
    place = compute()

    def again() -> None:
        made = compute()
        place.tokens.copy_(made.tokens)
        if place.logits is not None and made.logits is not None:
            place.logits.copy_(made.logits)

    return place, again


class Replays:
    """Captures steps, and keeps the function that replays the last one: its kernels without the host."""

    def __init__(self, device: torch.device) -> None:
        self._capture: Capture = CudaGraphs() if device.type == "cuda" else eager
        self.last: Callable[[], None] = lambda: None

    def __call__(self, compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
        head, self.last = self._capture(compute)
        return head, self.last


@dataclass
class Running:
    """Sequences that decode, one token each step, and how the engine drives their steps."""

    runner: ModelRunner
    sequences: list[Sequence]

    def start(self) -> Step:
        step = self.runner.start([ScheduledTokens(each, each.length - 1, 1) for each in self.sequences])
        for each in self.sequences:
            each.unread += 1
        return step

    def read(self, step: Step) -> None:
        for each, sampled in zip(self.sequences, step.sampled(), strict=True):
            each.append(sampled.token)

    def steps(self, count: int) -> float:
        """Run steps, each started before the previous one is read; return the seconds of the host in all starts."""
        started = time.perf_counter()
        step, host = self.start(), time.perf_counter() - started
        for _ in range(count - 1):
            started = time.perf_counter()
            following = self.start()
            host += time.perf_counter() - started
            self.read(step)
            started = time.perf_counter()
            following.sample()
            host += time.perf_counter() - started
            step = following
        self.read(step)
        return host

    def measured(self, plan: Plan) -> Row:
        """Return the seconds of a step and of the host's part of it."""
        hosts: list[float] = []
        device = self.runner.device
        timed(lambda: self.steps(plan.warm), device)
        seconds = timed(lambda: hosts.append(self.steps(plan.steps)), device) / plan.steps
        return {
            "tokens_per_second": len(self.sequences) / seconds,
            "step_milliseconds": seconds * 1000,
            "host_milliseconds": hosts[0] * 1000 / plan.steps,
        }


def running(plan: Plan, runner: ModelRunner, batch: int, context: int, params: SamplingParams) -> Running:
    room = plan.warm + plan.steps + 1
    return Running(runner, sequences(plan.config, batch, context, replace(params, max_tokens=room)))


def model_of(
    plan: Plan,
    weights: Weights,
    device: torch.device,
    batches: list[tuple[int, int]],
    kv_dtype: torch.dtype | None = None,
    features: tuple[int, ...] = (),
    dependent: bool = True,
    ops: Ops | None = None,
) -> tuple[Model, int]:
    """Return a model with a KV cache for any of the batches, and the longest of their contexts.

    features: the layers whose inputs each step returns. dependent: use programmatic dependent launch. ops: by default,
    those that the engine chooses.
    """
    room = plan.warm + plan.steps + 1 + BLOCK_TOKENS
    context = max(tokens for _, tokens in batches) + room
    blocks = max(blocks_of(plan.config, batch, tokens + room) for batch, tokens in batches)
    ops = ops or choose(plan.config, device, weights.embedding.dtype, dependent)
    return Model(plan.config, weights, ops, blocks, context, kv_dtype, features), context


def decode(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the speed of decoding for each batch and context, and its share of the floor."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    cases = [(*batch, dtype) for batch in plan.batches]
    if has_fp8(device):
        cases += [(*batch, torch.float8_e4m3fn) for batch in plan.eight]
    for row in _decode(plan, device, [(*batch, dtype) for batch in plan.independent], dependent=False):
        yield {**row, "dependent": False}
    yield from _decode(plan, device, cases)


def decode_120b(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the same for the 120b."""
    config = plan.config if plan.tiny else GPT_OSS_120B
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    yield from _decode(replace(plan, config=config), device, [(*batch, dtype) for batch in plan.large])


@torch.inference_mode()
def _decode(
    plan: Plan, device: torch.device, cases: Iterable[tuple[int, int, torch.dtype]], dependent: bool = True
) -> Iterator[Row]:
    weights, bandwidth = random_weights(plan.config, device), copy_bandwidth(device, plan.copied)
    for batch, context, kv_dtype in cases:
        model, longest = model_of(plan, weights, device, [(batch, context)], kv_dtype, dependent=dependent)
        decoded = Decoded(plan, model, longest, batch, context)
        step = batch / float(decoded.times["tokens_per_second"])
        floor = step_bytes(plan.config, weights, batch, context, kv_dtype.itemsize) / bandwidth
        row: Row = {"batch": batch, "context": context, "kv": str(kv_dtype), **decoded.times}
        yield row | {"floor_milliseconds": floor * 1000, "share": floor / step}
        del model, decoded


class Decoded:
    """Decode steps that a model has run. times: of a step, of the host's part, and of the replayed graph alone."""

    def __init__(self, plan: Plan, model: Model, longest: int, batch: int, context: int) -> None:
        device = model.weights.embedding.device
        self.replays = Replays(device)
        self._runner = ModelRunner(model, device, longest, batch, self.replays)  # the graph reads its tensors
        self.times = running(plan, self._runner, batch, context, GREEDY).measured(plan)
        self.seconds = timed(partial(repeated, self.replays.last, plan.steps), device) / plan.steps
        self.times["replay_milliseconds"] = self.seconds * 1000


def repeated(run: Callable[[], None], times: int) -> None:
    for _ in range(times):
        run()


def sampling(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the speed of decoding with each way of sampling."""
    weights, context = random_weights(plan.config, device), plan.batches[0][1]
    model, longest = model_of(plan, weights, device, [(max(plan.sampled), context)])
    runner = ModelRunner(model, device, longest, max(plan.sampled))
    for batch in plan.sampled:
        for name, params in WAYS.items():
            yield {"batch": batch, "sampling": name, **running(plan, runner, batch, context, params).measured(plan)}
        bound = running(plan, runner, batch, context, WAYS["temperature"])
        for sequence in bound.sequences:
            sequence.mask = EveryThird(plan.config.vocabulary)
        yield {"batch": batch, "sampling": "grammar", **bound.measured(plan)}


def second_run(
    engine: Engine, plan: Plan, batch: int, params: SamplingParams, device: torch.device
) -> tuple[float, Metrics, Metrics]:
    """Generate answers to random prompts twice; return the second run's seconds, and the metrics before and after."""
    prompts = [torch.randint(plan.config.vocabulary, (64,)).tolist() for _ in range(batch)]
    generated(engine, prompts, params)
    before = engine.metrics()
    seconds = timed(partial(generated, engine, prompts, params), device)
    return seconds, before, engine.metrics()


def drafts(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the speed of answers that repeat themselves, with several numbers of drafts; the second of two runs."""
    weights, context, tokens = random_weights(plan.config, device), plan.batches[0][1], plan.answer
    model, longest = model_of(plan, weights, device, [(max(plan.sampled), context)])
    params = SamplingParams(max_tokens=tokens, temperature=0.0, frequency_penalty=-2.0)
    for batch, most in product(plan.sampled, plan.drafts):
        capture = None if device.type == "cuda" else eager
        runner = ModelRunner(model, device, longest, batch, capture, most)
        limits = Limits(batch, plan.chunk, batch, most_verified(batch, most))
        drafter = NgramDrafter(most) if most else None
        engine = Engine(runner, Cache(model.scratch, plan.config.kv_groups), limits, longest, no_mask, drafter)
        seconds, before, after = second_run(engine, plan, batch, params, device)
        yield {
            "batch": batch,
            "drafts": most,
            "tokens_per_second": batch * tokens / seconds,
            "steps": after.steps - before.steps,
            "drafted": after.drafted_tokens - before.drafted_tokens,
            "accepted": after.accepted_tokens - before.accepted_tokens,
        }


class Unchanging:
    """Drafts as many tokens in each step, although those of a random head are rejected."""

    waits = True

    def __init__(self, drafter: HeadDrafter) -> None:
        self.propose = drafter.propose
        self.forget = drafter.forget
        self._drafter = drafter

    def verified(self, sequence: Sequence, _: int, accepted: int) -> None:
        self._drafter.verified(sequence, accepted, accepted)


def draft_head(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of a step with drafts of an EAGLE-3 head, which has to accept more than `worth` tokens."""
    weights, context, tokens = random_weights(plan.config, device), plan.batches[0][1], plan.answer
    config = head_config(plan.config)
    model, longest = model_of(plan, weights, device, [(max(plan.sampled), context)], features=config.features)
    head = DraftHead(config, random_head(config, weights), plan.config, model.scratch, longest)
    params = SamplingParams(max_tokens=tokens, temperature=1.0)
    for batch in plan.sampled:
        plain = 0.0
        for most in plan.drafts:
            capture = None if device.type == "cuda" else eager
            runner = ModelRunner(model, device, longest, batch, capture, most, draft_head=head if most else None)
            limits = Limits(batch, plan.chunk, batch, most_verified(batch, most))
            drafter = Unchanging(runner.drafter) if runner.drafter else None
            engine = Engine(runner, Cache(model.scratch, plan.config.kv_groups), limits, longest, no_mask, drafter)
            seconds, before, after = second_run(engine, plan, batch, params, device)
            step = seconds / (after.steps - before.steps)
            plain = plain or step
            yield {
                "batch": batch,
                "drafts": most,
                "step_milliseconds": step * 1000,
                "worth": step / plain - 1,
                "drafted": after.drafted_tokens - before.drafted_tokens,
                "accepted": after.accepted_tokens - before.accepted_tokens,
            }


def prefill(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the speed of one prompt in chunks; the second of two runs."""
    weights = random_weights(plan.config, device)
    model, longest = model_of(plan, weights, device, [(1, max(plan.prompts))])
    runner = ModelRunner(model, device, longest)
    for tokens in plan.prompts:
        (sequence,) = sequences(plan.config, 1, tokens, GREEDY)
        chunks = [
            ScheduledTokens(sequence, start, min(plan.chunk, tokens - start)) for start in range(0, tokens, plan.chunk)
        ]

        def run(chunks: list[ScheduledTokens] = chunks) -> None:
            for chunk in chunks:
                runner.run([chunk])

        timed(run, device)
        yield {"tokens": tokens, "chunk": plan.chunk, "tokens_per_second": tokens / timed(run, device)}


def start(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of copies to the device, of loading a checkpoint, of compilation, and of the capture of graphs."""
    source = torch.empty(plan.copied // 4, dtype=torch.uint8)
    target = torch.empty_like(source, device=device)
    seconds = timed(partial(target.copy_, source), device)
    yield {"part": "copy to the device", "gb_per_second": len(source) / seconds / 1e9}
    del source, target
    yield from loading(plan, device)
    weights = random_weights(plan.config, device)
    model, longest = model_of(plan, weights, device, [(64, 1024 if not plan.tiny else 128)])
    warm_ups = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # of this section's process: no other section has compiled to it
        for number in (1, 2):  # the second one finds compiled kernels
            capture = None if device.type == "cuda" else eager
            runner = ModelRunner(model, device, longest, 2 if plan.tiny else 64, capture)
            warm_ups.append(timed(partial(runner.warm_up, plan.chunk, lambda *_: None), device))
            yield {"part": f"warm-up {number}", "seconds": warm_ups[-1]}
    compilation = warm_ups[0] - warm_ups[1]
    yield {"part": "compilation", "seconds": compilation, "ok": compilation <= COMPILATION_SECONDS}
    yield {"part": "capture", "seconds": warm_ups[1]}


def loading(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of loading two layers from a file that was just written, and of repacking one of their experts."""
    config = replace(plan.config, windows=plan.config.windows[:2])
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        size = write_checkpoint(Path(folder), config)
        seconds = timed(lambda: load(Path(folder), config, device, dtype, lambda _: None), device)
    yield {"part": "load from a file", "gigabytes": size / 1e9, "gb_per_second": size / seconds / 1e9}
    shape = (2 * config.intermediate, config.hidden // 32, 16)
    blocks = torch.randint(256, shape, dtype=torch.uint8, device=device)
    words_of(blocks)
    repacked = timed(lambda: words_of(blocks), device)
    yield {"part": "repack an expert", "milliseconds": repacked * 1000, "gb_per_second": blocks.nbytes / repacked / 1e9}


def agreement(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield how many tokens agree.

    They are of graphs and eager steps, of kernels that overlap and those that do not, and of a cached prefix and a
    computed one.
    """
    weights = random_weights(plan.config, device)
    prompts = [torch.randint(plan.config.vocabulary, (150 + 70 * number,)).tolist() for number in range(4)]
    model, longest = model_of(plan, weights, device, [(8, 512)])
    params = SamplingParams(max_tokens=4 if plan.tiny else 32, temperature=1.0)

    independent, _ = model_of(plan, weights, device, [(8, 512)], dependent=False)

    def engine(capture: Capture | None, model: Model = model) -> Engine:
        limits = Limits(8, 256, 8)
        runner = ModelRunner(model, device, longest, 8, capture)
        return Engine(runner, Cache(model.scratch, plan.config.kv_groups), limits, 512, no_mask)

    first, other = engine(None), engine(eager)
    found = generated(first, prompts, params)
    yield agreed("graphs and eager steps", found, generated(other, prompts, params), needed=1.0)
    found_again = generated(engine(None, independent), prompts, params)
    yield agreed("dependent and independent launches", found, found_again, needed=1.0)
    yield agreed("computed and cached prefixes", found, generated(first, prompts, params), needed=REUSED)


def agreed(name: str, found: list[int], others: list[int], needed: float) -> Row:
    """Return how many tokens are equal. They are right if at least the needed share of them is."""
    equal = sum(one == two for one, two in zip(found, others, strict=True))
    return {"compared": name, "tokens": len(found), "equal": equal, "ok": equal >= needed * len(found)}


def generated(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[int]:
    """Return the tokens of all prompts, answered together."""
    for number, prompt in enumerate(prompts):
        engine.add(Request((f"{number}",), prompt, replace(params, seed=number)))
    answers: dict[str, list[int]] = {f"{number}": [] for number in range(len(prompts))}
    while engine.busy:
        for update in engine.step():
            answers[update.id].append(update.sampled.token)
    return [token for answer in answers.values() for token in answer]


def host(plan: Plan, _: torch.device) -> Iterator[Row]:
    """Yield the time of the host for a step of the whole engine, without kernels, on a CPU."""
    batch, context, steps = plan.host
    cpu = torch.device("cpu")
    config = replace(TINY, vocabulary=256, context=2 * context)
    room = steps + BLOCK_TOKENS
    plan = replace(plan, config=config, warm=0, steps=room)
    model, longest = model_of(plan, random_weights(config, cpu), cpu, [(batch, context)])
    limits = Limits(batch, context, 0)
    with without_kernels(model):
        runner = ModelRunner(model, cpu, longest, batch, lambda compute: (compute(), lambda: None))
        engine = Engine(runner, Cache(model.scratch, config.kv_groups), limits, longest, no_mask)
        for number in range(batch):
            prompt = torch.randint(config.vocabulary, (context,)).tolist()
            engine.add(Request((f"{number}",), prompt, SamplingParams(max_tokens=room, temperature=1.0, seed=number)))
            engine.step()
        gc.freeze()  # as the engine's process does
        seconds = sorted(timed(engine.step, cpu) for _ in range(steps))
    yield {
        "batch": batch,
        "context": context,
        "median_milliseconds": seconds[steps // 2] * 1000,
        "slowest_milliseconds": seconds[-1] * 1000,
    }


@contextmanager
def without_kernels(model: Model) -> Iterator[None]:
    """Replace the model's computation by tokens of zeros."""

    def forward(batch: object) -> HeadOutput:
        return HeadOutput(torch.zeros(len(batch.sampled), dtype=torch.long), None)  # type: ignore[attr-defined]

    before, model.forward = model.forward, forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        model.forward = before  # type: ignore[method-assign]
