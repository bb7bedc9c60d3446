"""transformers on the same weights, dequantised, and without kernels from the hub, which would make it faster."""

from collections.abc import Iterator
from typing import Any

import torch

from llama_stack_gpt_oss.engine import mxfp4
from llama_stack_gpt_oss.engine.config import ModelConfig
from llama_stack_gpt_oss.engine.weights import Weights

from .measures import Row, timed
from .plans import Plan, random_weights

CONTEXT = 1024


def transformers(plan: Plan, device: torch.device) -> Iterator[Row]:
    """Yield the decode rate at batch 1, if transformers is installed."""
    rate = transformers_rate(plan, random_weights(plan.config, device), device)
    yield {"installed": False} if rate is None else {"installed": True, "batch": 1, "tokens_per_second": rate}


def transformers_rate(plan: Plan, weights: Weights, device: torch.device) -> float | None:
    """Return the tokens per second of transformers at batch 1; None if it is not installed."""
    try:
        from transformers import GptOssConfig, GptOssForCausalLM
    except ImportError:
        return None
    config = plan.config
    transformers_config = GptOssConfig(
        vocab_size=config.vocabulary,
        hidden_size=config.hidden,
        intermediate_size=config.intermediate,
        num_hidden_layers=config.layers,
        num_local_experts=config.experts,
        num_experts_per_tok=config.experts_per_token,
        num_attention_heads=config.query_heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_size,
        sliding_window=config.windows[0],
        pad_token_id=0,
        eos_token_id=None,
    )
    with torch.device("meta"):
        model: Any = GptOssForCausalLM(transformers_config)
    model = model.to(dtype=weights.embedding.dtype).to_empty(device=device).eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(transformers_config).to(device)
    with torch.no_grad():
        for name, tensor in transformers_state(config, weights):
            model.get_parameter(name).copy_(tensor)
    prompt = torch.randint(config.vocabulary, (1, min(CONTEXT, config.context // 2)), device=device)

    def generate(tokens: int) -> float:
        return timed(
            lambda: model.generate(prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False), device
        )

    generate(plan.warm)
    # The difference excludes the time for the prompt.
    return plan.steps / max(generate(plan.steps + 1) - generate(1), 1e-9)


def transformers_state(config: ModelConfig, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same weights under transformers' names, one after the other."""
    yield "model.embed_tokens.weight", weights.embedding
    yield "model.norm.weight", weights.norm
    yield "lm_head.weight", weights.unembedding
    for number, layer in enumerate(weights.layers):
        prefix = f"model.layers.{number}."
        widths = [config.query_width, config.kv_width, config.kv_width]
        for kv_group, whole in (("weight", layer.qkv), ("bias", layer.qkv_bias)):
            for letter, part in zip("qkv", whole.split(widths), strict=True):
                yield f"{prefix}self_attn.{letter}_proj.{kv_group}", part
        yield f"{prefix}self_attn.o_proj.weight", layer.out
        yield f"{prefix}self_attn.o_proj.bias", layer.out_bias
        yield f"{prefix}self_attn.sinks", layer.sinks
        yield f"{prefix}input_layernorm.weight", layer.attention_norm
        yield f"{prefix}post_attention_layernorm.weight", layer.mlp_norm
        yield f"{prefix}mlp.router.weight", layer.router
        yield f"{prefix}mlp.router.bias", layer.router_bias
        for name, experts in (("gate_up_proj", layer.up), ("down_proj", layer.down)):
            whole = mxfp4.decode(experts.words, experts.scales, weights.embedding.dtype)
            yield f"{prefix}mlp.experts.{name}", whole.transpose(1, 2)
            yield f"{prefix}mlp.experts.{name}_bias", experts.bias
