"""The kernels: compared with plain torch in f32, timed one by one, and launched with other tiles."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace
from itertools import product

import torch
from torch.nn import functional

from llama_stack_gpt_oss.engine import rope
from llama_stack_gpt_oss.engine.batch import Batch, Fields, pack
from llama_stack_gpt_oss.engine.cache import PAGE
from llama_stack_gpt_oss.engine.kernels import triton_ops
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.kernels.triton_ops import FEW_ROWS, ExpertTiles, TritonOps
from llama_stack_gpt_oss.engine.ops import Ops, Routed, Store
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import SamplingParams
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.weights import Experts, Layer, Weights

from .baselines import scaled_launch
from .measures import Row, copy_bandwidth, launched, pages_of, sequences
from .plans import Plan, random_weights

TOLERANCE = 0.02  # of the error's norm, relative: bf16 has eight bits
MIXED = ((70, 1), (0, 40), (100, 37), (3, 5))  # computed tokens, and tokens to compute; decodes come first
DRAFTED = ((0, 1), (70, 5), (61, 5), (100, 2))  # computed tokens, and rows of a decode with drafts
TILES = tuple(product((64, 128), (256, 128), (4, 8), (4, 3)))  # strip, depth, warps, stages
PARAMS = SamplingParams(max_tokens=1, temperature=1.0)


def on_device(plan: Plan, device: torch.device) -> TritonOps:
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
    return TritonOps(plan.config, wide=device.type == "cpu", processors=processors)


def wide(layer: Layer) -> Layer:
    """Return the layer in f32, with the experts in MXFP4."""
    dense = {field.name: getattr(layer, field.name) for field in fields(layer)}
    for name, value in dense.items():
        dense[name] = replace(value, bias=value.bias.float()) if isinstance(value, Experts) else value.float()
    return Layer(**dense)


def spans_of(plan: Plan, rows: int) -> tuple[tuple[int, int], ...]:
    """Return sequences of one row each with several lengths, the longest first, or a prompt."""
    longest = min(1000, plan.config.context // 8)
    return tuple((-(1 + number * 37) % longest, 1) for number in range(rows)) if rows <= 128 else ((0, rows),)


class Case:
    """A step, its rows, and a KV cache. drafted: all tokens but the first of each sequence are drafts."""

    def __init__(
        self, plan: Plan, ops: Ops, weights: Weights, spans: tuple[tuple[int, int], ...], drafted: bool = False
    ) -> None:
        config, like = plan.config, weights.embedding
        longest = max(start + count for start, count in spans)
        works = [
            ScheduledTokens(sequence, start, count)
            for sequence, (start, count) in zip(sequences(config, len(spans), longest, PARAMS), spans, strict=True)
        ]
        for work in works:
            del work.sequence.tokens[work.start + work.count :]
            if drafted:
                work.count, work.drafts = 1, work.sequence.tokens[work.start + 1 :]
                del work.sequence.tokens[work.start + 1 :]
        self.batch = batch_of(works, ops, config.kv_groups, longest + PAGE, like.device)
        shape = (pages_of(config, len(spans), longest + 1), PAGE, config.kv_heads, config.head_size)
        self.keys, self.values = (torch.randn(shape, device=like.device).to(like.dtype) for _ in range(2))
        self.x = torch.randn(len(self.batch.tokens), config.hidden, device=like.device).to(like.dtype)
        self.rope = rope.tables(config, longest + PAGE, like.device)

    def store(self, kv_group: int, dtype: torch.dtype) -> Store:
        """Return a copy of the KV cache."""
        return Store(self.keys.to(dtype, copy=True), self.values.to(dtype, copy=True), kv_group)


def batch_of(
    works: list[ScheduledTokens], ops: Ops, kv_groups: tuple[int | None, ...], context: int, device: torch.device
) -> Batch:
    state = State(len(kv_groups), len(works), context, 0, device)
    width = 1 + max(len(work.drafts) for work in works)
    step = pack(works, *Entries(state).assign(works), width)
    packed = torch.tensor(list(step.packed()), dtype=torch.int32, device=device)
    return ops.unpack(Fields(*packed.split(step.sizes())), step, state)


@torch.inference_mode()
def correctness(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the error of each kernel, relative to plain torch in f32, for each number of rows."""
    ops, exact = on_device(plan, device), TorchOps(plan.config)
    weights = random_weights(replace(plan.config, windows=plan.config.windows[:2]), device)
    for spans in (MIXED, DRAFTED, *(spans_of(plan, rows) for rows in plan.rows)):  # the rarest first
        case = Case(plan, ops, weights, spans, drafted=spans is DRAFTED)
        for number, (layer, window) in enumerate(zip(weights.layers, plan.config.windows, strict=False)):
            for name, found, expected in compared(case, ops, exact, layer, window, number):
                yield checked(found, expected, rows=len(case.x), sequences=len(spans), kernel=name, window=window or 0)
        batch, wanted = replace(case.batch, kept=True), case.x[case.batch.sampled]
        logits = ops.head(wanted, weights, batch).logits
        whole = replace(weights, norm=weights.norm.float(), unembedding=weights.unembedding.float())
        expected_logits = exact.head(wanted.float(), whole, batch).logits
        yield checked(logits, expected_logits, rows=len(wanted), sequences=len(spans), kernel="head")


