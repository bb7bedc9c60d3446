"""The kernels: compared with plain torch in f32, timed one by one, and launched with other tiles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from functools import cache
from typing import NamedTuple

import torch
from torch.nn import functional

from llama_stack_gpt_oss.engine import rope
from llama_stack_gpt_oss.engine.adjustments import Adjustments
from llama_stack_gpt_oss.engine.batch import Batch, Fields, pack
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS
from llama_stack_gpt_oss.engine.config import ModelConfig
from llama_stack_gpt_oss.engine.kernels import choose, has_fp8, triton_ops
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.kernels.triton_ops import FEW_ROWS, Tiles, TritonOps
from llama_stack_gpt_oss.engine.ops import HeadOutput, LayerKVCache, Ops, Routed
from llama_stack_gpt_oss.engine.sampler import Restricted, draw, restrictions
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.weights import Experts, Layer, Weights

from .baselines import MAX_ROWS, scaled_launch
from .measures import (
    EveryThird,
    Peaks,
    Row,
    blocks_of,
    copies_for,
    copy_bandwidth,
    failure,
    l2_bytes,
    launched,
    product_rate,
    sequences,
    stores_fp8,
)
from .plans import Plan, random_weights

TOLERANCE = 0.02  # of the norm of a row's error, relative: bf16 has eight bits
# FP8 has four bits: a row that is rounded to nearest has up to 0.034, a truncated one 0.047.
TOLERANCES = {"qkv-keys-fp8": 0.04, "qkv-values-fp8": 0.04}
MIXED = ((70, 1), (0, 40), (100, 37), (3, 5))  # computed tokens, and tokens to compute; decodes come first
DRAFTED = ((0, 1), (70, 5), (61, 5), (100, 2))  # computed tokens, and rows of a decode with drafts
PLAIN = {"MAX_DENSE_SPLITS": 1, "DECODED_ROWS": 1 << 30}  # neither splits of inputs nor cuBLAS after attention
PARAMS = SamplingParams(max_tokens=1, temperature=1.0)
RESTRICTED = (
    replace(PARAMS, top_p=0.9),
    replace(PARAMS, top_k=40, min_p=0.01),
    replace(PARAMS, frequency_penalty=0.5, logit_bias=((0, 5.0), (3, -5.0)), top_p=0.5),
)
EQUAL = 0.9  # of the tokens
UNPACKED = ("tokens", "positions", "slots", "sampled", "owners", "temperatures", "seeds")
LARGER = 4  # times the experts of the 20b are those of the 120b
Spans = tuple[tuple[int, int], ...]


def on_device(plan: Plan, device: torch.device) -> TritonOps:
    if device.type == "cpu":
        return TritonOps(plan.config, wide=True)
    ops = choose(plan.config, device, torch.bfloat16, dependent=True)
    assert isinstance(ops, TritonOps)
    return ops


@contextmanager
def using(**values: object) -> Iterator[None]:
    """Replace constants and functions of `triton_ops`."""
    before = {name: getattr(triton_ops, name) for name in values}
    for name, value in values.items():
        setattr(triton_ops, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(triton_ops, name, value)


def under(run: Callable[[int], object], **values: object) -> Callable[[int], object]:
    """Return a launch with other constants and functions of `triton_ops`."""

    def changed(number: int) -> object:
        with using(**values):
            return run(number)

    return changed


def plain_tiles(rows: int, _experts: int, _chosen: int, shared: int) -> tuple[int, Tiles]:
    """Return a tile for the experts as large as the step, without one of 128 rows, in place of `expert_tiles`."""
    block = triton_ops.rows_block(rows)
    return block, triton_ops.fitting(triton_ops.MANY, block, shared)


def wide(layer: Layer) -> Layer:
    """Return the layer in f32, with the experts in MXFP4."""
    dense = {field.name: getattr(layer, field.name) for field in fields(layer)}
    for name, value in dense.items():
        dense[name] = replace(value, bias=value.bias.float()) if isinstance(value, Experts) else value.float()
    return Layer(**dense)


def spans_of(plan: Plan, rows: int) -> Spans:
    """Return sequences of one row each with several lengths, the longest first, or a prompt."""
    longest = min(1000, plan.config.context // 8)
    return tuple((-(1 + number * 37) % longest, 1) for number in range(rows)) if rows <= plan.decoded else ((0, rows),)


class Case:
    """A step, its rows, and a KV cache. drafted: all tokens but the first of each sequence are drafts."""

    def __init__(self, plan: Plan, ops: Ops, weights: Weights, spans: Spans, drafted: bool = False) -> None:
        config, like = plan.config, weights.embedding
        longest = max(start + count for start, count in spans)
        self.works = [
            ScheduledTokens(sequence, start, count)
            for sequence, (start, count) in zip(sequences(config, len(spans), longest, PARAMS), spans, strict=True)
        ]
        for work in self.works:
            del work.sequence.tokens[work.start + work.count :]
            if drafted:
                work.count, work.drafts = 1, work.sequence.tokens[work.start + 1 :]
                del work.sequence.tokens[work.start + 1 :]
        self.kv_groups, self.context = config.kv_groups, longest + BLOCK_TOKENS
        self.batch, _ = self.unpacked(ops, like.device)
        shape = (blocks_of(config, len(spans), longest + 1), BLOCK_TOKENS, config.kv_heads, config.head_size)
        self.keys, self.values = (torch.randn(shape, device=like.device).to(like.dtype) for _ in range(2))
        self.x = torch.randn(len(self.batch.tokens), config.hidden, device=like.device).to(like.dtype)
        self.rope = rope.tables(config, longest + BLOCK_TOKENS, like.device)

    def kv_cache(self, kv_group: int, dtype: torch.dtype) -> LayerKVCache:
        """Return a copy of the KV cache."""
        return LayerKVCache(self.keys.to(dtype, copy=True), self.values.to(dtype, copy=True), kv_group)

    def unpacked(self, ops: Ops, device: torch.device) -> tuple[Batch, State]:
        """Return the batch of the step as the device unpacks it, and the state with the cells that it has written."""
        state = State(len(self.kv_groups), len(self.works), self.context, 0, device)
        width = 1 + max(len(work.drafts) for work in self.works)
        step = pack(self.works, *Entries(state).assign(self.works), width)
        packed = torch.tensor(list(step.packed()), dtype=torch.int32, device=device)
        return ops.unpack(Fields(*packed.split(step.sizes())), step, state), state


@torch.inference_mode()
def correctness(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the error of each kernel, relative to plain torch in f32, for each number of rows; the rarest first.

    plain: with neither split inputs, cuBLAS after attention nor the tiles that fit the rows.
    """
    large = replace(plan.config, experts=LARGER * plan.config.experts)
    yield from _correctness(plan, plan.config, (MIXED, DRAFTED), device)
    yield from _correctness(plan, large, [spans_of(plan, rows) for rows in plan.large_rows], device)
    yield from _correctness(plan, plan.config, [spans_of(plan, rows) for rows in plan.rows], device)
    with using(**PLAIN, expert_tiles=plain_tiles):
        for row in _correctness(plan, plan.config, (MIXED, DRAFTED), device):
            yield {**row, "plain": True}


