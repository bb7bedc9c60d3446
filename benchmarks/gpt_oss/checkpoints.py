"""A checkpoint on disk, in the published layout for transformers, without its libraries."""

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import NamedTuple

from llama_stack_gpt_oss.engine.config import ModelConfig

KINDS = {"BF16": 2, "U8": 1}  # bytes of a number


class Stored(NamedTuple):
    """A tensor of a file. scales: its bytes are exponents near 1."""

    name: str
    kind: str
    shape: tuple[int, ...]
    scales: bool = False

    @property
    def size(self) -> int:
        return KINDS[self.kind] * prod(self.shape)


def tensors_of(config: ModelConfig) -> Iterator[Stored]:
    """Yield all tensors of a model."""
    hidden, experts = config.hidden, config.experts
    yield Stored("model.embed_tokens.weight", "BF16", (config.vocabulary, hidden))
    yield Stored("lm_head.weight", "BF16", (config.vocabulary, hidden))
    yield Stored("model.norm.weight", "BF16", (hidden,))
    widths = {"q": config.query_width, "k": config.kv_width, "v": config.kv_width}
    for number in range(config.layers):
        layer = f"model.layers.{number}."
        for letter, width in widths.items():
            yield Stored(f"{layer}self_attn.{letter}_proj.weight", "BF16", (width, hidden))
            yield Stored(f"{layer}self_attn.{letter}_proj.bias", "BF16", (width,))
        yield Stored(f"{layer}self_attn.o_proj.weight", "BF16", (hidden, config.query_width))
        yield Stored(f"{layer}self_attn.o_proj.bias", "BF16", (hidden,))
        yield Stored(f"{layer}self_attn.sinks", "BF16", (config.query_heads,))
        yield Stored(f"{layer}input_layernorm.weight", "BF16", (hidden,))
        yield Stored(f"{layer}post_attention_layernorm.weight", "BF16", (hidden,))
        yield Stored(f"{layer}mlp.router.weight", "BF16", (experts, hidden))
        yield Stored(f"{layer}mlp.router.bias", "BF16", (experts,))
        shapes = {"gate_up": (2 * config.intermediate, hidden), "down": (hidden, config.intermediate)}
        for name, (rows, inputs) in shapes.items():
            prefix = f"{layer}mlp.experts.{name}_proj_"
            yield Stored(f"{prefix}blocks", "U8", (experts, rows, inputs // 32, 16))
            yield Stored(f"{prefix}scales", "U8", (experts, rows, inputs // 32), scales=True)
            yield Stored(f"{prefix}bias", "BF16", (experts, rows))


def write_checkpoint(folder: Path, config: ModelConfig) -> int:
    """Write the weights to one file; return its bytes. All numbers of a tensor are equal, which makes no difference."""
    tensors = list(tensors_of(config))
    header, end = {}, 0
    for tensor in tensors:
        offsets = [end, end := end + tensor.size]
        header[tensor.name] = {"dtype": tensor.kind, "shape": tensor.shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path = folder / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            file.write(bytes([120 if tensor.scales else 60]) * tensor.size)
    return path.stat().st_size
