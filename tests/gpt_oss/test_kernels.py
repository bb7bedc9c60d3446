"""Each kernel against its counterpart in plain torch, interpreted on the CPU."""

import gc
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import triton
from triton.runtime import interpreter

from benchmarks.gpt_oss.kernels import plain_tiles
from llama_stack_gpt_oss.config import GptOssConfig
from llama_stack_gpt_oss.engine import mxfp4, reference, rope
from llama_stack_gpt_oss.engine.adjustments import Adjustments
from llama_stack_gpt_oss.engine.batch import Batch, Fields, pack, padded
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS, BlockTable, KVCacheBlocks, blocks_filled, blocks_unseen
from llama_stack_gpt_oss.engine.config import ModelConfig, read_config
from llama_stack_gpt_oss.engine.graphs import graph_sizes
from llama_stack_gpt_oss.engine.kernels import choose, sampling, triton_ops
from llama_stack_gpt_oss.engine.kernels.decoding import PAIRS, SHRUNK
from llama_stack_gpt_oss.engine.kernels.norm import route_row_kernel
from llama_stack_gpt_oss.engine.kernels.torch_ops import TorchOps
from llama_stack_gpt_oss.engine.kernels.triton_ops import (
    FEW_ROWS,
    Tiles,
    TritonOps,
    expert_tiles,
    padded_rows,
    rows_block,
)
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.mxfp4 import GROUP, LARGEST_SCALE
from llama_stack_gpt_oss.engine.ops import HeadOutput, LayerKVCache, Routed
from llama_stack_gpt_oss.engine.sampler import restrictions, row_seed, seed_base
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import ScheduledTokens
from llama_stack_gpt_oss.engine.sequence import Sequence
from llama_stack_gpt_oss.engine.state import Entries, State
from llama_stack_gpt_oss.engine.warm_up import warm_up_steps
from llama_stack_gpt_oss.engine.weights import Experts, Weights, load

from .support import ptx
from .support.engines import CPU, batch_of, tiny_model

CLOSE = 2e-4
SCALES = range(33, LARGEST_SCALE + 1)  # those with which all values are exact in bf16
BLOCKS = 40
GONE = 39  # a block that must not be read


@pytest.fixture(scope="module")
def config(checkpoint: Path) -> ModelConfig:
    return read_config(checkpoint)


@pytest.fixture(scope="module")
def weights(checkpoint: Path, config: ModelConfig) -> Weights:
    return load(checkpoint, config, torch.device("cpu"), torch.float32, lambda _: None)


@pytest.fixture(scope="module")
def torch_ops(config: ModelConfig) -> TorchOps:
    return TorchOps(config)


@pytest.fixture(scope="module")
def kernels(config: ModelConfig) -> TritonOps:
    return TritonOps(config, wide=True)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=CLOSE, rtol=CLOSE)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def works_of(*spans: tuple[int, int], window: int | None = None) -> list[ScheduledTokens]:
    """Return a step over sequences given as (computed tokens, tokens to compute), with interleaved blocks.

    The first kind of layer has the window, and its blocks behind the window are gone.
    """
    works = []
    for number, (start, count) in enumerate(spans):
        numbers = [(number + place * len(spans)) * 2 for place in range(blocks_filled(start + count))]
        gone = blocks_unseen(start, window)
        params = SamplingParams(max_tokens=1, top_logprobs=0)
        sequence = Sequence(f"{number}", list(range(start + count)), start + count, params, number)
        tables = BlockTable([GONE] * gone + numbers[gone:], gone), BlockTable([block + 1 for block in numbers])
        sequence.blocks = KVCacheBlocks(tables=tables)
        works.append(ScheduledTokens(sequence, start, count))
    return works


def batch(*spans: tuple[int, int], window: int | None = None) -> Batch:
    return batch_of(*works_of(*spans, window=window))


def drafted(*spans: tuple[int, int], window: int | None = None) -> list[ScheduledTokens]:
    """Return decodes with drafts: `spans` are the computed tokens, and the number of rows."""
    works = works_of(*spans, window=window)
    for work in works:
        tokens = work.sequence.tokens
        work.count, work.drafts = 1, tokens[work.start + 1 :]
        del tokens[work.start + 1 :]
    return works


def kv_cache(config: ModelConfig, kv_group: int = 0) -> LayerKVCache:
    keys, values = (normal(BLOCKS, 64, config.kv_heads, config.head_size) + place for place in (0, 0.5))
    keys[GONE] = values[GONE] = torch.nan
    return LayerKVCache(keys, values, kv_group)


DECODE = ((5, 1), (63, 1), (64, 1), (200, 1), (0, 1))
MIXED = ((0, 40), (70, 1), (100, 37), (3, 5))


@pytest.mark.parametrize(("spans", "kv_group"), [(DECODE[:1], 0), (DECODE, 1), (MIXED, 0)])
def test_queries_keys_and_values_match_torch(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    kernels: TritonOps,
    spans: tuple[tuple[int, int], ...],
    kv_group: int,
) -> None:
    step, tables = batch(*spans), rope.tables(config, 512, torch.device("cpu"))
    x = normal(len(step.tokens), config.hidden)
    ours, theirs = kv_cache(config, kv_group), kv_cache(config, kv_group)
    q = kernels.qkv(x, weights.layers[0], tables, step, ours)
    close(q, torch_ops.qkv(x, weights.layers[0], tables, step, theirs))
    close(ours.keys[:GONE], theirs.keys[:GONE])
    close(ours.values[:GONE], theirs.values[:GONE])


