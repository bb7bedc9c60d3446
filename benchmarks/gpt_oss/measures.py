"""Clocks, the floor of a step, and the sequences that steps compute."""

import time
from collections.abc import Callable

import torch

from llama_stack_gpt_oss.engine.cache import BlockTable, KVCacheBlocks, places_filled
from llama_stack_gpt_oss.engine.config import ModelConfig
from llama_stack_gpt_oss.engine.sequence import SamplingParams, Sequence
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
    """Return the seconds of a call on the device, as the mean of several after one that compiles.

    The argument counts up, so that calls can use tensors in turn: those of the call before are in the L2 cache.
    """
    run(0)
    if device.type != "cuda":
        return timed(lambda: [run(number) for number in range(repeats)], device) / repeats
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for number in range(repeats):
        run(number)
    after.record()
    settle(device)
    return before.elapsed_time(after) / 1000 / repeats


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
    places, kv_groups = places_filled(tokens + params.max_tokens), len(config.kv_groups)
    created = []
    for number in range(count):
        prompt = torch.randint(config.vocabulary, (tokens,)).tolist()
        sequence = Sequence(str(number), prompt, tokens, params, number)
        first = [(number * kv_groups + kv_group) * places for kv_group in range(kv_groups)]
        sequence.blocks = KVCacheBlocks(tables=tuple(BlockTable(list(range(page, page + places))) for page in first))
        created.append(sequence)
    return created


def pages_of(config: ModelConfig, count: int, tokens: int) -> int:
    """Return the number of blocks of such sequences."""
    return count * places_filled(tokens) * len(config.kv_groups)