def _correctness(plan: Plan, config: ModelConfig, steps: Iterable[Spans], device: torch.device) -> Iterator[Row]:
    plan = replace(plan, config=config)
    ops, exact = on_device(plan, device), TorchOps(config)
    weights = random_weights(replace(config, windows=config.windows[:2]), device)
    for spans in steps:
        case = Case(plan, ops, weights, spans, drafted=spans is DRAFTED)
        step: Row = {"rows": len(case.x), "sequences": len(spans), "experts": config.experts}
        for number, (layer, window) in enumerate(zip(weights.layers, config.windows, strict=False)):
            for name, found, expected in compared(case, ops, exact, layer, window, number):
                row = checked(found, expected, TOLERANCES.get(name, TOLERANCE))
                yield {**step, "kernel": name, "window": window or 0, **row}
        for row in (*compared_inputs(case, ops, exact), *compared_tokens(case, ops, exact, weights)):
            yield {**step, **row}


def compared_inputs(case: Case, ops: Ops, exact: Ops) -> Iterator[Row]:
    """Yield whether all that is unpacked from a step's numbers is equal, and all cells that are written."""
    (batch, state), (expected, other) = (case.unpacked(each, case.x.device) for each in (ops, exact))
    pairs = [(getattr(batch, name), getattr(expected, name)) for name in UNPACKED]
    yield {"kernel": "unpack", "ok": all(torch.equal(one, two) for one, two in pairs)}
    yield {"kernel": "write", "ok": torch.equal(state.cells, other.cells)}