@pytest.mark.parametrize("splits", [1, 2, 4, 8])
def test_projection_after_attention_with_split_inputs_matches_torch(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    monkeypatch: pytest.MonkeyPatch,
    splits: int,
) -> None:
    """8 splits of 256 inputs leave some of them empty."""
    monkeypatch.setattr(TritonOps, "dense_splits", lambda *_: splits)
    kernels, layer = TritonOps(config, wide=True), weights.layers[0]
    mixed, x = normal(len(DECODE), config.query_width), normal(len(DECODE), config.hidden)
    close(kernels.out(mixed, x, layer), torch_ops.out(mixed, x, layer))


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_experts_with_split_inputs_match_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, monkeypatch: pytest.MonkeyPatch, splits: int
) -> None:
    """An expert's bias is added once, and the splits behind the inputs are empty."""
    monkeypatch.setattr(triton_ops, "DOWN_SPLITS", splits)
    monkeypatch.setattr(triton_ops, "MANY", Tiles(strip=64, depth=32, warps=4, stages=3))
    kernels, layer, x = TritonOps(config, wide=True), weights.layers[1], normal(1, config.hidden)
    routed = torch_ops.route(x, layer)
    inner = torch_ops.up(routed, layer)
    close(kernels.down(inner, routed, x, layer), torch_ops.down(inner, routed, x, layer))


