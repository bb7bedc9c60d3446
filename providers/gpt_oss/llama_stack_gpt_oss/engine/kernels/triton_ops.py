"""The operations as Triton kernels: their grids and block sizes."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
from torch.nn import functional

from ..batch import Batch, Fields, StepInput
from ..cache import BLOCK_TOKENS
from ..config import ModelConfig
from ..logits import LogitsMemory
from ..ops import Groups, HeadOutput, LayerKVCache, Routed
from ..sampler import COLDEST, PARAMETERS, Restricted
from ..state import State
from ..weights import Layer, Weights
from .attention import attention_kernel, merge_kernel
from .experts import down_group_kernel, down_row_kernel, group_kernel, up_group_kernel, up_row_kernel
from .head import head_kernel, pick_kernel
from .inputs import unpack_kernel, write_kernel
from .linear import out_kernel, rotate_kernel, sum_kernel
from .norm import norm_kernel, route_kernel, route_row_kernel
from .sampling import BOUNDS, adjust_kernel, gather_kernel, redraw_kernel, weigh_kernel

FEW_ROWS = 1  # up to this number, each row reads its own experts' weights
DECODED_ROWS = 64  # up to this number, the router norms its rows, and cuBLAS does not project what attention made
SMALLEST_TILE, LARGEST_TILE = 16, 64  # rows per program, but for prompts' experts; the minimum is of tensor cores
MAX_DENSE_SPLITS = 8  # of the inputs of the projection after attention
BALANCE = 0.9  # with that share of the multiprocessors' time used, there are enough splits
MIN_SPLITS, MAX_SPLITS = 8, 32  # of the keys in a decode
QUERIES = 16  # queries of a prompt per program
SCORES = 4096  # router scores that a program loads at a time
FUSION = True  # of products and sums: stated, since Triton's default changes from version to version
SUMMED = 512  # outputs per program that adds parts
ROTATED_ROWS = 16  # rows of a head per program that rotates them, if there are more than the smallest tile
SCORED_ROWS, SCORED_EXPERTS = 16, 32  # of a prompt, per program of the router
ALIGNED = 16  # numbers: each row of a tensor of them begins at a multiple, so that kernels see one alignment
NUMBERS = 128  # numbers of a step's input per program
CANDIDATES = 2048  # tokens of the vocabulary that a program of restricted sampling loads at a time: a part of a row


@dataclass(frozen=True, slots=True)
class Tiles:
    """The launch of a projection. `strip`: matrix rows per program; `depth`: inputs in a step of its loop."""

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
        }


OUT = Tiles(strip=32, depth=64, warps=4, stages=5)  # of the projection after attention
# Of the head: with few rows per program, and with the most.
HEAD_FEW = Tiles(strip=64, depth=128, warps=4, stages=4)
HEAD_MANY = Tiles(strip=128, depth=64, warps=8, stages=4)
# Of the experts. Four warps are the minimum for products that read weights from registers. Larger tiles need fewer
# instructions a byte, but more shared memory; and few rows need many programs.
MANY = Tiles(strip=64, depth=256, warps=4, stages=3)
PROMPT = Tiles(strip=128, depth=128, warps=4, stages=3)  # with the largest tiles of rows
PROMPT_TILE = 128  # rows of a prompt's tile
SHARED = 227 * 1024  # bytes of shared memory that a program may have on an H100
AMPLE_SHARED = 128 * 1024  # with as many, the experts' tiles of 64 and 128 rows fit, which take 113 KiB
ROW_TILE = 16  # rows of a product with one row: with the minimum of 8, the assembler puts a wait behind each product
DOWN_SPLITS = 2  # of the inputs of the second projection with one row: otherwise there are too few programs


def expert_tiles(rows: int, experts: int, chosen: int, shared: int = SHARED) -> tuple[int, Tiles]:
    """Return the rows per tile of the grouped experts, and the launch: twice the rows that an expert has in the mean.

    A larger tile would be mostly empty, and a smaller one would decode the weights more than once.
    shared: bytes of shared memory that a program may have; with little, it reads less far ahead.
    """
    block = min(PROMPT_TILE, max(16, triton.next_power_of_2(triton.cdiv(2 * rows * chosen, experts))))
    return block, fitting(PROMPT if block == PROMPT_TILE else MANY, block, shared)


def fitting(tiles: Tiles, block: int, shared: int) -> Tiles:
    """Return a launch of the experts with `block` rows per tile that fits in the shared memory of a program."""
    return replace(tiles, stages=2) if block >= LARGEST_TILE and shared < AMPLE_SHARED else tiles


class TritonOps:
    """The kernels for a model's dimensions.

    wide: convert the operands of products to f32, for f32 weights. processors, shared: number of the GPU's
    multiprocessors, and bytes of shared memory that a program may have. dependent: begin each kernel of the layers
    before the one before it has ended; see `dependent`.
    """

    def __init__(
        self,
        config: ModelConfig,
        wide: bool = False,
        processors: int = 132,
        dependent: bool = False,
        shared: int = SHARED,
    ) -> None:
        self.config = config
        self._wide = wide
        self._processors = processors
        self._shared = shared // 2 if wide else shared  # operands in f32 take twice as many
        self._logits = LogitsMemory()
        self._options: dict[str, Any] = {"DEPENDENT": dependent, "enable_fp_fusion": FUSION}
        if dependent:
            self._options["launch_pdl"] = True

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
        projected = functional.linear(self._normed(x, layer.attention_norm), layer.qkv)
        block = 1 if rows <= SMALLEST_TILE else ROTATED_ROWS
        rotate_kernel[(config.query_heads + 2 * config.kv_heads, triton.cdiv(rows, block))](
            projected,
            layer.qkv_bias,
            *rope,
            batch.positions,
            batch.slots[kv_cache.kv_group],
            queries,
            kv_cache.keys,
            kv_cache.values,
            rows,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            HALF=config.head_size // 2,
            BLOCK_M=block,
            num_warps=1,
            **self._options,
        )
        return queries

    def dense_splits(self, strips: int) -> int:
        """Return into how many parts, a power of two, so many strips of a projection split their inputs.

        Each multiprocessor gets about as many programs as the others: the fewest splits that keep them all busy for
        the share BALANCE of the time, or as many as there may be.
        """
        splits = 1
        while splits < MAX_DENSE_SPLITS and self._balance(strips * splits) < BALANCE:
            splits *= 2
        return splits

    def _balance(self, programs: int) -> float:
        """Return the mean number of programs on a multiprocessor, as a share of the highest."""
        return programs / (self._processors * triton.cdiv(programs, self._processors))

    def _normed(self, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        normed, hidden = torch.empty_like(x), self.config.hidden
        norm_kernel[(len(x),)](
            x,
            norm,
            normed,
            hidden,
            self.config.norm_epsilon,
            BLOCK=triton.next_power_of_2(hidden),
            **self._options,
        )
        return normed

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
        block = max(16, triton.next_power_of_2(block_q * config.query_heads // config.kv_heads))
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
            BLOCK_M=block,
            SPLITS=splits,
            WIDE=self._wide,
            num_warps=attention_warps(block),
            **self._options,
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
            **self._options,
        )

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        rows, hidden, block = len(x), self.config.hidden, rows_block(len(x))
        if rows > DECODED_ROWS:
            return functional.linear(mixed, layer.out, layer.out_bias).add_(x)
        strips = triton.cdiv(hidden, OUT.strip)
        splits, made = self.dense_splits(strips), torch.empty_like(x)
        parts = x.new_empty((rows, splits, hidden) if splits > 1 else (1,), dtype=torch.float32)
        out_kernel[(strips, splits * triton.cdiv(rows, block))](
            mixed,
            x,
            layer.out,
            layer.out_bias,
            made,
            parts,
            rows,
            hidden,
            self.config.query_width,
            SPLITS=splits,
            WIDE=self._wide,
            **OUT.options(block),
            **self._options,
        )
        return self._added(x, parts, made) if splits > 1 else made

    def _added(self, x: torch.Tensor, parts: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        """Return `made`, which becomes the sum of x and of the parts [rows, parts, hidden]."""
        rows, count, hidden = parts.shape
        sum_kernel[(triton.cdiv(hidden, SUMMED), rows)](
            x, parts, made, hidden, PARTS=count, BLOCK_N=SUMMED, **self._options
        )
        return made

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        config, rows = self.config, len(x)
        scores = x.new_empty(rows, config.experts, dtype=torch.float32)
        if rows <= DECODED_ROWS:
            normed = torch.empty_like(x)
            route_row_kernel[(config.experts, rows)](
                x,
                layer.mlp_norm,
                layer.router,
                layer.router_bias,
                scores,
                normed,
                config.hidden,
                config.experts,
                config.norm_epsilon,
                BLOCK=triton.next_power_of_2(config.hidden),
                **self._options,
            )
        else:
            normed = self._normed(x, layer.mlp_norm)
            route_kernel[(triton.cdiv(rows, SCORED_ROWS), triton.cdiv(config.experts, SCORED_EXPERTS))](
                normed,
                layer.router,
                layer.router_bias,
                scores,
                rows,
                config.hidden,
                config.experts,
                BLOCK_M=SCORED_ROWS,
                BLOCK_N=SCORED_EXPERTS,
                BLOCK_K=128,
                WIDE=self._wide,
                **self._options,
            )
        return Routed(normed, scores, self.grouped(scores) if rows > FEW_ROWS else None)

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(routed.normed), routed.groups
        inner = routed.normed.new_empty(rows, config.experts_per_token, config.intermediate)
        sizes = (config.hidden, config.intermediate, config.swiglu_limit)
        weights = (layer.up.words, layer.up.scales, layer.up.bias)
        if groups is None:
            up_row_kernel[(triton.cdiv(2 * config.intermediate, MANY.strip), rows * config.experts_per_token)](
                routed.normed,
                routed.scores,
                *weights,
                inner,
                *sizes,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                WIDE=self._wide,
                **MANY.options(ROW_TILE),
                **self._options,
            )
            return inner
        block, launch = self._expert_tiles(rows)
        up_group_kernel[(triton.cdiv(2 * config.intermediate, launch.strip), self._tiles(rows, block))](
            routed.normed,
            groups.order,
            groups.counts,
            *weights,
            inner,
            rows,
            *sizes,
            EXPERTS=config.experts,
            CHOSEN=config.experts_per_token,
            WIDE=self._wide,
            **launch.options(block),
            **self._options,
        )
        return inner

    def _expert_tiles(self, rows: int) -> tuple[int, Tiles]:
        return expert_tiles(rows, self.config.experts, self.config.experts_per_token, self._shared)

    def _tiles(self, rows: int, block: int) -> int:
        """Return the maximum number of tiles of grouped rows: each expert may have one that is not full."""
        pairs = rows * self.config.experts_per_token
        used = min(pairs, self.config.experts)
        return used + (pairs - used) // block

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        config, rows, groups = self.config, len(x), routed.groups
        splits = DOWN_SPLITS if groups is None else 1
        parts = x.new_empty(rows, config.experts_per_token * splits, config.hidden, dtype=torch.float32)
        weights = (layer.down.words, layer.down.scales, layer.down.bias)
        if groups is None:
            grid = (triton.cdiv(config.hidden, MANY.strip), rows * config.experts_per_token, splits)
            down_row_kernel[grid](
                inner,
                routed.scores,
                *weights,
                parts,
                config.hidden,
                config.intermediate,
                SPLITS=splits,
                EXPERTS=config.experts,
                CHOSEN=config.experts_per_token,
                WIDE=self._wide,
                **MANY.options(ROW_TILE),
                **self._options,
            )
        else:
            block, launch = self._expert_tiles(rows)
            down_group_kernel[(triton.cdiv(config.hidden, launch.strip), self._tiles(rows, block))](
                inner,
                groups.order,
                groups.counts,
                groups.shares,
                *weights,
                parts,
                rows,
                config.hidden,
                config.intermediate,
                EXPERTS=config.experts,
                WIDE=self._wide,
                **launch.options(block),
                **self._options,
            )
        return self._added(x, parts, torch.empty_like(x))

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> HeadOutput:
        rows, width, block = len(x), len(weights.unembedding), rows_block(len(x))
        launch = HEAD_MANY if block == LARGEST_TILE else HEAD_FEW
        strips = triton.cdiv(width, launch.strip)
        logits = self._logits.room(rows, width, x.device) if batch.kept else x.new_empty(1, dtype=torch.float32)
        scores = x.new_empty(rows, strips, dtype=torch.float32)
        candidates = torch.empty_like(scores, dtype=torch.int32)
        tokens, picked = torch.empty_like(batch.seeds), x.new_empty(rows, dtype=torch.float32)
        head_kernel[(strips, triton.cdiv(rows, block))](
            self._normed(x, weights.norm),
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
            COLDEST,
            KEEP=batch.kept,
            WIDE=self._wide,
            **launch.options(block),
            # The noise is that of `sampler.gumbel`, whose products and sums are rounded apart.
            **self._options | {"enable_fp_fusion": False},
        )
        pick_kernel[(rows,)](
            scores, candidates, tokens, picked, strips, BLOCK=triton.next_power_of_2(strips), **self._options
        )
        return HeadOutput(tokens, logits if batch.kept else None, picked)

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        assert head.logits is not None
        count, width = len(restricted.parameters), head.logits.shape[-1]
        parts = triton.cdiv(width, CANDIDATES)
        numbers, fractions = restricted.parameters, restricted.parameters.view(torch.float32)
        left, kept = (head.logits.new_empty(count, width) for _ in range(2))
        maxima, totals = left.new_empty(count, parts), left.new_empty(count)
        kept_tokens, sizes = (torch.empty_like(each, dtype=torch.int32) for each in (kept, totals))
        options = {"PARAMETERS": PARAMETERS, "BLOCK": CANDIDATES, "enable_fp_fusion": False}  # as in the head kernel
        _write_cells(restricted.table.view(torch.int32), restricted.addresses, restricted.values)
        adjust_kernel[(count, parts)](
            head.logits,
            left,
            maxima,
            numbers,
            restricted.masks,
            restricted.table,
            restricted.own_tokens,
            restricted.own_values.view(torch.float32),
            width,
            restricted.masks.shape[-1],
            **options,
        )
        options["PARTS"] = triton.next_power_of_2(parts)
        self._gather(
            left, maxima, (kept, kept_tokens, sizes, totals), (batch.temperatures, numbers, fractions), options
        )
        redraw_kernel[(count,)](
            kept,
            kept_tokens,
            sizes,
            totals,
            maxima,
            head.tokens,
            batch.temperatures,
            batch.seeds,
            numbers,
            fractions,
            width,
            parts,
            COLDEST,
            num_warps=8,
            **options,
        )

    def _gather(
        self,
        left: torch.Tensor,
        maxima: torch.Tensor,
        targets: tuple[torch.Tensor, ...],
        parameters: tuple[torch.Tensor, ...],
        options: dict[str, Any],
    ) -> None:
        """Write to the targets which tokens of each row may be kept, and how much they weigh."""
        width = left.shape[-1]
        counts = torch.empty(*maxima.shape, BOUNDS.value, dtype=torch.int32, device=left.device)
        masses, bounds = torch.empty_like(counts, dtype=torch.float32), left.new_empty(len(left), BOUNDS.value)
        weigh_kernel[maxima.shape](left, maxima, counts, masses, bounds, *parameters, width, COLDEST, **options)
        gather_kernel[maxima.shape](
            left, maxima, counts, masses, bounds, *parameters, *targets, width, COLDEST, **options
        )

    def grouped(self, scores: torch.Tensor) -> Groups:
        """Group rows by expert, so that each expert's weights are read once for all its rows."""
        rows, experts, chosen = len(scores), self.config.experts, self.config.experts_per_token
        order = torch.empty(experts, rows, dtype=torch.int32, device=scores.device)
        counts = torch.empty(experts, dtype=torch.int32, device=scores.device)
        shares = scores.new_empty(rows, chosen)
        block = min(padded_rows(rows), max(1, SCORES // experts))
        group_kernel[(experts,)](
            scores, order, counts, shares, rows, EXPERTS=experts, CHOSEN=chosen, BLOCK_M=block, **self._options
        )
        return Groups(order, counts, shares)


def attention_warps(block: int) -> int:
    """Return the warps of attention for so many rows of queries per program: eight for a prompt."""
    return max(4, block // 16)


def padded_rows(rows: int) -> int:
    """Return the next power of two, at least the smallest tile: the warm-up has a step for each of them."""
    return max(SMALLEST_TILE, triton.next_power_of_2(rows))


def rows_block(rows: int) -> int:
    """Return the rows per program."""
    return min(LARGEST_TILE, padded_rows(rows))


def _write_cells(cells: torch.Tensor, addresses: torch.Tensor, values: torch.Tensor) -> None:
    count = len(addresses)
    if count:
        write_kernel[(triton.cdiv(count, NUMBERS),)](cells, addresses, values, count, BLOCK=NUMBERS)
