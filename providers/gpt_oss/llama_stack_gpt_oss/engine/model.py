"""The model over a paged KV cache: the same layers for prefill, decode, and batches of both."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from . import rope
from .batch import Batch, Fields, StepInput
from .cache import BLOCK_TOKENS
from .config import ModelConfig
from .ops import HeadOutput, LayerKVCache, Ops
from .sampler import Restricted
from .state import State
from .weights import Weights


class Model:
    """Weights, KV cache and rotary tables on one device."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        ops: Ops,
        blocks: int,
        context: int,
        kv_dtype: torch.dtype | None = None,
        features: tuple[int, ...] = (),
    ) -> None:
        """Create a model with a KV cache of the given dtype, by default that of the weights.

        features: the layers whose inputs each step returns; the layer after the last has the output of that one.
        """
        self._features = features
        self.config = config
        self.weights = weights
        self._ops = ops
        like = weights.embedding
        self.scratch = blocks  # one extra block, for the padding rows of a step
        shape = (_layers_per_block(config), 2, blocks + 1, BLOCK_TOKENS, config.kv_heads, config.head_size)
        memory = torch.zeros(shape, dtype=kv_dtype or like.dtype, device=like.device)
        self._kv_caches = list(_kv_caches(config, memory))
        self._rope = rope.tables(config, context, like.device)

    def unpack(self, packed: torch.Tensor, step: StepInput, state: State) -> Batch:
        """Return the batch of a step whose packed numbers are on the device."""
        return self._ops.unpack(Fields(*packed.split(step.sizes())), step, state)

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        """Sample the restricted rows of a computed batch again."""
        self._ops.redraw(head, batch, restricted)

    def forward(self, batch: Batch) -> HeadOutput:
        """Compute the batch's tokens into the KV cache, and sample the next token of the `sampled` rows."""
        ops = self._ops
        x = self.weights.embedding[batch.tokens]
        inputs: dict[int, torch.Tensor] = {}
        layers = zip(self.weights.layers, self.config.windows, self._kv_caches, strict=True)
        for number, (layer, window, kv_cache) in enumerate(layers):
            if number in self._features:
                inputs[number] = x
            queries = ops.qkv(x, layer, self._rope, batch, kv_cache)
            x = ops.out(ops.attention(queries, layer, window, batch, kv_cache), x, layer)
            routed = ops.route(x, layer)
            x = ops.down(ops.up(routed, layer), routed, x, layer)
        inputs[self.config.layers] = x
        head = ops.head(x[batch.sampled], self.weights, batch)
        if not self._features:
            return head
        return replace(head, features=torch.cat([inputs[number] for number in self._features], dim=-1))


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the size of one block in all layers of its KV group."""
    return _layers_per_block(config) * 2 * BLOCK_TOKENS * config.kv_width * dtype.itemsize


def _layers_per_block(config: ModelConfig) -> int:
    """Return the layers of the largest KV group: a block can belong to any group."""
    return max(config.windows.count(window) for window in config.kv_groups)


def _kv_caches(config: ModelConfig, memory: torch.Tensor) -> Iterator[LayerKVCache]:
    """Yield a store for each layer. The n-th layers of all KV groups share one, as the groups never share a block."""
    used = dict.fromkeys(config.kv_groups, 0)
    for window in config.windows:
        keys, values = memory[used[window]]
        used[window] += 1
        yield LayerKVCache(keys, values, config.kv_groups.index(window))
