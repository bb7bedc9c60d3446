"""The checkpoint's config.json and generation_config.json, in both published layouts."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Yarn:
    """The parameters of YaRN, which extends the context length (arXiv:2309.00071)."""

    theta: float
    factor: float
    original_context: int
    beta_fast: float
    beta_slow: float


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The dimensions of a gpt-oss model. `windows` has the keys that a query sees in each layer, or None for all."""

    vocabulary: int
    hidden: int
    intermediate: int
    head_size: int
    query_heads: int
    kv_heads: int
    experts: int
    experts_per_token: int
    windows: tuple[int | None, ...]
    context: int
    swiglu_limit: float
    norm_epsilon: float
    yarn: Yarn

    @property
    def layers(self) -> int:
        return len(self.windows)

    @property
    def kv_groups(self) -> tuple[int | None, ...]:
        """The distinct windows: layers with the same window form a KV group."""
        return tuple(dict.fromkeys(self.windows))

    @property
    def query_width(self) -> int:
        return self.query_heads * self.head_size

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_size


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The defaults of generation_config.json for omitted request parameters."""

    stop_ids: frozenset[int]
    temperature: float
    top_p: float


HARMONY_STOPS = frozenset({200002, 200012})  # <|return|>, <|call|>


def read_config(folder: Path) -> ModelConfig:
    """Read config.json in the Hugging Face or the `original/` layout; CheckpointError if it is not gpt-oss."""
    raw = _read_json(folder / "config.json")
    try:
        config = _from_hugging_face(raw) if "num_local_experts" in raw else _from_original(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{folder / 'config.json'} does not describe a gpt-oss model, as {error!r} shows: use gpt-oss-20b,"
            " gpt-oss-120b or a fine-tune of them"
        ) from None
    _check(config, folder)
    return config


def read_generation_defaults(folder: Path) -> GenerationDefaults:
    """Read the optional file. Without it, the defaults are Harmony's stop tokens, temperature 1.0 and top_p 1.0."""
    path = folder / "generation_config.json"
    raw = _read_json(path) if path.is_file() else {}
    ends = raw.get("eos_token_id", [])
    return GenerationDefaults(
        stop_ids=HARMONY_STOPS | frozenset([ends] if isinstance(ends, int) else ends),
        temperature=float(raw.get("temperature", 1.0)),
        top_p=float(raw.get("top_p", 1.0)),
    )


def _from_hugging_face(raw: dict[str, Any]) -> ModelConfig:
    rope = raw.get("rope_scaling") or raw["rope_parameters"]
    window = int(raw["sliding_window"])
    layers = int(raw["num_hidden_layers"])
    kv_groups = raw.get("layer_types") or [("sliding_attention", "full_attention")[i % 2] for i in range(layers)]
    if len(kv_groups) != layers:
        raise ValueError("layer_types")
    return ModelConfig(
        vocabulary=int(raw["vocab_size"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        head_size=int(raw["head_dim"]),
        query_heads=int(raw["num_attention_heads"]),
        kv_heads=int(raw["num_key_value_heads"]),
        experts=int(raw["num_local_experts"]),
        experts_per_token=int(raw["num_experts_per_tok"]),
        windows=tuple(window if kind == "sliding_attention" else None for kind in kv_groups),
        context=int(raw["max_position_embeddings"]),
        swiglu_limit=float(raw.get("swiglu_limit", 7.0)),
        norm_epsilon=float(raw.get("rms_norm_eps", 1e-5)),
        yarn=Yarn(
            theta=float(raw.get("rope_theta") or rope["rope_theta"]),
            factor=float(rope["factor"]),
            original_context=int(rope["original_max_position_embeddings"]),
            beta_fast=float(rope["beta_fast"]),
            beta_slow=float(rope["beta_slow"]),
        ),
    )


def _from_original(raw: dict[str, Any]) -> ModelConfig:
    window = int(raw["sliding_window"])
    original_context, factor = int(raw["initial_context_length"]), float(raw["rope_scaling_factor"])
    return ModelConfig(
        vocabulary=int(raw["vocab_size"]),
        hidden=int(raw["hidden_size"]),
        intermediate=int(raw["intermediate_size"]),
        head_size=int(raw["head_dim"]),
        query_heads=int(raw["num_attention_heads"]),
        kv_heads=int(raw["num_key_value_heads"]),
        experts=int(raw["num_experts"]),
        experts_per_token=int(raw["experts_per_token"]),
        windows=tuple(None if layer % 2 else window for layer in range(int(raw["num_hidden_layers"]))),
        context=int(original_context * factor),
        swiglu_limit=float(raw.get("swiglu_limit", 7.0)),
        norm_epsilon=1e-5,
        yarn=Yarn(
            theta=float(raw["rope_theta"]),
            factor=factor,
            original_context=original_context,
            beta_fast=float(raw["rope_ntk_beta"]),
            beta_slow=float(raw["rope_ntk_alpha"]),
        ),
    )


def _check(config: ModelConfig, folder: Path) -> None:
    for name, size in (("hidden_size", config.hidden), ("intermediate_size", config.intermediate)):
        if size <= 0 or size % 32:
            raise CheckpointError(f"{name} is {size} in {folder / 'config.json'}; MXFP4 needs a multiple of 32")
    if not 0 < config.experts_per_token <= config.experts:
        raise CheckpointError(
            f"{folder / 'config.json'} has {config.experts} experts and chooses {config.experts_per_token} for a token,"
            " which no gpt-oss model does"
        )
    if not config.windows or config.kv_heads <= 0 or config.query_heads % config.kv_heads:
        raise CheckpointError(
            f"{folder / 'config.json'} has {config.layers} layers, {config.query_heads} query heads and"
            f" {config.kv_heads} key-value heads, which no gpt-oss model has"
        )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise CheckpointError(
            f"{path} is missing: this is not a gpt-oss checkpoint, or its download is incomplete"
        ) from None
    except ValueError:
        raise CheckpointError(f"{path} is not valid JSON: download it again") from None
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} does not hold a JSON object: download it again")
    return raw