def compared_tokens(case: Case, ops: TritonOps, exact: TorchOps, weights: Weights) -> Iterator[Row]:
    """Yield the error of the logits, and how many tokens are those that plain torch draws from the same logits."""
    batch, config = replace(case.batch, kept=True), ops.config
    wanted = case.x[batch.sampled]
    head = ops.head(wanted, weights, batch)
    whole = replace(weights, norm=weights.norm.float(), unembedding=weights.unembedding.float())
    yield {"kernel": "head", **checked(head.logits, exact.head(wanted.float(), whole, batch).logits)}
    assert head.logits is not None
    yield {"kernel": "pick", **equal(head.tokens, draw(head.logits, batch.temperatures, batch.seeds))}
    restricted = restricted_of(case, config, RESTRICTED, masked=True)
    tokens = head.tokens.clone()
    exact.redraw(replace(head, tokens=tokens), batch, restricted)
    ops.redraw(head, batch, restricted)
    yield {"kernel": "redraw", **equal(head.tokens, tokens)}


def restricted_of(case: Case, config: ModelConfig, ways: Sequence[SamplingParams], masked: bool) -> Restricted:
    """Return the restrictions of all sequences, which take turns in the ways of sampling. masked: half have a mask."""
    for number, work in enumerate(case.works):
        work.sequence.params = ways[number % len(ways)]
        work.sequence.mask = EveryThird(config.vocabulary) if masked and number % 2 else None
    adjustments = Adjustments(len(case.works), config.vocabulary, case.x.device)
    entries = [number for number, work in enumerate(case.works) for _ in range(1 + len(work.drafts))]
    packed = restrictions(case.works, entries, adjustments)
    numbers = torch.tensor(list(packed.numbers), dtype=torch.int32, device=case.x.device)
    return packed.sent(numbers, adjustments.table)


def equal(found: torch.Tensor, expected: torch.Tensor) -> Row:
    """Return how many tokens are equal. Logarithms differ in their last bits, so a near tie may end otherwise."""
    count = int((found == expected).sum())
    return {"tokens": len(found), "equal": count, "ok": count >= EQUAL * len(found)}


def checked(found: torch.Tensor | None, expected: torch.Tensor | None, tolerance: float = TOLERANCE) -> Row:
    """Return the relative error of the row that has the largest: a wrong row is not hidden by many right ones."""
    assert found is not None
    assert expected is not None
    off, whole = (each.flatten(1).norm(dim=-1) for each in (found.float() - expected, expected))
    error = float((off / whole).max())
    return {"error": error, "ok": error < tolerance}