def checked(found: torch.Tensor | None, expected: torch.Tensor | None, **row: str | float) -> Row:
    """Return the row with the relative error of what was found."""
    assert found is not None
    assert expected is not None
    error = float((found.float() - expected).norm() / expected.norm())
    return {**row, "error": error, "ok": error < TOLERANCE}


def compared(
    case: Case, ops: TritonOps, exact: TorchOps, layer: Layer, window: int | None, kv_group: int
) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the name of a kernel, and what it and plain torch compute of the same inputs."""
    x, batch, dtype, whole = case.x, case.batch, case.x.dtype, wide(layer)
    ours, theirs = case.store(kv_group, dtype), case.store(kv_group, torch.float32)
    queries = ops.qkv(x, layer, case.rope, batch, ours)
    yield "qkv", queries, exact.qkv(x.float(), whole, case.rope, batch, theirs)
    yield "qkv-keys", ours.keys, theirs.keys
    theirs = Store(ours.keys.float(), ours.values.float(), kv_group)
    mixed = ops.attention(queries, layer, window, batch, ours)
    yield "attention", mixed, exact.attention(queries.float(), whole, window, batch, theirs)
    eight = case.store(kv_group, torch.float8_e4m3fn)
    theirs = Store(eight.keys.float(), eight.values.float(), kv_group)
    mixed_eight = ops.attention(queries, layer, window, batch, eight)
    yield "attention-fp8", mixed_eight, exact.attention(queries.float(), whole, window, batch, theirs)
    yield "out", ops.out(mixed, x, layer), exact.out(mixed.float(), x.float(), whole)
    routed, other = ops.route(x, layer), exact.route(x.float(), whole)
    yield "route", routed.scores, other.scores
    other = Routed(routed.normed.float(), routed.scores)
    inner = ops.up(routed, layer)
    yield "up", inner, exact.up(other, whole)
    yield "down", ops.down(inner, routed, x, layer), exact.down(inner.float(), other, x.float(), whole)


@torch.inference_mode()
def timings(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of each kernel, its bytes, and its share of the roofline.

    cuBLAS, `tl.dot_scaled` and a copy are beside it.
    """
    ops, bandwidth = on_device(plan, device), copy_bandwidth(device, plan.copied)
    weights = random_weights(replace(plan.config, windows=plan.config.windows[:4]), device)
    yield {"kernel": "copy", "tb_per_second": bandwidth / 1e12}
    for rows in plan.timed_rows:
        case = Case(plan, ops, weights, spans_of(plan, rows))
        for name, size, run in launches(case, ops, weights):
            seconds = launched(run, plan.repeats, device)
            yield {
                "rows": rows,
                "kernel": name,
                "microseconds": seconds * 1e6,
                "megabytes": size / 1e6,
                "tb_per_second": size / seconds / 1e12,
                "share": size / seconds / bandwidth,
            }


