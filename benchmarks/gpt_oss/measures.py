"""Clocks, the floor of a step, and the sequences that steps compute."""

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from llama_stack_gpt_oss.engine.cache import BlockTable, KVCacheBlocks, blocks_filled
from llama_stack_gpt_oss.engine.config import ModelConfig
from llama_stack_gpt_oss.engine.kernels import has_fp8
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.sequence import Sequence
from llama_stack_gpt_oss.engine.weights import Weights

Row = dict[str, str | float | bool]


def settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, including the device's work."""
    settle(device)
    start = time.perf_counter()
    run()
    settle(device)
    return time.perf_counter() - start


def launched(run: Callable[[int], object], repeats: int, device: torch.device) -> float:
    """Return the seconds of a call on the device, as the mean of several.

    On a GPU, they follow one that compiles, and are one CUDA graph: launches from Python would take longer than a small
    kernel. The graph is replayed once before, with the L2 cache overwritten after it, so that the host is ahead of the
    device. The argument counts up, so that calls can read tensors in turn: see `copies_for`.
    """
    if device.type != "cuda":
        return timed(lambda: [run(number) for number in range(repeats)], device) / repeats
    run(0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for number in range(repeats):
            run(number)
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    graph.replay()
    overwrite_l2(device)
    before.record()
    graph.replay()
    after.record()
    settle(device)
    return before.elapsed_time(after) / 1000 / repeats


def failure(error: Exception) -> str:
    """Return why something failed, in a few words."""
    return f"{type(error).__name__}: {error}"[:500]


def stores_fp8(device: torch.device) -> bool:
    """Return whether the kernels round to FP8 on a device.

    Triton's interpreter loses the carry of numbers that are rounded up to a power of two.
    """
    return device.type == "cuda" and has_fp8(device)


def l2_bytes(device: torch.device) -> int:
    """Return the size of the L2 cache; 0 for a CPU."""
    return int(torch.cuda.get_device_properties(device).L2_cache_size) if device.type == "cuda" else 0


def overwrite_l2(device: torch.device) -> None:
    torch.zeros(2 * l2_bytes(device), dtype=torch.uint8, device=device)


def copies_for(size: float, repeats: int, cache: int) -> int:
    """Return how many copies of tensors so many calls have to read in turn to find none of them in the cache.

    size: bytes that a call reads. All copies are at least twice the cache, or each call has one of its own.
    """
    return min(repeats, max(1, math.ceil(2 * cache / size)))


class Peaks(NamedTuple):
    """What the device reaches in plain torch: bytes per second, and floating-point operations per second."""

    bandwidth: float
    products: float

    def roofline(self, size: float, operations: float) -> tuple[str, float]:
        """Return what limits a kernel that reads so many bytes, and the seconds that it takes at least."""
        return max(("bytes", size / self.bandwidth), ("products", operations / self.products), key=lambda each: each[1])


def product_rate(device: torch.device, size: int) -> float:
    """Return the floating-point operations per second of the fastest of several products of square matrices."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    one, other, made = (torch.randn(size, size, device=device).to(dtype) for _ in range(3))
    return 2 * size**3 / min(timed(lambda: torch.mm(one, other, out=made), device) for _ in range(10))


def copy_bandwidth(device: torch.device, size: int) -> float:
    """Return the bytes per second, read and written, of the fastest of several copies."""
    source, target = (torch.empty(size // 2, dtype=torch.uint8, device=device) for _ in range(2))
    return size / min(timed(lambda: target.copy_(source), device) for _ in range(10))


def step_bytes(config: ModelConfig, weights: Weights, batch: int, context: int, kv_bytes: int) -> float:
    """Return the bytes that a decode step reads: dense weights, experts expected for `batch` rows, KV cache.

    kv_bytes: of a number in the KV cache.
    """
    share = 1 - (1 - config.experts_per_token / config.experts) ** batch
    total = float(weights.unembedding.nbytes + weights.norm.nbytes)
    for layer, window in zip(weights.layers, config.windows, strict=True):
        dense = (layer.attention_norm, layer.qkv, layer.qkv_bias, layer.out, layer.out_bias, layer.mlp_norm)
        total += sum(tensor.nbytes for tensor in (*dense, layer.router, layer.router_bias, layer.sinks))
        packed = (
            layer.up.words,
            layer.up.scales,
            layer.up.bias,
            layer.down.words,
            layer.down.scales,
            layer.down.bias,
        )
        total += share * sum(tensor.nbytes for tensor in packed)
        seen = context if window is None else min(window, context)
        total += batch * seen * 2 * config.kv_width * kv_bytes
    return total


def sequences(config: ModelConfig, count: int, tokens: int, params: SamplingParams) -> list[Sequence]:
    """Create sequences of random tokens, each with its own blocks and room for `max_tokens`."""
    each, kv_groups = blocks_filled(tokens + params.max_tokens), len(config.kv_groups)
    created = []
    for number in range(count):
        prompt = torch.randint(config.vocabulary, (tokens,)).tolist()
        sequence = Sequence(str(number), prompt, tokens, params, number)
        first = [(number * kv_groups + kv_group) * each for kv_group in range(kv_groups)]
        sequence.blocks = KVCacheBlocks(tables=tuple(BlockTable(list(range(block, block + each))) for block in first))
        created.append(sequence)
    return created


class EveryThird:
    """A mask that allows every third token, like a grammar whose mask is at hand."""

    failed = False

    def __init__(self, vocabulary: int) -> None:
        size = -(-vocabulary // 8)
        self._bits = (bytes((0b01001001, 0b10010010, 0b00100100)) * size)[:size]

    def allowed(self) -> bytes:
        return self._bits

    def accept(self, token: int) -> None:
        """Do nothing."""

    def rollback(self, count: int) -> None:
        """Do nothing."""


def blocks_of(config: ModelConfig, count: int, tokens: int) -> int:
    """Return the number of blocks of such sequences."""
    return count * blocks_filled(tokens) * len(config.kv_groups)