def test_result_of_splits_does_not_depend_on_their_order(
    config: ModelConfig, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs that run in the opposite order write the same bits."""
    monkeypatch.setattr(TritonOps, "dense_splits", lambda *_: 4)
    kernels, layer = TritonOps(config, wide=True), weights.layers[0]
    x, mixed = normal(len(DECODE), config.hidden), normal(len(DECODE), config.query_width)
    set_grid_dim, set_grid_idx = (
        getattr(interpreter.interpreter_builder, name) for name in ("set_grid_dim", "set_grid_idx")
    )
    grid = [1, 1, 1]

    def dimensions(*sizes: int) -> None:
        grid[:] = sizes
        set_grid_dim(*sizes)

    def results() -> list[torch.Tensor]:
        routed = kernels.route(x[:1], layer)
        return [kernels.out(mixed, x, layer), kernels.down(kernels.up(routed, layer), routed, x[:1], layer)]

    expected = results()
    monkeypatch.setattr(interpreter.interpreter_builder, "set_grid_dim", dimensions)
    monkeypatch.setattr(
        interpreter.interpreter_builder,
        "set_grid_idx",
        lambda *place: set_grid_idx(*(size - 1 - each for size, each in zip(grid, place, strict=True))),
    )
    for found, other in zip(results(), expected, strict=True):
        assert torch.equal(found, other)


@pytest.mark.parametrize(("strips", "splits"), [(90, 4), (180, 2), (132, 1), (264, 1), (80, 8), (10, 8)])
def test_inputs_are_split_until_multiprocessors_are_equally_busy(config: ModelConfig, strips: int, splits: int) -> None:
    """90 strips are those of both models after attention."""
    assert TritonOps(config, processors=132).dense_splits(strips) == splits


def test_cublas_multiplies_before_attention_and_for_prompts_after_it(
    config: ModelConfig, weights: Weights, kernels: TritonOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiplied: list[tuple[int, ...]] = []
    linear = torch.nn.functional.linear

    def counted(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        multiplied.append((len(x), len(weight)))
        return linear(x, weight, *bias)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    masked_load, reads = interpreter.interpreter_builder.create_masked_load, Counter[int]()
    layer = weights.layers[0]

    def load(pointers: Any, *args: Any) -> Any:
        for address in np.unique(pointers.data[args[0].data]):
            reads[int(address)] += 1
        return masked_load(pointers, *args)

    for rows in (64, 65):
        step, x = batch((0, rows)), normal(rows, config.hidden)
        kernels.qkv(x, layer, rope.tables(config, 512, CPU), step, kv_cache(config))
        kernels.out(normal(rows, config.query_width), x, layer)
        monkeypatch.setattr(interpreter.interpreter_builder, "create_masked_load", load)
        kernels.route(x, layer)
        monkeypatch.setattr(interpreter.interpreter_builder, "create_masked_load", masked_load)
    assert multiplied == [(64, len(layer.qkv)), (65, len(layer.qkv)), (65, config.hidden)]
    assert {reads[x.data_ptr() + 4 * place] for place in range(x.numel())} == {1}


@pytest.mark.parametrize("window", [None, 16, 128])
@pytest.mark.parametrize("spans", [DECODE[:1], DECODE, MIXED])
def test_attention_kernel_matches_torch(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    kernels: TritonOps,
    spans: tuple[tuple[int, int], ...],
    window: int | None,
) -> None:
    step, kv = batch(*spans, window=window), kv_cache(config, kv_group=int(window is None))
    q = normal(len(step.tokens), config.query_heads, config.head_size)
    found = kernels.attention(q, weights.layers[1], window, step, kv)
    close(found, torch_ops.attention(q, weights.layers[1], window, step, kv))


def test_kernels_with_fp8_kv_cache_match_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, kernels: TritonOps
) -> None:
    """Keys that do not fit become the largest number.

    Triton's interpreter loses the carry of a number that is rounded up to a power of two, so these are not compared,
    nor those below the normal numbers.
    """
    step, tables, layer = batch(*MIXED), rope.tables(config, 512, CPU), weights.layers[0]
    layer = replace(layer, qkv_bias=layer.qkv_bias.index_fill(0, torch.tensor([config.query_width]), 1e4))
    x, kv_caches = normal(len(step.tokens), config.hidden), []
    for ops in (torch_ops, kernels):
        kv = kv_cache(config, kv_group=1)
        kv_caches.append(LayerKVCache(kv.keys.to(torch.float8_e4m3fn), kv.values.to(torch.float8_e4m3fn), 1))
        q = ops.qkv(x, layer, tables, step, kv_caches[-1])
    theirs, ours = kv_caches
    for expected, found in ((theirs.keys, ours.keys), (theirs.values, ours.values)):
        wide = expected[:GONE].float()
        compared = (wide.frexp().mantissa.abs() != 0.5) & (wide.abs() >= 2**-6)
        differing = (wide != found[:GONE].float()) & compared
        assert compared.float().mean() > 0.7
        assert differing.float().mean() < 1e-4  # a sum near the middle of two numbers
    assert theirs.keys[:GONE].float().max() == ours.keys[:GONE].float().max() == 448
    mixed, expected = (ops.attention(q, layer, None, step, theirs) for ops in (kernels, torch_ops))
    close(mixed, expected)


def test_attention_with_fp8_kv_cache_is_close_to_exact(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps
) -> None:
    step, kv = batch(*MIXED), kv_cache(config, kv_group=1)
    q = normal(len(step.tokens), config.query_heads, config.head_size)
    exact = torch_ops.attention(q, weights.layers[0], None, step, kv)
    for dtype, least, most in ((torch.bfloat16, 1e-4, 1e-2), (torch.float8_e4m3fn, 1e-2, 1e-1)):
        found = torch_ops.attention(
            q, weights.layers[0], None, step, replace(kv, keys=kv.keys.to(dtype), values=kv.values.to(dtype))
        )
        assert least < (found - exact).norm() / exact.norm() < most


@pytest.mark.parametrize("window", [None, 16, 128])
@pytest.mark.parametrize("rows", [0, 24])
def test_attention_kernel_matches_torch_for_drafts(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    kernels: TritonOps,
    window: int | None,
    rows: int,
) -> None:
    """The drafts reach a second block, and a window begins between them. In a padded step, some sequences are empty."""
    step = batch_of(*drafted((5, 5), (200, 1), (62, 4), (70, 5), window=window), rows=rows)
    assert (step.width, step.decode_rows, step.longest) == (5, rows or 15, 0)
    kv = kv_cache(config, kv_group=int(window is None))
    q = normal(len(step.tokens), config.query_heads, config.head_size)
    found = kernels.attention(q, weights.layers[1], window, step, kv)
    close(found[:15], torch_ops.attention(q, weights.layers[1], window, step, kv)[:15])


@pytest.mark.parametrize("spans", [DECODE, MIXED])
def test_attention_without_sinks_matches_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, kernels: TritonOps, spans: tuple[tuple[int, int], ...]
) -> None:
    """As in a draft head."""
    layer = replace(weights.layers[1], sinks=torch.full_like(weights.layers[1].sinks, -torch.inf))
    step, kv = batch(*spans), kv_cache(config, kv_group=1)
    q = normal(len(step.tokens), config.query_heads, config.head_size)
    found = kernels.attention(q, layer, None, step, kv)
    assert found.isfinite().all()
    close(found, torch_ops.attention(q, layer, None, step, kv))


def test_rows_of_drafts_see_what_rows_of_prompt_see(config: ModelConfig, weights: Weights, kernels: TritonOps) -> None:
    step, prompts = batch_of(*drafted((5, 5), (200, 3))), batch((5, 5), (200, 3))
    q, kv = normal(8, config.query_heads, config.head_size), kv_cache(config, kv_group=1)
    assert (step.decodes, prompts.decodes) == (2, 0)
    assert torch.equal(step.tokens, prompts.tokens)
    assert torch.equal(step.slots, prompts.slots)
    close(
        kernels.attention(q, weights.layers[1], None, step, kv),
        kernels.attention(q, weights.layers[1], None, prompts, kv),
    )


def test_blocks_past_end_of_sequence_read_no_keys(
    config: ModelConfig, kernels: TritonOps, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of two prompts reads what each reads alone: the short one has no programs that read more."""
    reads = Counter[str]()
    masked_load = interpreter.interpreter_builder.create_masked_load

    def counted(pointers: Any, *args: Any) -> Any:
        reads["keys and values" if pointers.data.shape == (64, config.head_size) else "other"] += 1
        return masked_load(pointers, *args)

    monkeypatch.setattr(interpreter.interpreter_builder, "create_masked_load", counted)

    def keys_read(*spans: tuple[int, int]) -> int:
        reads.clear()
        step = batch(*spans)
        q = normal(len(step.tokens), config.query_heads, config.head_size)
        kernels.attention(q, weights.layers[1], None, step, kv_cache(config, kv_group=1))
        return reads["keys and values"]

    alone = keys_read((0, 90)), keys_read((500, 2))
    assert min(alone) > 0
    assert keys_read((0, 90), (500, 2)) == sum(alone)


def test_decodes_are_launched_apart_from_prompts(
    config: ModelConfig, kernels: TritonOps, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = []

    class Ignored:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *_, **__: None

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **sizes: launches.append((grid, args[10], sizes["BLOCK_Q"], sizes["SPLITS"]))

    monkeypatch.setattr(triton_ops, "attention_kernel", Recorder())
    monkeypatch.setattr(triton_ops, "merge_kernel", Ignored())  # of what no kernel has written
    step, splits = batch((70, 1), (5, 1), (0, 40), (9, 1)), kernels.splits(2)
    q = normal(len(step.tokens), config.query_heads, config.head_size)
    kernels.attention(q, weights.layers[1], None, step, kv_cache(config, kv_group=1))
    heads = config.kv_heads
    assert launches == [((2, heads, splits), 0, 1, splits), ((2, heads, 3), 2, 16, 1)]


def test_few_decodes_split_keys_into_more_parts(config: ModelConfig) -> None:
    ops = TritonOps(replace(config, kv_heads=8), processors=132)
    assert [ops.splits(sequences) for sequences in (1, 2, 4, 8, 64)] == [32, 16, 8, 8, 8]


@pytest.mark.parametrize("rows", [1, 3, 17, 70])
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda ops, config, layer, x: ops.out(normal(len(x), config.query_width), x, layer), id="out"),
        pytest.param(lambda ops, _, layer, x: ops.route(x, layer).normed, id="norm"),
        pytest.param(lambda ops, _, layer, x: ops.route(x, layer).scores, id="router"),
        pytest.param(lambda ops, _, layer, x: ops.up(ops.route(x, layer), layer), id="up"),
        pytest.param(
            lambda ops, config, layer, x: ops.down(
                normal(len(x), config.experts_per_token, config.intermediate), ops.route(x, layer), x, layer
            ),
            id="down",
        ),
    ],
)
def test_projection_kernels_match_torch(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    kernels: TritonOps,
    run: Callable[..., torch.Tensor],
    rows: int,
) -> None:
    x = normal(rows, config.hidden)
    close(run(kernels, config, weights.layers[1], x), run(torch_ops, config, weights.layers[1], x))


