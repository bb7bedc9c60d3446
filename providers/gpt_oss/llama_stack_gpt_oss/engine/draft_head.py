"""An EAGLE-3 head (arXiv:2503.01840): a layer that predicts a token from the model's hidden states and the one before.

A row of the head is a token's place: its input is what the model computed there, and the token that comes after it.
Its output predicts the token after that one. For further drafts, the output takes the place of the model's states.
"""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from .batch import Batch
from .cache import PAGE
from .config import ModelConfig
from .errors import CheckpointError
from .kernels import choose
from .ops import Store
from .reference import rotate
from .rope import tables_of
from .shards import Shards
from .weights import Experts, Layer, Weights

LLAMA_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
LAYER_NAMES = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.")
TOP_NAMES = ("", "model.")


@dataclass(frozen=True, slots=True)
class DraftHeadRope:
    """Rotary positions, with the scaling of Llama 3: frequencies with long waves are divided by the factor."""

    theta: float
    factor: float = 1.0
    low: float = 1.0
    high: float = 2.0
    original_context: float = 1.0

    def frequencies(self, head_size: int) -> torch.Tensor:
        plain = 1.0 / self.theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        turns = self.original_context * plain / (2 * math.pi)
        kept = ((turns - self.low) / (self.high - self.low)).clamp(0, 1)
        return plain / self.factor * (1 - kept) + plain * kept


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """The dimensions of a head. `features`: the layers of the model whose input it reads."""

    hidden: int
    intermediate: int
    head_size: int
    query_heads: int
    kv_heads: int
    vocabulary: int
    features: tuple[int, ...]
    rope: DraftHeadRope
    norm_epsilon: float
    norm_before_residual: bool

    def like(self, model: ModelConfig) -> ModelConfig:
        """Return the model's configuration with the heads of this attention."""
        return replace(model, head_size=self.head_size, query_heads=self.query_heads, kv_heads=self.kv_heads)

    def page_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of a block of its KV cache."""
        return 2 * PAGE * self.kv_heads * self.head_size * dtype.itemsize


def read_draft_head_config(folder: Path, model: ModelConfig) -> DraftHeadConfig:
    """Read config.json; CheckpointError if it is not an EAGLE-3 head for the model."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_bytes())
        config = _config(raw, model)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: this is not an EAGLE-3 head, or its download is incomplete"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not describe an EAGLE-3 head: {error!r} is wrong") from None
    _check(config, model, path)
    return config


