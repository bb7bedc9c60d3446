"""Checkpoints in the published formats, small enough to create in a test: random ones, and both layouts of any."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

BF16 = torch.bfloat16
STOP_IDS = [200002, 199999, 200012]
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Size:
    """The dimensions of a checkpoint. The defaults are those of the random one."""

    hidden: int = 96
    intermediate: int = 64
    layers: int = 4
    experts: int = 8
    chosen: int = 4
    query_heads: int = 4
    kv_heads: int = 2
    head: int = 64
    vocabulary: int = 512
    window: int = 16
    original_context: int = 4096


def encode_mxfp4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Encode values [..., n] as the nearest blocks [..., n/32, 16] and scales [..., n/32]."""
    grid = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
    groups = values.unflatten(-1, (-1, 32))
    exponent = groups.abs().amax(-1, keepdim=True).clamp_min(2.0**-120).log2().floor() - 2
    scaled = groups / exponent.exp2()
    code = (scaled.abs().unsqueeze(-1) - grid).abs().argmin(-1) + 8 * (scaled < 0)
    packed = code[..., 0::2] + 16 * code[..., 1::2]
    return packed.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def random_tensors(size: Size, seed: int = 0) -> Tensors:
    """Return weights in the Hugging Face layout, drawn so that logits differ clearly and every branch is taken."""
    source = torch.Generator().manual_seed(seed)

    def normal(*shape: int, spread: float = 0.1, center: float = 0.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=source) * spread + center).to(BF16)

    tensors = {
        "model.embed_tokens.weight": normal(size.vocabulary, size.hidden, spread=1.0),
        "model.norm.weight": normal(size.hidden, center=1.0),
        "lm_head.weight": normal(size.vocabulary, size.hidden, spread=0.3),
    }
    widths = {"q": size.query_heads * size.head, "k": size.kv_heads * size.head, "v": size.kv_heads * size.head}
    for number in range(size.layers):
        layer = f"model.layers.{number}."
        for letter, width in widths.items():
            tensors[f"{layer}self_attn.{letter}_proj.weight"] = normal(width, size.hidden, spread=0.2)
            tensors[f"{layer}self_attn.{letter}_proj.bias"] = normal(width)
        tensors[f"{layer}self_attn.o_proj.weight"] = normal(size.hidden, widths["q"])
        tensors[f"{layer}self_attn.o_proj.bias"] = normal(size.hidden)
        tensors[f"{layer}self_attn.sinks"] = normal(size.query_heads, spread=1.0)
        tensors[f"{layer}input_layernorm.weight"] = normal(size.hidden, center=1.0)
        tensors[f"{layer}post_attention_layernorm.weight"] = normal(size.hidden, center=1.0)
        tensors[f"{layer}mlp.router.weight"] = normal(size.experts, size.hidden, spread=0.4)
        tensors[f"{layer}mlp.router.bias"] = normal(size.experts, spread=0.3)
        for name, rows, columns in (
            ("gate_up", 2 * size.intermediate, size.hidden),
            ("down", size.hidden, size.intermediate),
        ):
            drawn = torch.randn(size.experts, rows, columns, generator=source) * 0.3
            blocks, scales = encode_mxfp4(drawn)
            tensors[f"{layer}mlp.experts.{name}_proj_blocks"] = blocks
            tensors[f"{layer}mlp.experts.{name}_proj_scales"] = scales
            tensors[f"{layer}mlp.experts.{name}_proj_bias"] = normal(size.experts, rows)
    return tensors