@pytest.mark.parametrize("rows", [1, 8, 9, 16, 33, 64, 65])
def test_router_has_program_for_each_expert_and_row_up_to_64_rows(
    config: ModelConfig,
    weights: Weights,
    torch_ops: TorchOps,
    kernels: TritonOps,
    monkeypatch: pytest.MonkeyPatch,
    rows: int,
) -> None:
    grids: list[tuple[int, ...]] = []

    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            grids.append(grid)
            return kernel[grid]

    kernel = route_row_kernel
    monkeypatch.setattr(triton_ops, "route_row_kernel", Recorder())
    x, layer = normal(rows, config.hidden), weights.layers[1]
    found, expected = kernels.route(x, layer), torch_ops.route(x, layer)
    close(found.scores, expected.scores)
    close(found.normed, expected.normed)
    assert grids == ([(config.experts, rows)] if rows <= 64 else [])
    assert (found.groups is None) == (rows <= FEW_ROWS)


@pytest.mark.parametrize(
    ("rows", "experts", "block"),
    [(9, 32, 16), (64, 32, 16), (128, 32, 32), (256, 32, 64), (512, 32, 128), (2048, 32, 128), (512, 128, 32)],
)
def test_tile_of_experts_has_room_for_twice_the_mean(rows: int, experts: int, block: int) -> None:
    """With the tile's limit for prompts, the launch is that of prompts."""
    found, launch = expert_tiles(rows, experts, chosen=4)
    assert found == block
    assert launch == (triton_ops.PROMPT if block == 128 else triton_ops.MANY)


def test_largest_tiles_read_less_far_ahead_with_little_shared_memory(config: ModelConfig) -> None:
    """An RTX 4090 has 99 KiB for a program, and f32 takes twice as many."""
    stages = [[expert_tiles(rows, 32, 4, kib * 1024)[1].stages for rows in (128, 256, 512)] for kib in (99, 227)]
    assert stages == [[3, 2, 2], [3, 3, 3]]
    tiles = [plain_tiles(256, 32, 4, kib * 1024) for kib in (99, 227)]
    assert [(block, launch.stages) for block, launch in tiles] == [(64, 2), (64, 3)]
    assert [TritonOps(config, wide=wide)._expert_tiles(256)[1].stages for wide in (False, True)] == [3, 2]


@pytest.mark.parametrize("block", [16, 32, 64, 128])
def test_each_tile_of_experts_matches_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    """One expert is chosen by all rows, which fill several tiles, and another one by none."""
    launch = triton_ops.PROMPT if block == 128 else triton_ops.MANY
    monkeypatch.setattr(triton_ops, "expert_tiles", lambda *_, **__: (block, launch))
    ops, rows, layer = TritonOps(config, wide=True), 140, weights.layers[1]
    x, scores = normal(rows, config.hidden), normal(rows, config.experts)
    scores[:, 2], scores[:, -1] = 9, -9
    plain = Routed(x, scores)
    inner = ops.up(replace(plain, groups=ops.grouped(scores)), layer)
    close(inner, torch_ops.up(plain, layer))
    close(ops.down(inner, replace(plain, groups=ops.grouped(scores)), x, layer), torch_ops.down(inner, plain, x, layer))


@pytest.mark.parametrize("rows", [9, 64, 1100])
def test_rows_are_grouped_by_chosen_experts(config: ModelConfig, kernels: TritonOps, rows: int) -> None:
    """Of equal scores, the first expert wins; no row chooses the last expert."""
    scores = (normal(rows, config.experts) * 2).round()
    scores[:, -1] = -50
    found = kernels.grouped(scores)
    best = scores.sort(dim=-1, descending=True, stable=True)
    chosen = best.indices[:, : config.experts_per_token]
    for expert in range(config.experts):
        expected = (chosen.flatten() == expert).nonzero()[:, 0]
        assert found.order[expert, : found.counts[expert]].tolist() == expected.tolist()
    close(found.shares, best.values[:, : config.experts_per_token].softmax(-1))