def _config(raw: dict[str, Any], model: ModelConfig) -> DraftHeadConfig:
    inner = raw.get("transformer_layer_config") or raw  # where the speculators library keeps it
    heads = int(inner["num_attention_heads"])
    named = raw.get("eagle_aux_hidden_state_layer_ids")
    named = named or (raw.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    outputs = [int(layer) for layer in named or (1, model.layers // 2 - 1, model.layers - 4)]
    return DraftHeadConfig(
        hidden=int(inner["hidden_size"]),
        intermediate=int(inner["intermediate_size"]),
        head_size=int(inner.get("head_dim") or int(inner["hidden_size"]) // heads),
        query_heads=heads,
        kv_heads=int(inner["num_key_value_heads"]),
        vocabulary=int(raw.get("draft_vocab_size") or inner["vocab_size"]),
        features=tuple(layer + 1 for layer in outputs),
        rope=_rope(inner),
        norm_epsilon=float(inner.get("rms_norm_eps", 1e-5)),
        norm_before_residual=bool(raw.get("norm_before_residual", False)),
    )


def _rope(raw: dict[str, Any]) -> DraftHeadRope:
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    theta = float(raw.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return DraftHeadRope(theta)
        case "llama3":
            return DraftHeadRope(theta, *(float(scaling[name]) for name in LLAMA_SCALING))
    raise ValueError("rope_scaling")


def _check(config: DraftHeadConfig, model: ModelConfig, path: Path) -> None:
    if config.hidden != model.hidden or not all(0 <= layer < model.layers for layer in config.features):
        raise CheckpointError(
            f"{path} has a hidden size of {config.hidden} and reads the inputs of layers {list(config.features)}: it"
            f" does not belong to a model with {model.hidden} and {model.layers}"
        )
    if None not in model.kv_groups:
        raise CheckpointError(f"{path}: an EAGLE-3 head needs a model with a layer that sees all tokens")
    if config.kv_heads <= 0 or config.query_heads % config.kv_heads or config.head_size not in (32, 64, 128, 256):
        raise CheckpointError(
            f"{path} has {config.query_heads} query heads and {config.kv_heads} key-value heads of {config.head_size},"
            " for which there is no kernel"
        )


@dataclass(frozen=True, slots=True)
class DraftHeadWeights:
    """The weights of a head. `ids`: the model's token for each of the head's; `embedding` is the model's by default."""

    embedding: torch.Tensor
    combine: torch.Tensor
    embedding_norm: torch.Tensor
    hidden_norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor
    norm: torch.Tensor
    unembedding: torch.Tensor
    ids: torch.Tensor


def load_draft_head(folder: Path, config: DraftHeadConfig, model: Weights) -> DraftHeadWeights:
    """Load a head next to the model's weights, in their dtype; CheckpointError: a tensor is missing or misshapen."""
    with Shards.of(folder) as shards:
        return _Loader(shards, folder, config, model).load()


class _Loader:
    def __init__(self, shards: Shards, folder: Path, config: DraftHeadConfig, model: Weights) -> None:
        self._shards = shards
        self._folder = folder
        self._config = config
        self._model = model

    def load(self) -> DraftHeadWeights:
        config, hidden = self._config, self._config.hidden
        widths = [count * config.head_size for count in (config.query_heads, config.kv_heads, config.kv_heads)]
        attention = [self._layer(f"self_attn.{n}_proj", w, 2 * hidden) for n, w in zip("qkv", widths, strict=True)]
        vocabulary = len(self._model.embedding)
        own = self._found("embed_tokens.weight", TOP_NAMES)
        return DraftHeadWeights(
            embedding=self._tensor(own, (vocabulary, hidden)) if own else self._model.embedding,
            combine=self._top("fc", hidden, len(config.features) * hidden),
            embedding_norm=self._layer("input_layernorm", hidden),
            hidden_norm=self._layer("hidden_norm", hidden),
            qkv=torch.cat(attention),
            out=self._layer("self_attn.o_proj", hidden, widths[0]),
            mlp_norm=self._layer("post_attention_layernorm", hidden),
            gate=self._layer("mlp.gate_proj", config.intermediate, hidden),
            up=self._layer("mlp.up_proj", config.intermediate, hidden),
            down=self._layer("mlp.down_proj", hidden, config.intermediate),
            norm=self._top("norm", hidden),
            unembedding=self._top("lm_head", config.vocabulary, hidden),
            ids=self._ids(vocabulary),
        )

    def _ids(self, vocabulary: int) -> torch.Tensor:
        """The checkpoint has the difference between the model's tokens and the head's."""
        ids = torch.arange(self._config.vocabulary, device=self._model.embedding.device)
        name = self._found("d2t", TOP_NAMES)
        if name is not None:
            self._check_shape(name, (len(ids),))
            ids = ids + self._shards.view(name).to(ids.device)
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise CheckpointError(f"{self._folder} has tokens that are not in the model's vocabulary")
        return ids

    def _top(self, name: str, *shape: int) -> torch.Tensor:
        return self._tensor(self._found(f"{name}.weight", TOP_NAMES) or f"{name}.weight", shape)

    def _layer(self, name: str, *shape: int) -> torch.Tensor:
        return self._tensor(self._found(f"{name}.weight", LAYER_NAMES) or f"midlayer.{name}.weight", shape)

    def _found(self, name: str, prefixes: tuple[str, ...]) -> str | None:
        return next((prefix + name for prefix in prefixes if prefix + name in self._shards.places), None)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self._check_shape(name, shape)
        like = self._model.embedding
        return self._shards.view(name).to(device=like.device, dtype=like.dtype, copy=True)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        place = self._shards.places.get(name)
        if place is None:
            raise CheckpointError(f"{self._folder} lacks the tensor {name}: it is not an EAGLE-3 head, or incomplete")
        if place.shape != shape:
            raise CheckpointError(f"{name} in {place.file} has the shape {list(place.shape)}, not {list(shape)}")


class DraftHead:
    """The head and its KV cache, which has the blocks of the model's layers that see all tokens."""

    def __init__(
        self, config: DraftHeadConfig, weights: DraftHeadWeights, model: ModelConfig, pages: int, context: int
    ) -> None:
        self.features = config.features
        self.kv_group = model.kv_groups.index(None)
        self._config = config
        self._weights = weights
        like = weights.embedding
        self._attention = config.like(model)
        self._ops = choose(self._attention, like.device, like.dtype)
        memory = like.new_zeros(2, pages + 1, PAGE, config.kv_heads, config.head_size)
        self._store = Store(memory[0], memory[1], self.kv_group)
        self._rope = tables_of(config.rope.frequencies(config.head_size), context, like.device)
        self._layer = _without_sinks(like.new_full((config.query_heads,), -torch.inf))

    def combined(self, features: torch.Tensor) -> torch.Tensor:
        """Return the rows' input from the model's hidden states, which are concatenated."""
        return functional.linear(features, self._weights.combine)

    def forward(self, hidden: torch.Tensor, following: torch.Tensor, batch: Batch) -> torch.Tensor:
        """Compute rows with the tokens after them into the KV cache; return their outputs, the next rows' `hidden`."""
        config, weights, rows = self._config, self._weights, len(hidden)
        normed = self._norm(hidden, weights.hidden_norm)
        x = torch.cat((self._norm(weights.embedding[following], weights.embedding_norm), normed), dim=-1)
        widths = [self._attention.query_width, self._attention.kv_width, self._attention.kv_width]
        q, k, v = (
            part.view(rows, -1, config.head_size) for part in functional.linear(x, weights.qkv).split(widths, -1)
        )
        cos, sin = (table[batch.positions] for table in self._rope)
        q, k = (rotate(part.float(), cos, sin).to(x.dtype) for part in (q, k))
        slots = batch.slots[self.kv_group]
        for memory, new in ((self._store.keys, k), (self._store.values, v)):
            memory.view(-1, config.kv_heads, config.head_size)[slots] = new
        mixed = self._ops.attention(q.contiguous(), self._layer, None, batch, self._store)
        x = (normed if config.norm_before_residual else hidden) + functional.linear(mixed, weights.out)
        normed = self._norm(x, weights.mlp_norm)
        inner = functional.silu(functional.linear(normed, weights.gate)) * functional.linear(normed, weights.up)
        return x + functional.linear(inner, weights.down)

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of outputs in f32, and the model's token for each of them."""
        normed = self._norm(hidden, self._weights.norm)
        return functional.linear(normed, self._weights.unembedding).float(), self._weights.ids

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self._config.norm_epsilon)
        return (wide * weight.float()).to(x.dtype)


def _without_sinks(sinks: torch.Tensor) -> Layer:
    """Return a layer of which attention reads the sinks only: scores that count for nothing."""
    none = sinks.new_empty(0)
    experts = Experts(none, none, none)
    return Layer(none, none, none, sinks, none, none, none, none, none, experts, experts)
