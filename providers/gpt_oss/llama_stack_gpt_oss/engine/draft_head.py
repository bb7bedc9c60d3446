"""An EAGLE-3 head (arXiv:2503.01840): a layer that predicts a token from the model's hidden states and the one before.

A row of the head is a token's position: its input is what the model computed there, and the token that comes after it.
Its output predicts the token after that one. For further drafts, the output takes the place of the model's states.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from .batch import Batch
from .cache import BLOCK_TOKENS
from .config import ModelConfig
from .draft_head_config import DraftHeadConfig
from .errors import CheckpointError
from .kernels import choose
from .ops import LayerKVCache
from .reference import rotate
from .rope import tables_of
from .safetensors_reader import SafetensorsReader
from .weights import Experts, Layer, Weights

LAYER_NAMES = ("midlayer.", "layers.0.", "model.midlayer.", "model.layers.0.")
TOP_NAMES = ("", "model.")
UNSUPPORTED_TENSORS = (".bias", ".q_norm.weight", ".k_norm.weight")


@dataclass(frozen=True, slots=True)
class DraftHeadWeights:
    """The weights of a head. `ids`: the model's token for each of the head's; `embedding` is the model's by default.

    feature_norms: the weight for all features together, one for each of them, or none. combine: None for a head that
    reads one feature, after the norm whose weight is `final_norm`.
    """

    embedding: torch.Tensor
    final_norm: torch.Tensor
    feature_norms: tuple[torch.Tensor, ...]
    combine: torch.Tensor | None
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
    with SafetensorsReader.of(folder) as reader:
        return _Loader(reader, folder, config, model).load()


class _Loader:
    def __init__(self, reader: SafetensorsReader, folder: Path, config: DraftHeadConfig, model: Weights) -> None:
        self._reader = reader
        self._folder = folder
        self._config = config
        self._model = model

    def load(self) -> DraftHeadWeights:
        self._check_support()
        config, hidden = self._config, self._config.hidden
        widths = [count * config.head_size for count in (config.query_heads, config.kv_heads, config.kv_heads)]
        attention = [self._layer(f"self_attn.{n}_proj", w, 2 * hidden) for n, w in zip("qkv", widths, strict=True)]
        vocabulary = len(self._model.embedding)
        own = self._found("embed_tokens.weight", TOP_NAMES)
        return DraftHeadWeights(
            embedding=self._tensor(own, (vocabulary, hidden)) if own else self._model.embedding,
            final_norm=self._model.norm,
            feature_norms=self._feature_norms(),
            combine=None if config.reads_norm else self._top("fc", hidden, len(config.features) * hidden),
            embedding_norm=self._layer("input_layernorm", hidden),
            hidden_norm=self._layer("hidden_norm", hidden),
            qkv=torch.cat(attention),
            out=self._layer("self_attn.o_proj", hidden, widths[0]),
            mlp_norm=self._layer("post_attention_layernorm", hidden),
            gate=self._layer("mlp.gate_proj", config.intermediate, hidden),
            up=self._layer("mlp.up_proj", config.intermediate, hidden),
            down=self._layer("mlp.down_proj", hidden, config.intermediate),
            norm=self._top("norm", hidden),
            unembedding=self._unembedding(),
            ids=self._ids(vocabulary),
        )

    def _check_support(self) -> None:
        """Raise a CheckpointError for tensors that would change the result. Others, such as t2d, are ignored."""
        for name in sorted(self._reader.locations):
            if name.endswith(UNSUPPORTED_TENSORS):
                raise CheckpointError(f"{self._folder} has the tensor {name}, which is not supported: use another head")

    def _feature_norms(self) -> tuple[torch.Tensor, ...]:
        hidden, count = self._config.hidden, len(self._config.features)
        if self._config.joint_norm:
            return (self._top("input_norm", count * hidden),)
        return tuple(self._top(f"fc_norm.{n}", hidden) for n in range(count if self._config.feature_norms else 0))

    def _unembedding(self) -> torch.Tensor:
        """A head without one of its own has the model's."""
        shape, own = (self._config.vocabulary, self._config.hidden), self._found("lm_head.weight", TOP_NAMES)
        if own is None and self._model.unembedding.shape == shape:
            return self._model.unembedding
        return self._top("lm_head", *shape)

    def _ids(self, vocabulary: int) -> torch.Tensor:
        """The checkpoint has the difference between the model's tokens and the head's."""
        ids = torch.arange(self._config.vocabulary, device=self._model.embedding.device)
        name = self._found("d2t", TOP_NAMES)
        if name is not None:
            self._check_shape(name, (len(ids),))
            ids = ids + self._reader.view(name).to(ids.device)
        if int(ids.min()) < 0 or int(ids.max()) >= vocabulary:
            raise CheckpointError(f"{self._folder} has tokens that are not in the model's vocabulary")
        return ids

    def _top(self, name: str, *shape: int) -> torch.Tensor:
        return self._tensor(self._found(f"{name}.weight", TOP_NAMES) or f"{name}.weight", shape)

    def _layer(self, name: str, *shape: int) -> torch.Tensor:
        return self._tensor(self._found(f"{name}.weight", LAYER_NAMES) or f"midlayer.{name}.weight", shape)

    def _found(self, name: str, prefixes: tuple[str, ...]) -> str | None:
        return next((prefix + name for prefix in prefixes if prefix + name in self._reader.locations), None)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        self._check_shape(name, shape)
        like = self._model.embedding
        return self._reader.view(name).to(device=like.device, dtype=like.dtype, copy=True)

    def _check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        location = self._reader.locations.get(name)
        if location is None:
            raise CheckpointError(f"{self._folder} lacks the tensor {name}: it is not an EAGLE-3 head, or incomplete")
        if location.shape != shape:
            raise CheckpointError(f"{name} in {location.file} has the shape {list(location.shape)}, not {list(shape)}")