@pytest.mark.parametrize("spans", [DECODE[:1], DECODE, MIXED, tuple((n, 1) for n in range(140))])
def test_unpack_kernel_matches_torch(
    torch_ops: TorchOps, kernels: TritonOps, spans: tuple[tuple[int, int], ...]
) -> None:
    """Some tokens are on the device only."""
    works, found = works_of(*spans), []
    for work in works[::2]:
        del work.sequence.tokens[-1]
        work.sequence.unread = 1
    for ops in (torch_ops, kernels):
        state = State(2, len(works), 64 * BLOCK_TOKENS, 0, CPU)
        state.drawn += torch.arange(len(state.drawn)) + 1000
        step = pack(works, *Entries(state).assign(works))
        packed = torch.tensor(list(step.packed()), dtype=torch.int32)
        found.append((ops.unpack(Fields(*packed.split(step.sizes())), step, state), state))
    (expected, before), (ours, after) = found
    assert torch.equal(before.cells, after.cells)
    assert (expected.tokens >= 1000).sum() == len(works[::2])
    for field in fields(Batch):
        one, other = getattr(expected, field.name), getattr(ours, field.name)
        assert torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other, field.name


def restricted_sequences(rows: int, vocabulary: int) -> list[Sequence]:
    """Return sequences with all combinations of restrictions, a mask for every fifth, and penalties for every third."""

    class EveryThird:
        failed = False

        def allowed(self) -> bytes:
            bits = [token % 3 == 0 for token in range(vocabulary)]
            return sum(bit << place for place, bit in enumerate(bits)).to_bytes(-(-vocabulary // 8), "little")

        def accept(self, token: int) -> None:
            raise AssertionError(token)

        def rollback(self, count: int) -> None:
            raise AssertionError(count)

    made = []
    for n in range(rows):
        params = SamplingParams(
            max_tokens=1,
            temperature=(1.0, 0.0, 0.7)[n % 3],
            top_k=(0, 1, 7, 10_000)[n % 4],
            min_p=(0.0, 0.05)[n // 4 % 2],
            top_p=(0.9, 1.0, 0.3, 0.0)[n // 2 % 4],
            frequency_penalty=(0.0, 0.0, 1.3)[n % 3],
            logit_bias=(((vocabulary - 1, 9.0), (0, -100.0)), (), ())[n // 2 % 3],
        )
        tokens = [n, *(token * n % vocabulary for token in range(40))]
        made.append(Sequence(f"{n}", tokens, 1, params, n, mask=EveryThird() if n % 5 == 0 else None))
    return made


@pytest.mark.parametrize(
    ("vocabulary", "spread", "ties"),
    [(7, 3.0, False), (500, 3.0, True), (5000, 3.0, False), (5000, 0.001, False), (5000, 1e5, False)],
)
def test_redraw_kernels_draw_same_tokens_as_torch(
    torch_ops: TorchOps, kernels: TritonOps, vocabulary: int, spread: float, ties: bool
) -> None:
    sequences = restricted_sequences(16, vocabulary)
    logits = torch.randn(16, vocabulary, generator=torch.Generator().manual_seed(vocabulary)) * spread
    if ties:
        logits = logits.round()
    step = replace(
        draws(1),
        temperatures=torch.tensor([each.params.temperature for each in sequences]),
        seeds=torch.tensor([row_seed(seed_base(n), 1) for n in range(16)]),
    )
    found = []
    for ops in (torch_ops, kernels):
        tokens, adjustments = logits.argmax(-1), Adjustments(16, vocabulary, CPU)
        works = [ScheduledTokens(each, 40, 1) for each in sequences]
        packed = restrictions(works, range(16), adjustments)
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        ops.redraw(HeadOutput(tokens, logits.clone()), step, packed.sent(numbers, adjustments.table))
        found.append(tokens.tolist())
    assert found[0] == found[1]
    assert found[0] != logits.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("params", "most"),
    [
        (SamplingParams(max_tokens=1, top_p=0.9), 1500),
        (SamplingParams(max_tokens=1, top_k=20), 60),
        (SamplingParams(max_tokens=1, min_p=0.1), 250),
        (SamplingParams(max_tokens=1, temperature=0.0, frequency_penalty=1.0), 1),
        (SamplingParams(max_tokens=1, frequency_penalty=1.0), 5000),
    ],
)
def test_search_reads_tokens_that_may_be_kept(
    kernels: TritonOps, monkeypatch: pytest.MonkeyPatch, params: SamplingParams, most: int
) -> None:
    """All that may be kept are among them, in their order: with all tokens, the result is the same."""
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(1)) * 3
    sequence = Sequence("0", [1], 1, params, 0)
    warm = torch.full((1,), params.temperature)
    step = replace(draws(1), temperatures=warm, seeds=torch.tensor([row_seed(seed_base(3), 1)]))
    recording = RecordingKernel(sampling.redraw_kernel)
    monkeypatch.setattr(triton_ops, "redraw_kernel", recording)
    found = []
    for nearest in (sampling.NEAREST.value, 100.0):  # bounds that are too far away leave all tokens
        monkeypatch.setattr(sampling, "NEAREST", triton.language.constexpr(nearest))
        adjustments, tokens = Adjustments(1, 5000, CPU), torch.zeros(1, dtype=torch.long)
        packed = restrictions([ScheduledTokens(sequence, 0, 1)], [0], adjustments)
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        kernels.redraw(HeadOutput(tokens, logits.clone()), step, packed.sent(numbers, adjustments.table))
        found.append(int(tokens[0]))
    assert 1 <= recording.sizes[0] <= most
    assert found[0] == found[1]


class RecordingKernel:
    """Keeps how many tokens of its first row each launch of the last kernel of sampling reads."""

    def __init__(self, kernel: Any) -> None:
        self.sizes: list[int] = []
        self._kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*arguments: Any, **options: Any) -> None:
            self.sizes.append(int(arguments[2][0]))
            self._kernel[grid](*arguments, **options)

        return launch


def test_redraw_kernel_reads_row_in_few_passes(kernels: TritonOps, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the distribution: here, the logits are random bits, so they have all magnitudes."""
    count, masses = 0, sampling._masses

    def counted(*arguments: Any) -> Any:
        nonlocal count
        count += 1
        return masses(*arguments)

    monkeypatch.setattr(sampling, "_masses", counted)
    params = SamplingParams(max_tokens=1, temperature=1.0, top_p=0.9)
    step = replace(draws(1), temperatures=torch.ones(1), seeds=torch.zeros(1, dtype=torch.long))
    for seed in range(4):
        bits = torch.randint(-(2**31), 2**31 - 1, (1, 3000), generator=torch.Generator().manual_seed(seed))
        logits = bits.int().view(torch.float32).nan_to_num(0.0).clamp(-1e30, 1e30)
        adjustments = Adjustments(1, 3000, CPU)
        packed = restrictions([ScheduledTokens(Sequence("0", [1], 1, params, 0), 0, 1)], [0], adjustments)
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        count = 0
        kernels.redraw(
            HeadOutput(torch.zeros(1, dtype=torch.long), logits), step, packed.sent(numbers, adjustments.table)
        )
        assert 0 < count <= 16


@pytest.mark.timeout(60)
@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"top_k": 3}, {"min_p": 0.1, "top_p": 0.5}])
def test_redraw_kernel_ends_with_infinite_logits(kernels: TritonOps, params: dict[str, Any]) -> None:
    """The result is one of the infinite ones. Without a bound on the logits, the search would not end."""
    logits = torch.randn(1, 3000, generator=torch.Generator().manual_seed(1))
    logits[0, [7, 2100]] = torch.inf
    logits[0, 8] = torch.nan
    sequence = Sequence("0", [1], 1, SamplingParams(max_tokens=1, temperature=1.0, **params), 0)
    adjustments, tokens = Adjustments(1, 3000, CPU), torch.zeros(1, dtype=torch.long)
    packed = restrictions([ScheduledTokens(sequence, 0, 1)], [0], adjustments)
    numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
    step = replace(draws(1), temperatures=torch.ones(1), seeds=torch.zeros(1, dtype=torch.long))
    kernels.redraw(HeadOutput(tokens, logits), step, packed.sent(numbers, adjustments.table))
    assert int(tokens[0]) in (7, 2100)


def test_redraw_kernel_counts_drafts_before_each_row(torch_ops: TorchOps, kernels: TritonOps) -> None:
    """Of equal logits, penalties leave the tokens that are neither generated nor drafted before the row."""
    params = SamplingParams(max_tokens=9, temperature=0.0, presence_penalty=1.0, logit_bias=((6, 0.5), (9, -1.0)))
    one, other = (Sequence(f"{n}", [5, 0, 1], 1, params, n) for n in range(2))
    works = [ScheduledTokens(one, 2, 1, drafts=[2, 6, 4]), ScheduledTokens(other, 2, 1)]
    step = replace(draws(1), temperatures=torch.zeros(5), seeds=torch.zeros(5, dtype=torch.long))
    logits = torch.zeros(5, 10)
    logits[3] = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.6, 0.1, 0.3, 0.0, 0.0, 0.5])
    for ops in (torch_ops, kernels):
        tokens, adjustments = torch.full((5,), -1), Adjustments(2, 10, CPU)
        packed = restrictions(works, [0, 0, 0, 0, 1], adjustments)
        numbers = torch.frombuffer(packed.numbers, dtype=torch.int32)
        ops.redraw(HeadOutput(tokens, logits.clone()), step, packed.sent(numbers, adjustments.table))
        # The bias makes 6 the best until it is drafted; the last row of the first sequence has logits of its own.
        assert tokens.tolist() == [6, 6, 3, 3, 6]


def draws(rows: int, kept: bool = False) -> Batch:
    """Return a step of `rows` sequences, of which every third has temperature 0."""
    params = [
        SamplingParams(max_tokens=1, temperature=(0.0, 1.0, 0.7)[n % 3], seed=n, top_logprobs=0 if kept else None)
        for n in range(rows)
    ]
    sequences = [Sequence(f"{n}", [n], 1, each, n) for n, each in enumerate(params)]
    for sequence in sequences:
        sequence.blocks = KVCacheBlocks(tables=(BlockTable([0]), BlockTable([1])))
    return batch_of(*(ScheduledTokens(sequence, 0, 1) for sequence in sequences))


@pytest.mark.parametrize(("rows", "vocabulary"), [(1, 512), (3, 7), (20, 500), (70, 300)])
def test_head_kernel_draws_same_tokens_as_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, kernels: TritonOps, rows: int, vocabulary: int
) -> None:
    few = replace(weights, unembedding=weights.unembedding[:vocabulary])
    x, step = normal(rows, config.hidden), draws(rows)
    found = kernels.head(x, few, step)
    assert found.logits is None
    assert found.tokens.tolist() == torch_ops.head(x, few, step).tokens.tolist()
    alone = kernels.head(x[-1:], few, replace(step, temperatures=step.temperatures[-1:], seeds=step.seeds[-1:]))
    assert alone.tokens.tolist() == found.tokens.tolist()[-1:]


def test_head_kernel_keeps_requested_logits(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, kernels: TritonOps
) -> None:
    x, step = normal(3, config.hidden), draws(3, kept=True)
    found, expected = kernels.head(x, weights, step), torch_ops.head(x, weights, step)
    assert found.logits is not None
    assert expected.logits is not None
    close(found.logits, expected.logits)
    assert found.tokens.tolist() == expected.tokens.tolist()


def test_steps_share_memory_of_kept_logits(config: ModelConfig, weights: Weights, torch_ops: TorchOps) -> None:
    """Up to the largest step so far. What an earlier graph writes to stays allocated."""
    kernels = TritonOps(config, wide=True)

    def logits(rows: int) -> torch.Tensor:
        x, step = normal(rows, config.hidden), draws(rows, kept=True)
        found, expected = kernels.head(x, weights, step).logits, torch_ops.head(x, weights, step).logits
        assert found is not None
        assert expected is not None
        close(found, expected)
        return found

    first = logits(5).data_ptr()
    assert [logits(rows).data_ptr() for rows in (3, 5, 1)] == [first] * 3
    second = logits(6).data_ptr()
    assert second != first
    assert logits(5).data_ptr() == second
    gc.collect()
    assert first in {each.data_ptr() for each in gc.get_objects() if type(each) is torch.Tensor}


def test_head_kernel_takes_first_of_equals_and_valid_token_for_nan(
    config: ModelConfig, weights: Weights, kernels: TritonOps
) -> None:
    # A single product is exact; sums may be rounded differently from column to column.
    row = torch.nn.functional.one_hot(torch.tensor(7), config.hidden).to(weights.unembedding)
    same = replace(weights, unembedding=row.expand(200, -1).contiguous())
    assert kernels.head(normal(1, config.hidden), same, draws(1)).tokens.tolist() == [0]
    broken = torch.full((2, config.hidden), torch.nan)
    assert all(0 <= token < 200 for token in kernels.head(broken, same, draws(2)).tokens.tolist())


@pytest.mark.parametrize("rows", [1, 2, 17])
def test_expert_kernels_in_bf16_match_torch(
    config: ModelConfig, weights: Weights, torch_ops: TorchOps, rows: int
) -> None:
    """The products that a GPU computes from the packed weights; several rows are grouped by expert."""
    ops, layer, x = TritonOps(config), weights.layers[1], normal(rows, config.hidden)
    wide = torch_ops.route(x, layer)
    groups = ops.grouped(wide.scores) if rows > FEW_ROWS else None
    routed = Routed(wide.normed.bfloat16(), wide.scores, groups)
    exact = Routed(routed.normed.float(), wide.scores)
    inner = ops.up(routed, layer)
    torch.testing.assert_close(inner.float(), torch_ops.up(exact, layer), atol=2e-2, rtol=1e-2)
    summed = ops.down(inner, routed, x.bfloat16(), layer).float()
    expected = torch_ops.down(inner.float(), exact, x.bfloat16().float(), layer)
    torch.testing.assert_close(summed, expected, atol=2e-2, rtol=1e-2)


@pytest.mark.parametrize("wide", [True, False])
def test_every_mxfp4_nibble_and_scale_is_decoded_by_kernel(config: ModelConfig, weights: Weights, wide: bool) -> None:
    """An input row is zero except for a one at a place of a group: each output is one matrix value.

    Each place of a group meets a quarter of the scales.
    """
    groups = config.intermediate // GROUP
    for part in range(4):
        used = torch.tensor(SCALES[part::4], dtype=torch.uint8)
        rows = len(used) * 16
        one = replace(config, experts=1, experts_per_token=1, hidden=rows)
        # The nibble changes from row to row and from place to place.
        nibbles = (torch.arange(rows)[:, None] + torch.arange(GROUP)) % 16
        blocks = (nibbles[:, 0::2] | nibbles[:, 1::2] << 4).to(torch.uint8)[None, :, None].expand(1, rows, groups, 16)
        scales = used.repeat_interleave(16)[None, :, None].expand(1, rows, groups)
        layer = replace(weights.layers[0], down=Experts(*mxfp4.pack(blocks, scales), torch.zeros(1, rows)))
        places = GROUP + torch.arange(8 * part, 8 * part + 8)
        inner = torch.nn.functional.one_hot(places, config.intermediate).float()[:, None]
        x = torch.zeros(8, rows)
        args = (inner, Routed(x, torch.zeros(8, 1)), x, layer)
        found = TritonOps(one, wide=wide).down(*args)
        assert torch.equal(found, TorchOps(one).down(*args))
        assert len(found.unique()) > len(used)


def test_ptx_decodes_every_byte_with_every_scale() -> None:
    """The code that a GPU has in place of what the interpreter runs."""
    blocks = torch.arange(256, dtype=torch.uint8).view(16, 1, 16).expand(16, len(SCALES), 16)
    scales = torch.tensor(SCALES, dtype=torch.uint8).expand(16, -1)
    words, aligned = mxfp4.pack(blocks, scales)
    factors = scales.long()[..., None] * 0x00800080 + 95 * 0x00800080
    found = ptx.run(PAIRS.value, {"$8": words.long() & 0xFFFFFFFF, "$9": factors}, outputs=8)
    pairs = torch.stack(found, dim=-1).unflatten(-1, (4, 2)).transpose(-3, -2)  # word, quarter, half: quarters first
    expected = mxfp4.decode(words, aligned, torch.float64) / SHRUNK.value
    assert torch.equal(pairs.flatten(-4).double(), expected)


def test_padded_decode_step_gives_same_tokens(checkpoint: Path) -> None:
    """The step is padded like the input of a recorded graph, with more rows and more changed cells."""
    works, state = works_of(*DECODE), State(2, 8, 64 * BLOCK_TOKENS, BLOCKS, CPU)
    step = pack(works, *Entries(state).assign(works))
    found = []
    for each in (step, padded(step, 8, len(step.fields.addresses) + 3, state.spare, state.unused)):
        model, packed = tiny_model(checkpoint, blocks=BLOCKS), torch.tensor(list(each.packed()), dtype=torch.int32)
        found.append(model.forward(model.unpack(packed, each, state)))
    plain, wide = found
    assert plain.logits is not None
    assert wide.logits is not None
    close(wide.logits[: len(DECODE)], plain.logits)
    assert wide.tokens[: len(DECODE)].tolist() == plain.tokens.tolist()


def test_ops_are_chosen_by_device(config: ModelConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=triton_ops.SHARED)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    assert isinstance(choose(config, torch.device("cpu"), torch.float32), TorchOps)
    assert isinstance(choose(config, torch.device("cuda"), torch.bfloat16), TritonOps)


@pytest.mark.parametrize(
    ("capability", "wanted", "dependent"),
    [((9, 0), True, True), ((12, 0), True, True), ((9, 0), False, False), ((8, 9), True, False)],
)
def test_dependent_launch_needs_setting_and_gpu(
    config: ModelConfig,
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    wanted: bool,
    dependent: bool,
) -> None:
    found: list[bool] = []
    gpu = SimpleNamespace(multi_processor_count=132, shared_memory_per_block_optin=triton_ops.SHARED)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(triton_ops, "TritonOps", lambda *_, **options: found.append(options["dependent"]))
    settings = GptOssConfig(checkpoint="x", dependent_launch=wanted).engine(Path("x"))
    choose(config, torch.device("cuda"), torch.bfloat16, settings.dependent_launch)
    assert found == [dependent]


@pytest.mark.parametrize(("experts", "step_tokens"), [(32, 2048), (128, 2048), (128, 16384), (32, 300), (32, 64)])
def test_warm_up_has_a_step_for_each_build_of_a_kernel(config: ModelConfig, experts: int, step_tokens: int) -> None:
    """For every number of rows in a step. A build that it lacked would be compiled in a request."""
    ops = TritonOps(config)

    def builds(rows: int) -> tuple[object, ...]:
        block, launch = expert_tiles(rows, experts, chosen=4)
        grouped = rows > FEW_ROWS and (block, launch, min(padded_rows(rows), triton_ops.SCORES // experts))
        dense = rows <= triton_ops.DECODED_ROWS and (rows_block(rows), ops.dense_splits(90))
        return rows <= triton_ops.SMALLEST_TILE, dense, grouped

    steps = warm_up_steps(graph_sizes(min(64, step_tokens)), step_tokens, config.context)
    assert {builds(rows) for rows in range(1, step_tokens + 1)} == {builds(sum(step.counts)) for step in steps}


@pytest.mark.parametrize("rows", [1, 17, 70])
def test_dependent_launch_is_an_option_of_every_kernel_of_layers_and_head(
    config: ModelConfig, weights: Weights, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """One kernel that did not wait would let the one after it begin before the one before it has ended."""
    launched: dict[str, list[tuple[object, object]]] = {}

    class Recorder:
        def __init__(self, name: str) -> None:
            self._launches = launched.setdefault(name, [])

        def __getitem__(self, _: object) -> Callable[..., None]:
            return lambda *_, **options: self._launches.append((options.get("DEPENDENT"), options.get("launch_pdl")))

    for name in [name for name in vars(triton_ops) if name.endswith("_kernel")]:
        monkeypatch.setattr(triton_ops, name, Recorder(name))
    step, layer, x = batch(*((n, 1) for n in range(rows))), weights.layers[0], normal(rows, config.hidden)
    for dependent, expected in ((True, (True, True)), (False, (False, None))):
        for options in launched.values():
            options.clear()
        ops = TritonOps(config, dependent=dependent)
        q = ops.qkv(x, layer, rope.tables(config, 512, CPU), step, kv_cache(config))
        ops.out(ops.attention(q, layer, None, step, kv_cache(config)), x, layer)
        routed = ops.route(x, layer)
        ops.down(ops.up(routed, layer), routed, x, layer)
        ops.head(x, weights, step)
        assert {option for options in launched.values() for option in options} == {expected}
        assert all(launched[name] for name in ("rotate_kernel", "head_kernel"))


def test_model_on_kernels_matches_reference(checkpoint: Path, config: ModelConfig, weights: Weights) -> None:
    """Compare a prompt and one further token with the reference."""
    tokens = torch.randint(512, (25,), generator=torch.Generator().manual_seed(1))
    model = Model(config, weights, TritonOps(config, wide=True), blocks=BLOCKS, context=512)
    sequence = Sequence("0", tokens.tolist(), 25, SamplingParams(max_tokens=1, temperature=0.0, top_logprobs=0), 0)
    sequence.blocks = KVCacheBlocks(tables=(BlockTable([5]), BlockTable([3])))
    expected = reference.logits(weights, config, tokens)
    for work, place in ((ScheduledTokens(sequence, 0, 24), None), (ScheduledTokens(sequence, 24, 1), 24)):
        found = model.forward(batch_of(work))
        if place is not None:
            assert found.logits is not None
            close(found.logits[0], expected[place])
            assert found.tokens.tolist() == [expected[place].argmax()]