def write_hugging_face(folder: Path, tensors: Tensors, size: Size) -> Path:
    """Write two shards named like those of gpt-oss-20b, numbered from 0 although their total says 1."""
    folder.mkdir(parents=True, exist_ok=True)
    late = {name for name in tensors if name.startswith(("lm_head", f"model.layers.{size.layers - 1}."))}
    halves = [{n: t for n, t in tensors.items() if n not in late}, {n: t for n, t in tensors.items() if n in late}]
    index: dict[str, str] = {}
    for number, half in enumerate(halves):
        name = f"model-{number:05d}-of-00001.safetensors"
        save_file({n: t.contiguous() for n, t in half.items()}, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(half, name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    _dump(folder / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})
    _dump(folder / "config.json", hugging_face_config(size))
    ends = {"bos_token_id": 199998, "do_sample": True, "eos_token_id": STOP_IDS, "pad_token_id": 199999}
    _dump(folder / "generation_config.json", ends)
    return folder


def write_original(folder: Path, tensors: Tensors, size: Size) -> Path:
    """Write the same weights in the layout of the `original/` folder, in one file."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.contiguous() for name, tensor in original_tensors(tensors, size).items()},
        folder / "model.safetensors",
    )
    _dump(
        folder / "config.json",
        {
            "num_hidden_layers": size.layers,
            "num_experts": size.experts,
            "experts_per_token": size.chosen,
            "vocab_size": size.vocabulary,
            "hidden_size": size.hidden,
            "intermediate_size": size.intermediate,
            "swiglu_limit": 7.0,
            "head_dim": size.head,
            "num_attention_heads": size.query_heads,
            "num_key_value_heads": size.kv_heads,
            "sliding_window": size.window,
            "initial_context_length": size.original_context,
            "rope_theta": 150000,
            "rope_scaling_factor": 32.0,
            "rope_ntk_alpha": 1,
            "rope_ntk_beta": 32,
        },
    )
    return folder


def original_tensors(tensors: Tensors, size: Size) -> Tensors:
    created = {
        "embedding.weight": tensors["model.embed_tokens.weight"],
        "norm.scale": tensors["model.norm.weight"],
        "unembedding.weight": tensors["lm_head.weight"],
    }
    names = {
        "attn.norm.scale": "input_layernorm.weight",
        "attn.sinks": "self_attn.sinks",
        "attn.out.weight": "self_attn.o_proj.weight",
        "attn.out.bias": "self_attn.o_proj.bias",
        "mlp.norm.scale": "post_attention_layernorm.weight",
        "mlp.gate.weight": "mlp.router.weight",
        "mlp.gate.bias": "mlp.router.bias",
        "mlp.mlp1_weight.blocks": "mlp.experts.gate_up_proj_blocks",
        "mlp.mlp1_weight.scales": "mlp.experts.gate_up_proj_scales",
        "mlp.mlp1_bias": "mlp.experts.gate_up_proj_bias",
        "mlp.mlp2_weight.blocks": "mlp.experts.down_proj_blocks",
        "mlp.mlp2_weight.scales": "mlp.experts.down_proj_scales",
        "mlp.mlp2_bias": "mlp.experts.down_proj_bias",
    }
    for number in range(size.layers):
        theirs = f"model.layers.{number}."
        for kind in ("weight", "bias"):
            parts = [tensors[f"{theirs}self_attn.{letter}_proj.{kind}"] for letter in "qkv"]
            created[f"block.{number}.attn.qkv.{kind}"] = torch.cat(parts)
        created |= {f"block.{number}.{name}": tensors[theirs + old] for name, old in names.items()}
    return created


def hugging_face_config(size: Size) -> dict[str, Any]:
    """Return config.json as in the published checkpoints."""
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return {
        "architectures": ["GptOssForCausalLM"],
        "model_type": "gpt_oss",
        "attention_bias": True,
        "attention_dropout": 0.0,
        "eos_token_id": 200002,
        "experts_per_token": size.chosen,
        "head_dim": size.head,
        "hidden_act": "silu",
        "hidden_size": size.hidden,
        "initial_context_length": size.original_context,
        "initializer_range": 0.02,
        "intermediate_size": size.intermediate,
        "layer_types": [("sliding_attention", "full_attention")[number % 2] for number in range(size.layers)],
        "max_position_embeddings": size.original_context * 32,
        "num_attention_heads": size.query_heads,
        "num_experts_per_tok": size.chosen,
        "num_hidden_layers": size.layers,
        "num_key_value_heads": size.kv_heads,
        "num_local_experts": size.experts,
        "output_router_logits": False,
        "pad_token_id": min(199999, size.vocabulary - 1),
        "quantization_config": {"modules_to_not_convert": kept, "quant_method": "mxfp4"},
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": size.original_context,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": size.window,
        "swiglu_limit": 7.0,
        "tie_word_embeddings": False,
        "transformers_version": "4.55.0.dev0",
        "use_cache": True,
        "vocab_size": size.vocabulary,
    }


def resized(size: Size, **changes: int) -> Size:
    return replace(size, **changes)


def _dump(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1))
