"""The model over a paged KV store: the same layers for a prompt's piece, a decode step, and any mixture of the two."""

from collections.abc import Iterator

import torch

from . import rope
from .batch import Batch
from .cache import PAGE
from .config import ModelConfig
from .ops import Head, Ops, Store
from .weights import Weights


class Model:
    """Weights, KV store and rotary tables on one device."""

    def __init__(self, config: ModelConfig, weights: Weights, ops: Ops, pages: int, context: int) -> None:
        self.config = config
        self.weights = weights
        self._ops = ops
        like = weights.embedding
        self.scratch = pages  # one page more, for rows that only fill a step up
        shape = (_layers_in_a_page(config), 2, pages + 1, PAGE, config.kv_heads, config.head_size)
        memory = torch.zeros(shape, dtype=like.dtype, device=like.device)
        self._stores = list(_stores(config, memory))
        self._rope = rope.tables(config, context, like.device)

    def forward(self, batch: Batch) -> Head:
        """Computes the batch's tokens into the store, and draws the next token of the rows that are sampled."""
        ops = self._ops
        x = self.weights.embedding[batch.tokens]
        for layer, window, store in zip(self.weights.layers, self.config.windows, self._stores, strict=True):
            queries = ops.qkv(x, layer, self._rope, batch, store)
            x = ops.out(ops.attention(queries, layer, window, batch, store), x, layer)
            routed = ops.route(x, layer)
            x = ops.down(ops.up(routed, layer), routed, x, layer)
        return ops.head(x[batch.sampled], self.weights, batch)


def page_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """What one page takes over the layers of its kind."""
    return _layers_in_a_page(config) * 2 * PAGE * config.kv_width * dtype.itemsize


def _layers_in_a_page(config: ModelConfig) -> int:
    """A page can be of any kind, and has room for the kind with the most layers."""
    return max(config.windows.count(window) for window in config.kinds)


def _stores(config: ModelConfig, memory: torch.Tensor) -> Iterator[Store]:
    """A store for each layer; the first layers of all kinds share theirs, and so on, as they never share a page."""
    used = dict.fromkeys(config.kinds, 0)
    for window in config.windows:
        keys, values = memory[used[window]]
        used[window] += 1
        yield Store(keys, values, config.kinds.index(window))
