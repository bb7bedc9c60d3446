"""The steps of a layer that have more than one implementation: Triton kernels, and their twins in plain torch."""

from dataclasses import dataclass
from typing import Protocol

import torch

from .batch import Batch
from .config import ModelConfig
from .weights import Layer, Weights


@dataclass(frozen=True, slots=True)
class Store:
    """The KV store of one layer: keys and values [pages, PAGE, kv_heads, head_size], and the layer's kind."""

    keys: torch.Tensor
    values: torch.Tensor
    kind: int


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows by the experts that they chose, the best of a row having rank 0.

    order [experts, rows] int32: the first `counts` [experts] int32 of each are row * chosen + rank.
    shares [rows, chosen] f32: how much each expert counts in a row, by rank.
    """

    order: torch.Tensor
    counts: torch.Tensor
    shares: torch.Tensor


@dataclass(frozen=True, slots=True)
class Routed:
    """Rows as the experts take them [rows, hidden], and the router's scores of them [rows, experts] in f32.

    groups: what follows from the scores, where an implementation makes it beforehand.
    """

    normed: torch.Tensor
    scores: torch.Tensor
    groups: Groups | None = None


@dataclass(frozen=True, slots=True)
class Head:
    """The tokens drawn [wanted], and the logits [wanted, vocabulary] in f32 that they were drawn from, if kept."""

    tokens: torch.Tensor
    logits: torch.Tensor | None


class Ops(Protocol):
    """x is the residual stream [rows, hidden]; every step but `attention` and `head` is a weight matrix."""

    config: ModelConfig

    def qkv(
        self, x: torch.Tensor, layer: Layer, rope: tuple[torch.Tensor, torch.Tensor], batch: Batch, store: Store
    ) -> torch.Tensor:
        """Norm, projection, bias, rotation. Keys and values go to the store; returns queries [rows, heads, size]."""

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, store: Store
    ) -> torch.Tensor:
        """[rows, heads * size]: each row sees the keys up to its own, `window` at most, and its head's sink."""

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        """Projection and residual."""

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        """Norm and the router."""

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        """[rows, chosen, intermediate]: what each chosen expert makes of a row, the best first."""

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        """The experts' second projection, summed by their shares, and the residual."""

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> Head:
        """Norm, logits and a draw, of the wanted rows alone: x [wanted, hidden]."""
