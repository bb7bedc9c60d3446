"""A simple, slow f32 implementation of the model: the reference for tests of all faster ones."""

import torch
from torch.nn import functional

from . import mxfp4, rope
from .config import ModelConfig
from .weights import Experts, Layer, Weights

SWIGLU_SLOPE = 1.702


def logits(weights: Weights, config: ModelConfig, tokens: torch.Tensor) -> torch.Tensor:
    """Compute logits [n, vocabulary] for one sequence of token ids [n]."""
    x = weights.embedding[tokens].float()
    cos, sin = rope.tables(config, len(tokens), x.device)
    for layer, window in zip(weights.layers, config.windows, strict=True):
        x = x + _attention(layer, config, _norm(x, layer.attention_norm, config), cos, sin, window)
        x = x + _mixture(layer, config, _norm(x, layer.mlp_norm, config))
    return functional.linear(_norm(x, weights.norm, config), weights.unembedding.float())


def _norm(x: torch.Tensor, weight: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + config.norm_epsilon) * weight.float()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [n, heads, head_size]; element i of a head is paired with element i + head_size / 2."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _attention(
    layer: Layer, config: ModelConfig, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, window: int | None
) -> torch.Tensor:
    count = len(x)
    widths = [config.query_width, config.kv_width, config.kv_width]
    q, k, v = functional.linear(x, layer.qkv.float(), layer.qkv_bias.float()).split(widths, dim=-1)
    q = rotate(q.view(count, config.query_heads, -1), cos, sin)
    k = rotate(k.view(count, config.kv_heads, -1), cos, sin)
    shared = config.query_heads // config.kv_heads
    k, v = (part.view(count, config.kv_heads, -1).repeat_interleave(shared, dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * config.head_size**-0.5
    distance = torch.arange(count)[:, None] - torch.arange(count)[None, :]
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    scores = scores.masked_fill(hidden.to(x.device), -torch.inf)
    sinks = layer.sinks.float()[:, None, None].expand(-1, count, 1)
    shares = torch.cat((scores, sinks), dim=-1).softmax(-1)[..., :-1]
    mixed = torch.einsum("hqk,khd->qhd", shares, v).reshape(count, -1)
    return functional.linear(mixed, layer.out.float(), layer.out_bias.float())


def _mixture(layer: Layer, config: ModelConfig, x: torch.Tensor) -> torch.Tensor:
    scores = functional.linear(x, layer.router.float(), layer.router_bias.float())
    best = scores.topk(config.experts_per_token, dim=-1)
    shares = best.values.softmax(-1)
    out = torch.zeros_like(x)
    for expert in best.indices.unique().tolist():
        rows, ranks = (best.indices == expert).nonzero(as_tuple=True)
        inner = swiglu(_project(layer.up, expert, x[rows]), config.swiglu_limit)
        out.index_add_(0, rows, _project(layer.down, expert, inner) * shares[rows, ranks, None])
    return out


def _project(experts: Experts, expert: int, x: torch.Tensor) -> torch.Tensor:
    matrix = mxfp4.decode(experts.words[expert], experts.scales[expert], torch.float32)
    return functional.linear(x, matrix, experts.bias[expert].float())


def swiglu(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Apply clamped SwiGLU. Gate and up alternate along the last dimension; the gate is clamped only from above."""
    gate, up = x[..., 0::2].clamp(max=limit), x[..., 1::2].clamp(-limit, limit)
    return gate * torch.sigmoid(SWIGLU_SLOPE * gate) * (up + 1)
