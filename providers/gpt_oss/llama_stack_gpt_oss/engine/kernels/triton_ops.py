"""The operations as Triton kernels: their grids and block sizes."""

import torch
import triton

from ..batch import Batch
from ..cache import PAGE
from ..config import ModelConfig
from ..ops import Groups, Head, Routed, Store
from ..sampler import COLDEST
from ..weights import Layer, Weights
from .attention import attention_kernel, merge_kernel
from .experts import down_group_kernel, down_row_kernel, group_kernel, up_group_kernel, up_row_kernel
from .head import head_kernel, pick_kernel
from .linear import out_kernel, qkv_kernel, route_kernel

FEW_ROWS = 8  # up to this number, each row reads its own experts' weights
SPLITS = 16  # of the keys in a decode step
QUERIES = 16  # queries of a prompt per program
SCORES = 4096  # router scores that a program loads at a time
STRIP = 64  # tokens of the vocabulary per program


class TritonOps:
    """The kernels for a model's dimensions. `wide`: convert the operands of products to f32, for f32 weights."""

    def __init__(self, config: ModelConfig, wide: bool = False) -> None:
        self.config = config
        self._wide = wide

    def qkv(
        self, x: torch.Tensor, layer: Layer, rope: tuple[torch.Tensor, torch.Tensor], batch: Batch, store: Store
    ) -> torch.Tensor:
        config, rows = self.config, len(x)
        queries = x.new_empty(rows, config.query_heads, config.head_size)
        block = _rows_block(rows)
        grid = (config.query_heads + 2 * config.kv_heads, config.head_size // 32, triton.cdiv(rows, block))
        qkv_kernel[grid](
            x,
            layer.attention_norm,
            layer.qkv,
            layer.qkv_bias,
            *rope,
            batch.positions,
            batch.slots[store.kv_group],
            queries,
            store.keys,
            store.values,
            rows,
            config.hidden,
            config.norm_epsilon,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            HALF=config.head_size // 2,
            BLOCK_M=block,
            BLOCK_P=16,
            BLOCK_K=64,
            WIDE=self._wide,
        )
        return queries

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, store: Store
    ) -> torch.Tensor:
        """Split all keys in decode steps, where one query would leave the GPU idle. A window fits in one program."""
        config, rows = self.config, len(queries)
        block_q = 1 if batch.longest == 1 else QUERIES
        splits = SPLITS if batch.longest == 1 and window is None else 1
        mixed = queries.new_empty(rows, config.query_width)
        partial = queries.new_empty(
            (rows, config.query_heads, splits, config.head_size + 2) if splits > 1 else (1,), dtype=torch.float32
        )
        group = config.query_heads // config.kv_heads
        grid = (len(batch.lengths), config.kv_heads, triton.cdiv(batch.longest, block_q) * splits)
        attention_kernel[grid](
            queries,
            store.keys,
            store.values,
            layer.sinks,
            batch.tables[store.kv_group],
            batch.starts,
            batch.lengths,
            mixed,
            partial,
            batch.tables.shape[-1],
            config.head_size**-0.5,
            WINDOW=window or 0,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            SIZE=config.head_size,
            PAGE=PAGE,
            BLOCK_Q=block_q,
            BLOCK_M=max(16, triton.next_power_of_2(block_q * group)),
            SPLITS=splits,
            WIDE=self._wide,
        )
        if splits > 1:
            merge_kernel[(rows, config.query_heads)](
                partial, layer.sinks, mixed, QUERY_HEADS=config.query_heads, SIZE=config.head_size, SPLITS=splits
            )
        return mixed

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        rows, made, block = len(x), torch.empty_like(x), _rows_block(len(x))
        grid = (triton.cdiv(self.config.hidden, 16), triton.cdiv(rows, block))
        out_kernel[grid](
            mixed,
            x,
            layer.out,
            layer.out_bias,
            made,
            rows,
            self.config.hidden,
            self.config.query_width,
            BLOCK_M=block,
            BLOCK_N=16,
            BLOCK_K=128,
            WIDE=self._wide,
        )
        return made

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        config, rows, block = self.config, len(x), _rows_block(len(x))
        normed, scores = torch.empty_like(x), x.new_empty(len(x), config.experts, dtype=torch.float32)
        route_kernel[(triton.cdiv(config.experts, 16), triton.cdiv(rows, block))](
            x,
            layer.mlp_norm,
            layer.router,
            layer.router_bias,
            scores,
            normed,
            rows,
            config.hidden,
            config.experts,
            config.norm_epsilon,
            BLOCK_M=block,
            BLOCK_N=16,
            BLOCK_K=64,
            WIDE=self._wide,
        )
        return Routed(normed, scores, self.grouped(scores) if rows > FEW_ROWS else None)

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(routed.normed), routed.groups
        inner = routed.normed.new_empty(rows, config.experts_per_token, config.intermediate)
        sizes = (config.hidden, config.intermediate, config.swiglu_limit)
        weights = (layer.up.blocks, layer.up.scales, layer.up.bias)
        if groups is None:
            grid = (triton.cdiv(config.intermediate, 16), rows * config.experts_per_token)
            up_row_kernel[grid](
                routed.normed,
                routed.scores,
                *weights,
                inner,
                *sizes,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                BLOCK_N=16,
                BLOCK_B=128,
            )
            return inner
        block = _rows_block(rows)
        up_group_kernel[(triton.cdiv(config.intermediate, 32), config.experts, triton.cdiv(rows, block))](
            routed.normed,
            groups.order,
            groups.counts,
            *weights,
            inner,
            rows,
            *sizes,
            CHOSEN=config.experts_per_token,
            BLOCK_M=block,
            BLOCK_N=32,
            BLOCK_B=32,
            WIDE=self._wide,
        )
        return inner

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(x), routed.groups
        weights = (layer.down.blocks, layer.down.scales, layer.down.bias)
        if groups is None:
            made = torch.empty_like(x)
            down_row_kernel[(triton.cdiv(config.hidden, 16), rows)](
                inner,
                routed.scores,
                *weights,
                x,
                made,
                config.hidden,
                config.intermediate,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                BLOCK_N=16,
                BLOCK_B=128,
            )
            return made
        parts = x.new_empty(rows, config.experts_per_token, config.hidden, dtype=torch.float32)
        block = _rows_block(rows)
        down_group_kernel[(triton.cdiv(config.hidden, 32), config.experts, triton.cdiv(rows, block))](
            inner,
            groups.order,
            groups.counts,
            groups.shares,
            *weights,
            parts,
            rows,
            config.hidden,
            config.intermediate,
            BLOCK_M=block,
            BLOCK_N=32,
            BLOCK_B=32,
            WIDE=self._wide,
        )
        return (x + parts.sum(1)).to(x.dtype)

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> Head:
        rows, width, block = len(x), len(weights.unembedding), _rows_block(len(x))
        strips = triton.cdiv(width, STRIP)
        logits = x.new_empty((rows, width) if batch.kept else (1,), dtype=torch.float32)
        scores = x.new_empty(rows, strips, dtype=torch.float32)
        candidates = torch.empty_like(scores, dtype=torch.int32)
        tokens = torch.empty_like(batch.seeds)
        head_kernel[(strips, triton.cdiv(rows, block))](
            x,
            weights.norm,
            weights.unembedding,
            batch.temperatures,
            batch.seeds,
            logits,
            scores,
            candidates,
            rows,
            self.config.hidden,
            width,
            self.config.norm_epsilon,
            COLDEST,
            KEEP=batch.kept,
            BLOCK_M=block,
            BLOCK_N=STRIP,
            BLOCK_K=64,
            WIDE=self._wide,
        )
        pick_kernel[(rows,)](scores, candidates, tokens, strips, BLOCK=triton.next_power_of_2(strips))
        return Head(tokens, logits if batch.kept else None)

    def grouped(self, scores: torch.Tensor) -> Groups:
        """Group rows by expert, so that each expert's weights are read once for all its rows."""
        rows, experts, chosen = len(scores), self.config.experts, self.config.experts_per_token
        order = torch.empty(experts, rows, dtype=torch.int32, device=scores.device)
        counts = torch.empty(experts, dtype=torch.int32, device=scores.device)
        shares = scores.new_empty(rows, chosen)
        block = min(triton.next_power_of_2(rows), max(1, SCORES // experts))
        group_kernel[(experts,)](scores, order, counts, shares, rows, EXPERTS=experts, CHOSEN=chosen, BLOCK_M=block)
        return Groups(order, counts, shares)


def _rows_block(rows: int) -> int:
    """Return the rows per program: at least 16, the minimum for tensor cores."""
    return min(64, max(16, triton.next_power_of_2(rows)))
