"""The operations in plain torch: for machines without a GPU, and the reference for tests of the kernels."""

import torch
from torch.nn import functional

from .. import mxfp4
from ..batch import Batch, Fields, StepInput
from ..cache import BLOCK_TOKENS, blocks_filled
from ..config import ModelConfig
from ..ops import HeadOutput, LayerKVCache, Routed
from ..reference import rotate, swiglu
from ..sampler import WORD, Restricted, noised, redraw, row_seed
from ..state import State
from ..weights import Experts, Layer, Weights


class TorchOps:
    """Computes in the weights' dtype; norms, softmax and sums over experts in f32."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config

    @staticmethod
    def unpack(fields: Fields[torch.Tensor], step: StepInput, state: State) -> Batch:
        state.cells.index_copy_(0, fields.addresses.long(), fields.values)
        positions, entries = fields.positions.long(), fields.row_entries.long()
        sampled, owners = fields.sampled.long(), fields.owners.long()
        blocks = state.tables[:, entries, positions // BLOCK_TOKENS].long()
        return step.batch(
            fields,
            state.tables,
            tokens=torch.where(fields.tokens < 0, state.drawn[entries], fields.tokens),
            positions=positions,
            slots=blocks * BLOCK_TOKENS + positions % BLOCK_TOKENS,
            sampled=sampled,
            owners=owners,
            temperatures=state.temperatures[owners],
            seeds=row_seed(state.seeds[owners].long() & WORD, positions[sampled] + 1),
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
        projected = functional.linear(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        q, k, v = projected.split([config.query_width, config.kv_width, config.kv_width], dim=-1)
        cos, sin = (table[batch.positions] for table in rope)
        q = rotate(q.view(rows, config.query_heads, -1).float(), cos, sin).to(x.dtype)
        k = rotate(k.view(rows, config.kv_heads, -1).float(), cos, sin).to(x.dtype)
        slots = batch.slots[kv_cache.kv_group]
        for memory, new in ((kv_cache.keys, k), (kv_cache.values, v.view(rows, config.kv_heads, -1))):
            most = torch.finfo(memory.dtype).max  # FP8 has no infinity
            memory.view(-1, config.kv_heads, config.head_size)[slots] = new.clamp(-most, most).to(memory.dtype)
        return q

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, kv_cache: LayerKVCache
    ) -> torch.Tensor:
        starts = batch.starts.tolist()
        parts = []
        for number, (length, entry) in enumerate(zip(batch.lengths.tolist(), batch.entries.tolist(), strict=True)):
            rows = queries[starts[number] : starts[number + 1]]
            if not len(rows):
                continue  # in a padded step
            blocks = batch.tables[kv_cache.kv_group, entry, : blocks_filled(length)].long()
            keys, values = (each[blocks].flatten(0, 1)[:length] for each in (kv_cache.keys, kv_cache.values))
            parts.append(self._attend(rows, keys, values, layer.sinks, window))
        return torch.cat(parts)

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sinks: torch.Tensor, window: int | None
    ) -> torch.Tensor:
        """Attend with the rows, which are the last of the keys. Query heads that share a KV head are adjacent."""
        rows, keys = len(q), len(k)
        first = 0 if window is None else max(0, keys - rows - window + 1)  # keys that no row sees are skipped
        k, v = k[first:].float(), v[first:].float()
        grouped = q.float().view(rows, self.config.kv_heads, -1, self.config.head_size)
        scores = torch.einsum("qgsd,kgd->gsqk", grouped, k) * self.config.head_size**-0.5
        distance = torch.arange(keys - rows, keys, device=q.device)[:, None] - torch.arange(
            first, keys, device=q.device
        )
        hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
        scores = scores.masked_fill(hidden, -torch.inf)
        sink = sinks.float().view(self.config.kv_heads, -1, 1, 1).expand(-1, -1, rows, 1)
        shares = torch.cat((scores, sink), dim=-1).softmax(-1)[..., :-1]
        return torch.einsum("gsqk,kgd->qgsd", shares, v).reshape(rows, -1).to(q.dtype)

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        return x + functional.linear(mixed, layer.out, layer.out_bias)

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        normed = self._norm(x, layer.mlp_norm)
        return Routed(normed, functional.linear(normed, layer.router, layer.router_bias).float())

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        normed, chosen = routed.normed, routed.scores.topk(self.config.experts_per_token, dim=-1).indices
        inner = normed.new_empty(*chosen.shape, self.config.intermediate)
        for expert in chosen.unique().tolist():
            rows, ranks = (chosen == expert).nonzero(as_tuple=True)
            projected = _project(layer.up, expert, normed[rows])
            inner[rows, ranks] = swiglu(projected.float(), self.config.swiglu_limit).to(normed.dtype)
        return inner

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        best = routed.scores.topk(self.config.experts_per_token, dim=-1)
        shares = best.values.softmax(-1)
        made = torch.empty(*best.indices.shape, self.config.hidden, device=x.device)
        for expert in best.indices.unique().tolist():
            rows, ranks = (best.indices == expert).nonzero(as_tuple=True)
            made[rows, ranks] = _project(layer.down, expert, inner[rows, ranks]).float()
        return x + (made * shares.unsqueeze(-1)).sum(1).to(x.dtype)

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> HeadOutput:
        logits = functional.linear(self._norm(x, weights.norm), weights.unembedding).float()
        warm, first = bool(batch.temperatures.any()), weights.first_token
        # Noise for a whole vocabulary is expensive.
        best = (noised(logits, batch.temperatures, batch.seeds, first) if warm else logits).max(-1)
        return HeadOutput(best.indices + first, logits if batch.kept else None, best.values)

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        assert head.logits is not None
        redraw(head.tokens, head.logits, batch.temperatures, batch.seeds, restricted)

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.norm_epsilon)
        return (wide * weight.float()).to(x.dtype)


def _project(experts: Experts, expert: int, x: torch.Tensor) -> torch.Tensor:
    matrix = mxfp4.decode(experts.words[expert], experts.scales[expert], x.dtype)
    return functional.linear(x, matrix, experts.bias[expert])
