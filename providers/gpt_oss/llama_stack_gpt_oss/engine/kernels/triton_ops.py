"""The operations as Triton kernels: their grids and block sizes."""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from ..batch import Batch, Fields, StepInput
from ..cache import BLOCK_TOKENS
from ..config import ModelConfig
from ..ops import Groups, HeadOutput, LayerKVCache, Routed
from ..sampler import COLDEST, PARAMETERS, Restricted
from ..state import State
from ..weights import Layer, Weights
from .attention import attention_kernel, merge_kernel
from .experts import down_group_kernel, down_row_kernel, group_kernel, sum_kernel, up_group_kernel, up_row_kernel
from .head import head_kernel, pick_kernel
from .inputs import unpack_kernel, write_kernel
from .linear import out_kernel, qkv_kernel, route_kernel, route_row_kernel
from .sampling import redraw_kernel

FEW_ROWS = 8  # up to this number, each row reads its own experts' weights
ROUTED_ROWS = 64  # up to this number, the router has a program for each expert and row
MIN_SPLITS, MAX_SPLITS = 8, 32  # of the keys in a decode
QUERIES = 16  # queries of a prompt per program
SCORES = 4096  # router scores that a program loads at a time
STRIP = 64  # tokens of the vocabulary per program
FUSION = True  # of products and sums: stated, since Triton's default changes from version to version
SUMMED = 512  # outputs of the experts per program that sums them
ALIGNED = 16  # numbers: each row of a tensor of them begins at a multiple, so that kernels see one alignment
NUMBERS = 128  # numbers of a step's input per program
CANDIDATES = 2048  # tokens of the vocabulary that a program of restricted sampling loads at a time


@dataclass(frozen=True, slots=True)
class ExpertTiles:
    """The launch of an expert's projection. `strip`: matrix rows per program; `depth`: inputs in a step of its loop."""

    strip: int
    depth: int
    warps: int
    stages: int

    def options(self, rows: int) -> dict[str, Any]:
        """Return the launch's keyword arguments for `rows` rows per program."""
        return {
            "BLOCK_M": rows,
            "BLOCK_N": self.strip,
            "BLOCK_K": self.depth,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "enable_fp_fusion": FUSION,
        }


# Four warps are the minimum for products that read weights from registers. Larger tiles need fewer instructions a byte,
# but more shared memory; and few rows need many programs.
FEW = ExpertTiles(strip=64, depth=256, warps=4, stages=4)
MANY = ExpertTiles(strip=128, depth=128, warps=4, stages=3)
ROW_TILE = 16  # rows of a product with one row: with the minimum of 8, the assembler puts a wait behind each product