class DraftHead:
    """The head and its KV cache, which has the blocks of the model's layers that see all tokens."""

    def __init__(
        self, config: DraftHeadConfig, weights: DraftHeadWeights, model: ModelConfig, blocks: int, context: int
    ) -> None:
        self.features = config.features
        self.kv_group = model.kv_groups.index(None)
        self._config = config
        self._weights = weights
        like = weights.embedding
        self._attention = config.like(model)
        self._ops = choose(self._attention, like.device, like.dtype)
        memory = like.new_zeros(2, blocks + 1, BLOCK_TOKENS, config.kv_heads, config.head_size)
        self._kv_cache = LayerKVCache(memory[0], memory[1], self.kv_group)
        cos, sin = tables_of(config.rope.frequencies(config.head_size), context, like.device)
        self._rope = cos * config.rope.concentration, sin * config.rope.concentration
        self._layer = _without_sinks(like.new_full((config.query_heads,), -torch.inf))

    def combined(self, features: torch.Tensor) -> torch.Tensor:
        """Return the rows' input from the model's hidden states, which are concatenated."""
        weights, hidden = self._weights, self._config.hidden
        if weights.combine is None:
            return self._norm(features, weights.final_norm)
        if self._config.joint_norm:
            features = self._norm(features, weights.feature_norms[0])
        elif weights.feature_norms:
            parts = zip(features.split(hidden, dim=-1), weights.feature_norms, strict=True)
            features = torch.cat([self._norm(part, weight) for part, weight in parts], dim=-1)
        return functional.linear(features, weights.combine)

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
        for memory, new in ((self._kv_cache.keys, k), (self._kv_cache.values, v)):
            memory.view(-1, config.kv_heads, config.head_size)[slots] = new
        mixed = self._ops.attention(q.contiguous(), self._layer, config.window, batch, self._kv_cache)
        x = (normed if config.norm_before_residual else hidden) + functional.linear(mixed, weights.out)
        normed = self._norm(x, weights.mlp_norm)
        inner = functional.silu(functional.linear(normed, weights.gate)) * functional.linear(normed, weights.up)
        x = x + functional.linear(inner, weights.down)
        return self._norm(x, weights.norm) if config.norm_output else x

    def logits(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of outputs in f32, and the model's token for each of them."""
        normed = hidden if self._config.norm_output else self._norm(hidden, self._weights.norm)
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
