"""Candidates for a faster decode step of one row: kernels that the engine does not have, timed in whole steps."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import triton
from torch.nn import functional

from llama_stack_gpt_oss.engine.batch import Batch
from llama_stack_gpt_oss.engine.cache import BLOCK_TOKENS
from llama_stack_gpt_oss.engine.kernels import gpu_options
from llama_stack_gpt_oss.engine.kernels.triton_ops import DOWN_SPLITS, MANY, ROW_TILE, Tiles, TritonOps
from llama_stack_gpt_oss.engine.model import Model
from llama_stack_gpt_oss.engine.ops import LayerKVCache, Routed
from llama_stack_gpt_oss.engine.weights import Layer, Weights

from .candidate_kernels import (
    down_kernel,
    rotate_ahead_kernel,
    sum_norm_kernel,
    sum_route_kernel,
    up_kernel,
    window_kernel,
)
from .kernels import Case, checked, on_device, spans_of
from .measures import Row, copy_bandwidth, failure, step_bytes
from .plans import Plan, random_weights
from .step_profile import kernels_of
from .steps import Decoded, model_of

MEGABYTE = 1 << 20
# Of the logits of one step, relative: both sum in other orders, and bf16 rounds between all layers.
TOLERANCE = 0.05


@dataclass(frozen=True)
class Candidate:
    """What differs from the engine in a step of one row.

    ahead: bytes of weights that an earlier kernel asks the L2 cache for, 0: none. fused: split products are added
    where their sum is normed. ranked: experts are ranked by comparisons of all pairs. window: attention in a window
    reads all keys in one iteration. splits, down_splits: of the inputs of the experts' first and second projection.
    depth: inputs in a step of their loops; with fewer, a multiprocessor has room for more programs.
    """

    ahead: int = 0
    fused: bool = False
    ranked: bool = False
    window: bool = False
    splits: int = 1
    down_splits: int = DOWN_SPLITS
    depth: int = MANY.depth

    @property
    def tiles(self) -> Tiles:
        """The launch of the experts."""
        return replace(MANY, depth=self.depth)

    @property
    def experts(self) -> bool:
        """Whether the experts' kernels are others."""
        return replace(self, fused=False, window=False) != Candidate()


TOGETHER = Candidate(ahead=32 * MEGABYTE, fused=True, ranked=True, window=True, splits=2, down_splits=4, depth=128)
CANDIDATES = {
    "engine": Candidate(),
    "together": TOGETHER,
    "together without ahead": replace(TOGETHER, ahead=0),
    "together without splits": Candidate(ahead=32 * MEGABYTE, fused=True, ranked=True, window=True),
    "ahead 32 MB": Candidate(ahead=32 * MEGABYTE),
    "ahead 16 MB": Candidate(ahead=16 * MEGABYTE),
    "fused": Candidate(fused=True),
    "ranked": Candidate(ranked=True),
    "window": Candidate(window=True),
    "splits": Candidate(splits=2),
    "splits, depth": Candidate(splits=2, depth=128),
    "more splits, depth": Candidate(splits=2, down_splits=4, depth=128),
}


class Unadded(NamedTuple):
    """A sum that a later kernel computes: the residual, the parts [rows, parts, hidden], and the memory of the sum."""

    x: torch.Tensor
    parts: torch.Tensor
    made: torch.Tensor