class TritonOps:
    """The kernels for a model's dimensions.

    wide: convert the operands of products to f32, for f32 weights. processors: number of the GPU's multiprocessors.
    """

    def __init__(self, config: ModelConfig, wide: bool = False, processors: int = 132) -> None:
        self.config = config
        self._wide = wide
        self._processors = processors

    def unpack(self, fields: Fields[torch.Tensor], step: StepInput, state: State) -> Batch:
        rows, wanted = len(fields.tokens), len(fields.sampled)
        kv_groups, entries, widest = state.tables.shape
        _write_cells(state.cells, fields.addresses, fields.values)
        row_stride, wanted_stride = ALIGNED * triton.cdiv(rows, ALIGNED), ALIGNED * triton.cdiv(wanted, ALIGNED)
        numbers = torch.empty(2 + kv_groups, row_stride, dtype=torch.long, device=state.cells.device)
        chosen = numbers.new_empty(3, wanted_stride)
        temperatures = numbers.new_empty(wanted, dtype=torch.float32)
        unpack_kernel[(triton.cdiv(max(rows, wanted), NUMBERS),)](
            fields.tokens,
            fields.positions,
            fields.row_entries,
            fields.sampled,
            fields.owners,
            state.tables,
            state.temperatures,
            state.seeds,
            state.drawn,
            numbers,
            chosen,
            temperatures,
            rows,
            wanted,
            row_stride,
            wanted_stride,
            entries,
            widest,
            BLOCK_TOKENS=BLOCK_TOKENS,
            KV_GROUPS=kv_groups,
            BLOCK=NUMBERS,
        )
        return step.batch(
            fields,
            state.tables,
            tokens=numbers[0, :rows],
            positions=numbers[1, :rows],
            slots=numbers[2:, :rows],
            sampled=chosen[0, :wanted],
            owners=chosen[1, :wanted],
            temperatures=temperatures,
            seeds=chosen[2, :wanted],
        )

    def qkv(
        self,
        x: torch.Tensor,
        layer: Layer,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        kv_cache: LayerKVCache,
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
            batch.slots[kv_cache.kv_group],
            queries,
            kv_cache.keys,
            kv_cache.values,
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
            num_stages=dense_stages(block),
            enable_fp_fusion=FUSION,
        )
        return queries

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, kv_cache: LayerKVCache
    ) -> torch.Tensor:
        """Launch decodes and prompts apart: a decode's few queries would leave most of a prompt's tile idle."""
        mixed = queries.new_empty(len(queries), self.config.query_width)
        if batch.decodes:
            grid = (batch.decodes, self.config.kv_heads, 1)
            decodes = triton.cdiv(batch.decode_rows, batch.width)  # without the empty ones of a padded step
            splits = 1 if window else self.splits(decodes)  # a window is short enough for one program
            self._attend(
                queries, mixed, layer, window, batch, kv_cache, grid, first=0, block_q=batch.width, splits=splits
            )
        if batch.longest:
            grid = (len(batch.lengths) - batch.decodes, self.config.kv_heads, triton.cdiv(batch.longest, QUERIES))
            first = batch.decodes
            self._attend(queries, mixed, layer, window, batch, kv_cache, grid, first=first, block_q=QUERIES, splits=1)
        return mixed

    def splits(self, sequences: int) -> int:
        """Return into how many parts, a power of two, decodes split their keys: enough programs to fill the device.

        There is a minimum, since sequences differ in length: many short ones end before a long one.
        """
        wanted = 2 * self._processors // (sequences * self.config.kv_heads)
        return min(MAX_SPLITS, max(MIN_SPLITS, 1 << max(wanted, 1).bit_length() - 1))

    def _attend(
        self,
        queries: torch.Tensor,
        mixed: torch.Tensor,
        layer: Layer,
        window: int | None,
        batch: Batch,
        kv_cache: LayerKVCache,
        grid: tuple[int, int, int],
        *,
        first: int,
        block_q: int,
        splits: int,
    ) -> None:
        """Launch for the sequences from the first one on; only the decodes, which come first, are split."""
        config = self.config
        shape = (batch.decode_rows, config.query_heads, splits, config.head_size + 2) if splits > 1 else (1,)
        partial = queries.new_empty(shape, dtype=torch.float32)
        attention_kernel[(*grid[:2], grid[2] * splits)](
            queries,
            kv_cache.keys,
            kv_cache.values,
            layer.sinks,
            batch.tables[kv_cache.kv_group],
            batch.starts,
            batch.lengths,
            batch.entries,
            mixed,
            partial,
            first,
            batch.tables.shape[-1],
            config.head_size**-0.5,
            WINDOW=window or 0,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            SIZE=config.head_size,
            BLOCK_TOKENS=BLOCK_TOKENS,
            BLOCK_Q=block_q,
            BLOCK_M=max(16, triton.next_power_of_2(block_q * config.query_heads // config.kv_heads)),
            SPLITS=splits,
            WIDE=self._wide,
            enable_fp_fusion=FUSION,
        )
        if splits > 1:
            self._merge(partial, layer, mixed, splits)

    def _merge(self, partial: torch.Tensor, layer: Layer, mixed: torch.Tensor, splits: int) -> None:
        """Launch for the parts of the decodes."""
        config = self.config
        merge_kernel[(len(partial), config.query_heads)](
            partial,
            layer.sinks,
            mixed,
            QUERY_HEADS=config.query_heads,
            SIZE=config.head_size,
            SPLITS=splits,
            enable_fp_fusion=FUSION,
        )

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
            num_stages=dense_stages(block),
            enable_fp_fusion=FUSION,
        )
        return made

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        config, rows, block = self.config, len(x), _rows_block(len(x))
        normed, scores = torch.empty_like(x), x.new_empty(rows, config.experts, dtype=torch.float32)
        weights = (layer.mlp_norm, layer.router, layer.router_bias)
        if rows <= ROUTED_ROWS:
            route_row_kernel[(config.experts, rows)](
                x,
                *weights,
                scores,
                normed,
                config.hidden,
                config.experts,
                config.norm_epsilon,
                BLOCK=triton.next_power_of_2(config.hidden),
                enable_fp_fusion=FUSION,
            )
        else:
            route_kernel[(triton.cdiv(config.experts, 16), triton.cdiv(rows, block))](
                x,
                *weights,
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
                enable_fp_fusion=FUSION,
            )
        return Routed(normed, scores, self.grouped(scores) if rows > FEW_ROWS else None)

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(routed.normed), routed.groups
        inner = routed.normed.new_empty(rows, config.experts_per_token, config.intermediate)
        sizes = (config.hidden, config.intermediate, config.swiglu_limit)
        weights = (layer.up.words, layer.up.scales, layer.up.bias)
        if groups is None:
            up_row_kernel[(triton.cdiv(2 * config.intermediate, FEW.strip), rows * config.experts_per_token)](
                routed.normed,
                routed.scores,
                *weights,
                inner,
                *sizes,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                WIDE=self._wide,
                **FEW.options(ROW_TILE),
            )
            return inner
        block = _rows_block(rows)
        grid = (triton.cdiv(2 * config.intermediate, MANY.strip), config.experts, triton.cdiv(rows, block))
        up_group_kernel[grid](
            routed.normed,
            groups.order,
            groups.counts,
            *weights,
            inner,
            rows,
            *sizes,
            CHOSEN=config.experts_per_token,
            WIDE=self._wide,
            **MANY.options(block),
        )
        return inner

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(x), routed.groups
        parts = x.new_empty(rows, config.experts_per_token, config.hidden, dtype=torch.float32)
        weights = (layer.down.words, layer.down.scales, layer.down.bias)
        if groups is None:
            down_row_kernel[(triton.cdiv(config.hidden, FEW.strip), rows * config.experts_per_token)](
                inner,
                routed.scores,
                *weights,
                parts,
                config.hidden,
                config.intermediate,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                WIDE=self._wide,
                **FEW.options(ROW_TILE),
            )
        else:
            block = _rows_block(rows)
            down_group_kernel[(triton.cdiv(config.hidden, MANY.strip), config.experts, triton.cdiv(rows, block))](
                inner,
                groups.order,
                groups.counts,
                groups.shares,
                *weights,
                parts,
                rows,
                config.hidden,
                config.intermediate,
                WIDE=self._wide,
                **MANY.options(block),
            )
        made = torch.empty_like(x)
        sum_kernel[(triton.cdiv(config.hidden, SUMMED), rows)](
            x,
            parts,
            made,
            config.hidden,
            CHOSEN=config.experts_per_token,
            BLOCK_N=SUMMED,
            enable_fp_fusion=FUSION,
        )
        return made

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> HeadOutput:
        rows, width, block = len(x), len(weights.unembedding), _rows_block(len(x))
        strips = triton.cdiv(width, STRIP)
        logits = x.new_empty((rows, width) if batch.kept else (1,), dtype=torch.float32)
        scores = x.new_empty(rows, strips, dtype=torch.float32)
        candidates = torch.empty_like(scores, dtype=torch.int32)
        tokens, picked = torch.empty_like(batch.seeds), x.new_empty(rows, dtype=torch.float32)
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
            weights.first_token,
            self.config.hidden,
            width,
            self.config.norm_epsilon,
            COLDEST,
            KEEP=batch.kept,
            BLOCK_M=block,
            BLOCK_N=STRIP,
            BLOCK_K=64,
            WIDE=self._wide,
            enable_fp_fusion=False,  # the noise is that of `sampler.gumbel`, whose products and sums are rounded apart
        )
        pick_kernel[(rows,)](
            scores, candidates, tokens, picked, strips, BLOCK=triton.next_power_of_2(strips), enable_fp_fusion=False
        )
        return HeadOutput(tokens, logits if batch.kept else None, picked)

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        assert head.logits is not None
        count, width = len(restricted.parameters), head.logits.shape[-1]
        left = head.logits.new_empty(count, width)
        _write_cells(restricted.table.view(torch.int32), restricted.addresses, restricted.values)
        redraw_kernel[(count,)](
            head.logits,
            left,
            head.tokens,
            batch.temperatures,
            batch.seeds,
            restricted.parameters,
            restricted.parameters.view(torch.float32),
            restricted.masks,
            restricted.table,
            restricted.own_tokens,
            restricted.own_values.view(torch.float32),
            width,
            restricted.masks.shape[-1],
            COLDEST,
            PARAMETERS=PARAMETERS,
            BLOCK=CANDIDATES,
            num_warps=8,
            enable_fp_fusion=False,  # as in the head kernel
        )

    def grouped(self, scores: torch.Tensor) -> Groups:
        """Group rows by expert, so that each expert's weights are read once for all its rows."""
        rows, experts, chosen = len(scores), self.config.experts, self.config.experts_per_token
        order = torch.empty(experts, rows, dtype=torch.int32, device=scores.device)
        counts = torch.empty(experts, dtype=torch.int32, device=scores.device)
        shares = scores.new_empty(rows, chosen)
        block = min(triton.next_power_of_2(rows), max(1, SCORES // experts))
        group_kernel[(experts,)](
            scores, order, counts, shares, rows, EXPERTS=experts, CHOSEN=chosen, BLOCK_M=block, enable_fp_fusion=FUSION
        )
        return Groups(order, counts, shares)


def _rows_block(rows: int) -> int:
    """Return the rows per program: at least 16, the minimum for tensor cores."""
    return min(64, max(16, triton.next_power_of_2(rows)))


def dense_stages(block: int) -> int:
    """Return the stages of the projections around attention: for few rows, a program reads further ahead."""
    return 6 if block == 16 else 3


def _write_cells(cells: torch.Tensor, addresses: torch.Tensor, values: torch.Tensor) -> None:
    count = len(addresses)
    if count:
        write_kernel[(triton.cdiv(count, NUMBERS),)](cells, addresses, values, count, BLOCK=NUMBERS)