def compared(
    case: Case, ops: TritonOps, exact: TorchOps, layer: Layer, window: int | None, kv_group: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the name of a kernel, and what it and plain torch compute of the same inputs."""
    x, batch, dtype, whole = case.x, case.batch, case.x.dtype, wide(layer)
    ours, theirs = case.kv_cache(kv_group, dtype), case.kv_cache(kv_group, torch.float32)
    queries = ops.qkv(x, layer, case.rope, batch, ours)
    yield "qkv", queries, exact.qkv(x.float(), whole, case.rope, batch, theirs)
    yield from compared_stores("", ours, theirs, batch)
    yield from compared_fp8(case, ops, exact, layer, window, queries, theirs)
    theirs = LayerKVCache(ours.keys.float(), ours.values.float(), kv_group)
    mixed = ops.attention(queries, layer, window, batch, ours)
    yield "attention", mixed, exact.attention(queries.float(), whole, window, batch, theirs)
    yield "out", ops.out(mixed, x, layer), exact.out(mixed.float(), x.float(), whole)
    routed, other = ops.route(x, layer), exact.route(x.float(), whole)
    yield "norm", routed.normed, other.normed
    yield "route", routed.scores, other.scores
    other = Routed(routed.normed.float(), routed.scores)
    inner = ops.up(routed, layer)
    yield "up", inner, exact.up(other, whole)
    yield "down", ops.down(inner, routed, x, layer), exact.down(inner.float(), other, x.float(), whole)


def compared_stores(
    suffix: str, ours: LayerKVCache, theirs: LayerKVCache, batch: Batch
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the keys and values that a step has written: the rest of the cache, which is equal, would hide an error."""
    written = batch.slots[ours.kv_group]
    for name in ("keys", "values"):
        found, expected = (getattr(each, name).flatten(0, 1)[written] for each in (ours, theirs))
        yield f"qkv-{name}{suffix}", found, expected


def compared_fp8(
    case: Case,
    ops: Ops,
    exact: TorchOps,
    layer: Layer,
    window: int | None,
    queries: torch.Tensor,
    stored: LayerKVCache,
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the same of a KV cache in FP8, if the device has it, and attention over it. stored: the exact cache."""
    x, batch = case.x, case.batch
    if not has_fp8(x.device):
        return
    ours = case.kv_cache(stored.kv_group, torch.float8_e4m3fn)
    if stores_fp8(x.device):
        ops.qkv(x, layer, case.rope, batch, ours)
        yield from compared_stores("-fp8", ours, stored, batch)
    theirs = LayerKVCache(ours.keys.float(), ours.values.float(), stored.kv_group)
    mixed = ops.attention(queries, layer, window, batch, ours)
    yield "attention-fp8", mixed, exact.attention(queries.float(), wide(layer), window, batch, theirs)


class Launch(NamedTuple):
    """A kernel to time: the bytes of weights and KV that it reads, its floating-point operations, and a launch.

    copies: of the weights or KV. The n-th launch reads the n-th of them, and after the last one the first again.
    """

    kernel: str
    size: float
    operations: float
    copies: int
    run: Callable[[int], object]


@torch.inference_mode()
def timings(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of each kernel, and its share of the roofline. cuBLAS and `tl.dot_scaled` are beside it."""
    ops = on_device(plan, device)
    peaks = Peaks(copy_bandwidth(device, plan.copied), product_rate(device, plan.multiplied))
    weights = random_weights(replace(plan.config, windows=plan.config.windows[:8]), device)
    yield {"kernel": "copy", "tb_per_second": peaks.bandwidth / 1e12}
    yield {"kernel": "product", "tflops": peaks.products / 1e12}
    for rows in plan.timed_rows:
        for launch in launches(Case(plan, ops, weights, spans_of(plan, rows)), ops, weights, plan.repeats):
            yield {"rows": rows, **timing(launch, peaks, plan.repeats, device)}
    for answers, start, count in plan.attended:
        case = Case(plan, ops, weights, ((start, count),) * answers)
        for window in dict.fromkeys(plan.config.windows):
            launch = attention(case, ops, weights, window, plan.repeats)
            row = timing(launch, peaks, plan.repeats, device)
            yield {"rows": len(case.x), "sequences": answers, "keys": start + count, "window": window or 0, **row}


def timing(launch: Launch, peaks: Peaks, repeats: int, device: torch.device) -> Row:
    """Return the time of a kernel, or why it failed. cold: no launch finds its weights or KV in the L2 cache."""
    try:
        seconds = launched(launch.run, repeats, device)
    except Exception as error:  # noqa: BLE001 -- the other kernels have to be timed
        return {"kernel": launch.kernel, "failed": failure(error)}
    bound, least = peaks.roofline(launch.size, launch.operations)
    return {
        "kernel": launch.kernel,
        "microseconds": seconds * 1e6,
        "megabytes": launch.size / 1e6,
        "tb_per_second": launch.size / seconds / 1e12,
        "tflops": launch.operations / seconds / 1e12,
        "bound": bound,
        "share": least / seconds,
        "cold": l2_bytes(device) > 0 and launch.copies >= copies_for(launch.size, repeats, l2_bytes(device)),
    }


def launches(case: Case, ops: TritonOps, weights: Weights, repeats: int) -> Iterator[Launch]:
    """Yield the launches of all kernels but attention. Those of a layer's kernel read the layers in turn."""
    yield from dense_launches(case, ops, weights, repeats)
    config, layers, first, rows = ops.config, weights.layers, weights.layers[0], len(case.x)
    inner = torch.randn(rows, config.experts_per_token, config.intermediate, device=case.x.device).to(case.x.dtype)
    routed = cache(lambda: ops.route(case.x, first))  # in a launch, where it may fail
    chosen = rows * config.experts_per_token
    # With few rows, each of them reads its own experts.
    used = 1 - (1 - config.experts_per_token / config.experts) ** rows if rows > FEW_ROWS else chosen / config.experts

    def up(number: int) -> object:
        return ops.up(routed(), layers[number % len(layers)])

    def down(number: int) -> object:
        return ops.down(inner, routed(), case.x, layers[number % len(layers)])

    for name, run, all_experts in (
        ("up", up, [each.up for each in layers]),
        ("down", down, [each.down for each in layers]),
    ):
        experts = all_experts[0]
        values = experts.words.numel() * 8 / config.experts  # of an expert
        size = used * (experts.words.nbytes + experts.scales.nbytes)
        yield Launch(name, size, 2 * chosen * values, len(layers), run)
        if rows > FEW_ROWS:
            yield Launch(f"{name}-plain", size, 2 * chosen * values, len(layers), under(run, expert_tiles=plain_tiles))
        if chosen <= MAX_ROWS * config.experts:
            size, scaled = scaled_launch(all_experts, rows, config.experts_per_token)
            yield Launch(f"{name}-dot-scaled", size, 2 * chosen * values, len(layers), scaled)


def dense_launches(case: Case, ops: TritonOps, weights: Weights, repeats: int) -> Iterator[Launch]:
    """Yield the launches of the kernels with dense weights, of cuBLAS with the same weights, and of sampling."""
    x, batch, layers, first = case.x, case.batch, weights.layers, weights.layers[0]
    kv_cache, count = case.kv_cache(0, x.dtype), len(weights.layers)
    mixed = torch.randn(len(x), ops.config.query_width, device=x.device).to(x.dtype)
    copies = copies_for(first.router.nbytes, repeats, l2_bytes(x.device))
    routers = [replace(layers[number % count], router=first.router.clone()) for number in range(copies)]

    def layer(number: int) -> Layer:
        return layers[number % count]

    def launch(name: str, weight: torch.Tensor, rows: int, copies: int, run: Callable[[int], object]) -> Launch:
        return Launch(name, weight.nbytes, 2 * rows * weight.numel(), copies, run)

    rows, wanted, last = len(x), x[batch.sampled], weights.unembedding
    both: dict[str, tuple[torch.Tensor, int, Callable[[int], object]]] = {
        "qkv": (first.qkv, count, lambda n: ops.qkv(x, layer(n), case.rope, batch, kv_cache)),
        "out": (first.out, count, lambda n: ops.out(mixed, x, layer(n))),
        "route": (first.router, copies, lambda n: ops.route(x, routers[n % copies])),
    }
    for name, (weight, each, run) in both.items():
        yield launch(name, weight, rows, each, run)
        if name == "out" or (name == "route" and rows > triton_ops.DECODED_ROWS):
            yield launch(f"{name}-plain", weight, rows, each, under(run, **PLAIN))
    yield launch("qkv-cublas", first.qkv, rows, count, lambda n: functional.linear(x, layer(n).qkv, layer(n).qkv_bias))
    yield launch(
        "out-cublas", first.out, rows, count, lambda n: functional.linear(mixed, layer(n).out, layer(n).out_bias)
    )
    yield launch("head", last, len(wanted), 1, lambda _: ops.head(wanted, weights, batch))
    yield launch("head-cublas", last, len(wanted), 1, lambda _: functional.linear(wanted, last))
    yield redraw_launch(case, ops)


def redraw_launch(case: Case, ops: TritonOps) -> Launch:
    """Return the launches that sample all sequences with top_p from kept logits, which may be in the L2 cache."""
    logits = torch.randn(len(case.batch.sampled), ops.config.vocabulary, device=case.x.device)
    head = HeadOutput(logits.argmax(-1), logits)
    restricted = restricted_of(case, ops.config, (replace(PARAMS, top_p=0.9),), masked=False)
    return Launch("redraw-top-p", logits.nbytes, 0, 1, lambda _: ops.redraw(head, case.batch, restricted))


def attention(case: Case, ops: TritonOps, weights: Weights, window: int | None, repeats: int) -> Launch:
    """Return the launches of attention, which read copies of the KV cache in turn."""
    config, x, batch, layer = ops.config, case.x, case.batch, weights.layers[0]
    queries = torch.randn(len(x), config.query_heads, config.head_size, device=x.device).to(x.dtype)
    sizes = zip(batch.starts.diff().tolist(), batch.lengths.tolist(), strict=True)  # rows and keys of each sequence
    read = seen = 0
    for rows, keys in sizes:
        read += min(keys, (window or keys) + rows - 1)
        seen += sum(min(window or keys, keys - row) for row in range(rows))
    size = float(read * 2 * config.kv_width + 2 * queries.numel()) * x.element_size()  # the result is as large
    copies = copies_for(size, repeats, l2_bytes(x.device))
    kv_caches = [case.kv_cache(0, x.dtype) for _ in range(copies)]
    return Launch(
        "attention",
        size,
        4.0 * seen * config.query_width,
        copies,
        lambda n: ops.attention(queries, layer, window, batch, kv_caches[n % copies]),
    )