class CandidateOps(TritonOps):
    """The engine's operations, of which a candidate replaces some in steps of one row.

    It computes the layers of `weights` in their order. A sum is not there before the next operation has read it.
    """

    def __init__(self, candidate: Candidate, weights: Weights, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._candidate = candidate
        firsts = [*(layer.qkv for layer in weights.layers[1:]), weights.unembedding]
        self._following = {id(layer): first for layer, first in zip(weights.layers, firsts, strict=True)}
        self._last = weights.layers[-1]
        self._unadded: Unadded | None = None
        self._fusing = False
        like, config = weights.embedding, self.config
        strips = triton.cdiv(2 * config.intermediate, MANY.strip)
        shape = (config.experts_per_token, candidate.splits, 2 * config.intermediate)
        self._partial = torch.empty(shape, dtype=torch.float32, device=like.device)
        self._arrived = torch.zeros(config.experts_per_token, strips, dtype=torch.int32, device=like.device)

    def _ahead(self, weights: torch.Tensor) -> int:
        """Return the bytes of the weights to read ahead."""
        return min(self._candidate.ahead, weights.nbytes) // 16 * 16

    def _added(self, x: torch.Tensor, parts: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
        if not self._fusing:
            return super()._added(x, parts, made)
        self._unadded = Unadded(x, parts, made)
        return made

    def _take_unadded(self, x: torch.Tensor) -> Unadded | None:
        """Return the sum that x will be, if it is not there."""
        unadded, self._unadded = self._unadded, None
        assert unadded is None or unadded.made is x
        return unadded

    def _normed(self, x: torch.Tensor, norm: torch.Tensor) -> torch.Tensor:
        unadded = self._take_unadded(x)
        if unadded is None:
            return super()._normed(x, norm)
        normed, hidden = torch.empty_like(x), self.config.hidden
        sum_norm_kernel[(len(x),)](
            unadded.x,
            unadded.parts,
            norm,
            x,
            normed,
            hidden,
            self.config.norm_epsilon,
            PARTS=unadded.parts.shape[1],
            BLOCK=triton.next_power_of_2(hidden),
            num_warps=8,
            **self._options,
        )
        return normed

    def qkv(
        self,
        x: torch.Tensor,
        layer: Layer,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        kv_cache: LayerKVCache,
    ) -> torch.Tensor:
        if len(x) > 1 or not self._candidate.ahead:
            return super().qkv(x, layer, rope, batch, kv_cache)
        config = self.config
        queries = x.new_empty(1, config.query_heads, config.head_size)
        rotate_ahead_kernel[(config.query_heads + 2 * config.kv_heads, 1)](
            functional.linear(self._normed(x, layer.attention_norm), layer.qkv),
            layer.qkv_bias,
            *rope,
            batch.positions,
            batch.slots[kv_cache.kv_group],
            queries,
            kv_cache.keys,
            kv_cache.values,
            layer.out,
            self._ahead(layer.out),
            1,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            HALF=config.head_size // 2,
            BLOCK_M=1,
            num_warps=1,
            **self._options,
        )
        return queries

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, kv_cache: LayerKVCache
    ) -> torch.Tensor:
        if len(queries) > 1 or not self._candidate.window or not window:
            return super().attention(queries, layer, window, batch, kv_cache)
        config = self.config
        mixed = queries.new_empty(1, config.query_width)
        window_kernel[(1, config.kv_heads)](
            queries,
            kv_cache.keys,
            kv_cache.values,
            layer.sinks,
            batch.tables[kv_cache.kv_group],
            batch.starts,
            batch.lengths,
            batch.entries,
            mixed,
            batch.tables.shape[-1],
            config.head_size**-0.5,
            WINDOW=window,
            QUERY_HEADS=config.query_heads,
            KV_HEADS=config.kv_heads,
            SIZE=config.head_size,
            BLOCK_TOKENS=BLOCK_TOKENS,
            BLOCK_M=max(16, triton.next_power_of_2(config.query_heads // config.kv_heads)),
            WIDE=self._wide,
            **self._options,
        )
        return mixed

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        self._fusing = self._candidate.fused and len(x) == 1
        return super().out(mixed, x, layer)

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        unadded = self._take_unadded(x)
        if unadded is None:
            return super().route(x, layer)
        config, rows = self.config, len(x)
        scores, normed = x.new_empty(rows, config.experts, dtype=torch.float32), torch.empty_like(x)
        sum_route_kernel[(config.experts, rows)](
            unadded.x,
            unadded.parts,
            layer.mlp_norm,
            layer.router,
            layer.router_bias,
            x,
            scores,
            normed,
            config.hidden,
            config.experts,
            config.norm_epsilon,
            PARTS=unadded.parts.shape[1],
            BLOCK=triton.next_power_of_2(config.hidden),
            num_warps=8,
            **self._options,
        )
        return Routed(normed, scores)

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        candidate, config = self._candidate, self.config
        if len(routed.normed) > 1 or not candidate.experts:
            return super().up(routed, layer)
        inner = routed.normed.new_empty(1, config.experts_per_token, config.intermediate)
        words = layer.down.words
        strips = triton.cdiv(2 * config.intermediate, MANY.strip)
        up_kernel[(strips, config.experts_per_token, candidate.splits)](
            routed.normed,
            routed.scores,
            layer.up.words,
            layer.up.scales,
            layer.up.bias,
            inner,
            self._partial,
            self._arrived,
            words,
            words.nbytes // len(words),
            config.hidden,
            config.intermediate,
            config.swiglu_limit,
            SPLITS=candidate.splits,
            RANKED=candidate.ranked,
            AHEAD=candidate.ahead > 0,
            WARPS=candidate.tiles.warps,
            EXPERTS=config.experts,
            CHOSEN=config.experts_per_token,
            WIDE=self._wide,
            **candidate.tiles.options(ROW_TILE),
            **self._options,
        )
        return inner

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        candidate, config = self._candidate, self.config
        self._fusing = candidate.fused and len(x) == 1 and layer is not self._last
        if len(x) > 1 or not candidate.experts:
            return super().down(inner, routed, x, layer)
        parts = x.new_empty(1, config.experts_per_token * candidate.down_splits, config.hidden, dtype=torch.float32)
        following = self._following[id(layer)]
        down_kernel[(triton.cdiv(config.hidden, MANY.strip), config.experts_per_token, candidate.down_splits)](
            inner,
            routed.scores,
            layer.down.words,
            layer.down.scales,
            layer.down.bias,
            parts,
            following,
            self._ahead(following),
            config.hidden,
            config.intermediate,
            RANKED=candidate.ranked,
            AHEAD=candidate.ahead > 0,
            WARPS=candidate.tiles.warps,
            SPLITS=candidate.down_splits,
            EXPERTS=config.experts,
            CHOSEN=config.experts_per_token,
            WIDE=self._wide,
            **candidate.tiles.options(ROW_TILE),
            **self._options,
        )
        return self._added(x, parts, torch.empty_like(x))


def ops_of(candidate: Candidate, weights: Weights, plan: Plan, device: torch.device) -> CandidateOps:
    """Return the operations of a candidate, as the engine's are for a device."""
    if device.type == "cpu":
        return CandidateOps(candidate, weights, plan.config, wide=True)
    options = gpu_options(device, weights.embedding.dtype, dependent=True)
    return CandidateOps(candidate, weights, plan.config, **options)


@torch.inference_mode()
def candidates(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the time of a decode step of one answer with each candidate, and the error of its logits.

    The error is relative to the engine's kernels. The kernels of all candidates together are timed one by one.
    """
    weights, bandwidth = random_weights(plan.config, device), copy_bandwidth(device, plan.copied)
    _, context = plan.independent[0]
    floor = step_bytes(plan.config, weights, 1, context, weights.embedding.itemsize) / bandwidth
    batch = replace(Case(plan, on_device(plan, device), weights, spans_of(plan, 1)).batch, kept=True)

    def model_with(candidate: Candidate) -> tuple[Model, int]:
        return model_of(plan, weights, device, [(1, context)], ops=ops_of(candidate, weights, plan, device))

    def measured(candidate: Candidate) -> Iterator[Row]:
        model, longest = model_with(candidate)
        compared = checked(logits_of(model, batch), engine, TOLERANCE)
        decoded = Decoded(plan, model, longest, 1, context)
        share = floor * float(decoded.times["tokens_per_second"])
        yield {**asdict(candidate), **decoded.times, "share": share, **compared}
        if candidate is TOGETHER:
            for kernel, launches, microseconds in kernels_of(decoded.replays, plan.warm, device):
                yield {"kernel": kernel, "launches": launches, "microseconds": microseconds}

    engine = logits_of(model_with(Candidate())[0], batch)
    for name in ("together",) if plan.tiny else CANDIDATES:
        try:
            for row in measured(CANDIDATES[name]):
                yield {"candidate": name, **row}
        except Exception as error:  # noqa: BLE001 -- the other candidates have to be timed
            yield {"candidate": name, "failed": failure(error)}


def logits_of(model: Model, batch: Batch) -> torch.Tensor:
    """Return the logits [wanted, vocabulary] of a batch, computed with an empty KV cache."""
    logits = model.forward(batch).logits
    assert logits is not None
    return logits.clone()
