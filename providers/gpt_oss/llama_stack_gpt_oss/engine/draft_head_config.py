"""The configuration of an EAGLE-3 head: config.json in the layouts of SpecForge, ModelOpt and speculators."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .cache import BLOCK_TOKENS
from .config import ModelConfig, Yarn
from .errors import CheckpointError
from .rope import concentration, yarn_frequencies

LLAMA_SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
WITH_EXPERTS = "GptOssForCausalLMEagle3"
UNSUPPORTED = {
    "parallel_drafting": (False, "drafts several tokens at once"),
    "attention_bias": (False, "has biases in its attention"),
    "mlp_bias": (False, "has biases in its MLP"),
    "num_hidden_layers": (1, "has several layers"),
}


@dataclass(frozen=True, slots=True)
class LlamaScaling:
    """The scaling of Llama 3: frequencies with long waves are divided by the factor."""

    factor: float
    low: float
    high: float
    original_context: float


@dataclass(frozen=True, slots=True)
class DraftHeadRope:
    """Rotary positions: plain, or scaled as in Llama 3 or by YaRN. `concentration` multiplies cos and sin."""

    theta: float
    llama: LlamaScaling | None = None
    yarn: Yarn | None = None
    truncate: bool = True
    concentration: float = 1.0

    def frequencies(self, head_size: int) -> torch.Tensor:
        if self.yarn is not None:
            return yarn_frequencies(self.yarn, head_size, self.truncate)
        plain = 1.0 / self.theta ** (torch.arange(0, head_size, 2, dtype=torch.float32) / head_size)
        if self.llama is None:
            return plain
        turns = self.llama.original_context * plain / (2 * math.pi)
        kept = ((turns - self.llama.low) / (self.llama.high - self.llama.low)).clamp(0, 1)
        return plain / self.llama.factor * (1 - kept) + plain * kept


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    """The dimensions of a head. `features`: the layers of the model whose input it reads, or the layer after the last.

    reads_norm: it reads the model's last states after the final norm, without a combination. joint_norm, feature_norms:
    the features are normalised together or one by one before they are combined. norm_output: the output is normalised
    before it takes the place of the model's states. window: the keys that a row sees, or None for all.
    """

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
    reads_norm: bool = False
    joint_norm: bool = False
    feature_norms: bool = False
    norm_output: bool = False
    window: int | None = None

    def like(self, model: ModelConfig) -> ModelConfig:
        """Return the model's configuration with the heads of this attention."""
        return replace(model, head_size=self.head_size, query_heads=self.query_heads, kv_heads=self.kv_heads)

    def block_bytes(self, dtype: torch.dtype) -> int:
        """Return the size of a block of its KV cache."""
        return 2 * BLOCK_TOKENS * self.kv_heads * self.head_size * dtype.itemsize