Launch = Callable[[int], object]


def launches(case: Case, ops: TritonOps, weights: Weights) -> Iterator[tuple[str, float, Launch]]:
    """Yield the name of a kernel, the bytes of weights and KV that it reads, and a launch with the n-th layer."""
    x, batch, layers, first = case.x, case.batch, weights.layers, weights.layers[0]
    store, config = case.store(0, x.dtype), ops.config

    def layer(number: int) -> Layer:
        return layers[number % len(layers)]

    queries, routed = ops.qkv(x, first, case.rope, batch, store), ops.route(x, first)
    mixed, inner = ops.attention(queries, first, None, batch, store), ops.up(routed, first)
    seen = float(batch.lengths.sum()) * 2 * config.kv_width * x.element_size()
    chosen = min(config.experts, len(x) * config.experts_per_token)
    used = (
        1 - (1 - config.experts_per_token / config.experts) ** len(x) if len(x) > FEW_ROWS else chosen / config.experts
    )
    yield "qkv", first.qkv.nbytes, lambda n: ops.qkv(x, layer(n), case.rope, batch, store)
    yield "qkv-cublas", first.qkv.nbytes, lambda n: functional.linear(x, layer(n).qkv, layer(n).qkv_bias)
    yield "attention", seen, lambda n: ops.attention(queries, layer(n), None, batch, store)
    yield "out", first.out.nbytes, lambda n: ops.out(mixed, x, layer(n))
    yield "out-cublas", first.out.nbytes, lambda n: functional.linear(mixed, layer(n).out, layer(n).out_bias)
    yield "route", first.router.nbytes, lambda n: ops.route(x, layer(n))
    for name, experts in (("up", first.up), ("down", first.down)):
        size = used * (experts.words.nbytes + experts.scales.nbytes)
        run: Launch = (
            (lambda n: ops.up(routed, layer(n))) if name == "up" else (lambda n: ops.down(inner, routed, x, layer(n)))
        )
        yield name, size, run
        of_layers = [each.up if name == "up" else each.down for each in layers]
        yield f"{name}-dot-scaled", *scaled_launch(of_layers, len(x), config.experts_per_token)
    wanted = x[batch.sampled]
    yield "head", weights.unembedding.nbytes, lambda _: ops.head(wanted, weights, batch)
    yield "head-cublas", weights.unembedding.nbytes, lambda _: functional.linear(wanted, weights.unembedding)


@torch.inference_mode()
def sweep(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of the experts' kernels with each tile that launches, and the best tile of each at the end."""
    ops = on_device(plan, device)
    weights = random_weights(replace(plan.config, windows=plan.config.windows[:4]), device)
    tiles = [ExpertTiles(*numbers) for numbers in TILES][: 1 if plan.tiny else None]
    for rows, name in ((1, "FEW"), (plan.timed_rows[-1] if plan.tiny else 64, "MANY")):
        case = Case(plan, ops, weights, spans_of(plan, rows))
        for kernel, _, run in launches(case, ops, weights):
            if kernel in ("up", "down"):
                for row in tried(name, tiles, run, plan.repeats, device):
                    yield {"rows": rows, "kernel": kernel, **row}


def tried(name: str, tiles: Iterable[ExpertTiles], run: Launch, repeats: int, device: torch.device) -> Iterator[Row]:
    """Yield the time of a launch with each tile in place of the named one, then the fastest tile."""
    before, times = getattr(triton_ops, name), dict[str, float]()
    for tile in tiles:
        setattr(triton_ops, name, tile)
        try:
            seconds = launched(run, repeats, device)
        except Exception as error:  # noqa: BLE001 -- too much shared memory, or a tile that does not compile
            yield {"tile": str(tile), "failed": type(error).__name__}
            continue
        finally:
            setattr(triton_ops, name, before)
        times[str(tile)] = seconds * 1e6
        yield {"tile": str(tile), "microseconds": seconds * 1e6}
    if times:
        best = min(times, key=times.__getitem__)
        yield {"best": best, "microseconds": times[best]}
