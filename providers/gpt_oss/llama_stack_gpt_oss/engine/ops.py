"""The operations of a layer, implemented as Triton kernels and in plain torch."""

from dataclasses import dataclass
from typing import Protocol

import torch

from .batch import Batch, Fields, StepInput
from .config import ModelConfig
from .sampler import Restricted
from .state import State
from .weights import Layer, Weights


@dataclass(frozen=True, slots=True)
class LayerKVCache:
    """The KV cache of one layer and its KV group. keys, values: [blocks, BLOCK_TOKENS, kv_heads, head_size]."""

    keys: torch.Tensor
    values: torch.Tensor
    kv_group: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows grouped by chosen expert; rank 0 is a row's best expert.

    order [experts, rows] int32: its first `counts` [experts] int32 entries per expert are row * chosen + rank.
    shares [rows, chosen] f32: weight of each chosen expert in a row, by rank.
    """

    order: torch.Tensor
    counts: torch.Tensor
    shares: torch.Tensor


@dataclass(frozen=True, slots=True)
class Routed:
    """The experts' input rows [rows, hidden], and their router scores [rows, experts] in f32.

    groups: the rows grouped by expert, if the implementation precomputes it.
    """

    normed: torch.Tensor
    scores: torch.Tensor
    groups: Groups | None = None


@dataclass(frozen=True, slots=True)
class HeadOutput:
    """The sampled tokens [wanted], and the logits [wanted, vocabulary] in f32 before sampling, if kept.

    scores [wanted] f32: the winning score of each token, for the comparison of ranks; None if all ranks took part.
    features [rows, layers * hidden]: the inputs of the layers that a draft head reads, if there is one.
    """

    tokens: torch.Tensor
    logits: torch.Tensor | None
    scores: torch.Tensor | None = None
    features: torch.Tensor | None = None


class Ops(Protocol):
    """The operations of a layer. x is the residual stream [rows, hidden]."""

    config: ModelConfig

    def unpack(self, fields: Fields[torch.Tensor], step: StepInput, state: State) -> Batch:
        """Write the changed cells of the state, and return the batch of the packed step."""

    def qkv(
        self,
        x: torch.Tensor,
        layer: Layer,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        kv_cache: LayerKVCache,
    ) -> torch.Tensor:
        """Norm, project, add bias and rotate. Stores keys and values; returns queries [rows, heads, size]."""

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, kv_cache: LayerKVCache
    ) -> torch.Tensor:
        """Attend to the keys up to each row's own, at most `window`, and to the head's sink: [rows, heads * size]."""

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Project and add the residual."""

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        """Norm and compute the router's scores."""

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        """Compute the chosen experts' gate and up projections and SwiGLU, best first: [rows, chosen, intermediate]."""

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Compute the experts' down projections, sum them by their weights, and add the residual."""

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> HeadOutput:
        """Norm, compute logits and sample, for the wanted rows only: x [wanted, hidden].

        The next call may overwrite the logits.
        """

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        """Sample the restricted rows again and replace their tokens: `sampler.redraw`."""