def read_draft_head_config(folder: Path, model: ModelConfig) -> DraftHeadConfig:
    """Read config.json; CheckpointError if it is not an EAGLE-3 head for the model."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_bytes())
        _check_kind(raw, path)
        config = _config(raw, model)
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: this is not an EAGLE-3 head, or its download is incomplete"
        ) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{path} does not describe an EAGLE-3 head: {error!r} is wrong") from None
    _check(config, model, path)
    return config


def _check_kind(raw: dict[str, Any], path: Path) -> None:
    inner = raw.get("transformer_layer_config") or {}
    kind = raw.get("speculators_model_type", "eagle3")
    if kind != "eagle3":
        raise CheckpointError(f"{path} describes a head of the kind {kind}: only EAGLE-3 heads can draft")
    if WITH_EXPERTS in (raw.get("architectures") or ()):
        raise CheckpointError(f"{path} describes a head that has experts ({WITH_EXPERTS}): use another one")
    for name, (supported, reason) in UNSUPPORTED.items():
        value = inner.get(name, raw.get(name, supported))
        if value not in (supported, None):
            raise CheckpointError(f"{path} describes a head that {reason} ({name}): use another one")


def _config(raw: dict[str, Any], model: ModelConfig) -> DraftHeadConfig:
    inner = raw.get("transformer_layer_config") or raw  # where the speculators library keeps it
    options = {**raw, **(raw.get("eagle_config") or {})}  # where ModelOpt keeps it
    heads = int(inner["num_attention_heads"])
    reads_norm = not options.get("use_aux_hidden_state", True)
    return DraftHeadConfig(
        hidden=int(inner["hidden_size"]),
        intermediate=int(inner["intermediate_size"]),
        head_size=int(inner.get("head_dim") or int(inner["hidden_size"]) // heads),
        query_heads=heads,
        kv_heads=int(inner["num_key_value_heads"]),
        vocabulary=int(raw.get("draft_vocab_size") or inner["vocab_size"]),
        features=(model.layers,) if reads_norm else _features(raw, options, model),
        rope=_rope(inner),
        norm_epsilon=float(inner.get("rms_norm_eps", 1e-5)),
        norm_before_residual=bool(options.get("norm_before_residual", False)),
        reads_norm=reads_norm,
        joint_norm=bool(options.get("norm_before_fc", False)),
        feature_norms=bool(options.get("fc_norm", False)),
        norm_output=bool(options.get("norm_output", False)),
        window=_window(inner),
    )


def _features(raw: dict[str, Any], options: dict[str, Any], model: ModelConfig) -> tuple[int, ...]:
    """Return the layers whose inputs the head reads.

    The speculators library counts inputs, SpecForge and ModelOpt outputs; of ModelOpt, a head that names the layer
    after the last one counts inputs too.
    """
    named = [int(layer) for layer in options.get("eagle_aux_hidden_state_layer_ids") or ()]
    if not named:
        return (2, model.layers // 2, model.layers - 3)
    inputs = "transformer_layer_config" in raw or model.layers in named
    return tuple(layer if inputs else layer + 1 for layer in named)


def _window(raw: dict[str, Any]) -> int | None:
    kinds = raw.get("layer_types") or ["full_attention"]
    return int(raw["sliding_window"]) if kinds[0] == "sliding_attention" else None


def _rope(raw: dict[str, Any]) -> DraftHeadRope:
    scaling = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    theta = float(raw.get("rope_theta") or scaling.get("rope_theta") or 10000.0)
    match scaling.get("rope_type", scaling.get("type", "default")):
        case "default":
            return DraftHeadRope(theta)
        case "llama3":
            return DraftHeadRope(theta, LlamaScaling(*(float(scaling[name]) for name in LLAMA_SCALING)))
        case "yarn":
            return _yarn(theta, scaling)
    raise ValueError("rope_scaling")


def _yarn(theta: float, scaling: dict[str, Any]) -> DraftHeadRope:
    """Return YaRN with the defaults of transformers."""
    yarn = Yarn(
        theta=theta,
        factor=float(scaling["factor"]),
        original_context=int(scaling["original_max_position_embeddings"]),
        beta_fast=float(scaling.get("beta_fast") or 32),
        beta_slow=float(scaling.get("beta_slow") or 1),
    )
    scale, all_dimensions = scaling.get("mscale"), scaling.get("mscale_all_dim")
    concentrated = scaling.get("attention_factor")
    if concentrated is None:
        concentrated = concentration(yarn.factor)
        if scale and all_dimensions:
            concentrated = concentration(yarn.factor, scale) / concentration(yarn.factor, all_dimensions)
    truncate = bool(scaling.get("truncate", True))
    return DraftHeadRope(theta, yarn=yarn, truncate=truncate, concentration=float(concentrated))


def _check(config: DraftHeadConfig, model: ModelConfig, path: Path) -> None:
    if config.hidden != model.hidden or not all(0 <= layer <= model.layers for layer in config.features):
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
