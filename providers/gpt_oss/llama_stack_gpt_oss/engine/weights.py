"""The weights on their device, loaded from files of either published layout, or of a fine-tune without MXFP4."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from . import mxfp4
from .config import ModelConfig
from .errors import CheckpointError, TooLittleMemoryError
from .memory import free_bytes, gigabytes
from .mxfp4 import GROUP, LARGEST_SCALE
from .progress import Progress
from .safetensors_reader import INDEX, SINGLE, SafetensorsReader
from .sharding import WHOLE, Index, Shard

Shape = tuple[int, ...]
EXPERTS = ("up", "down")


@dataclass(frozen=True, slots=True)
class Experts:
    """One projection of all experts of a layer, in MXFP4 along its input, as `mxfp4.pack` arranges it.

    words [experts, rows, groups, 4] int32, scales [experts, rows, groups, aligned] uint8, bias [experts, rows].
    """

    words: torch.Tensor
    scales: torch.Tensor
    bias: torch.Tensor


@dataclass(frozen=True, slots=True)
class Layer:
    """The weights of a layer. qkv has the rows of q, k and v in this order; gate and up rows of `up` alternate."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor
    sinks: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    mlp_norm: torch.Tensor
    router: torch.Tensor
    router_bias: torch.Tensor
    up: Experts
    down: Experts


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of one rank. first_token: the token of the first row of the unembedding."""

    embedding: torch.Tensor
    layers: tuple[Layer, ...]
    norm: torch.Tensor
    unembedding: torch.Tensor
    first_token: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """A tensor of the checkpoint and its shape; consecutive parts are concatenated to one tensor of the model.

    wide: it has weights of experts that are not in MXFP4, and become it. index: what this rank has of it. omitted: the
    rank has zeros instead.
    """

    name: str
    shape: Shape
    wide: bool = False
    index: Index = ()
    omitted: bool = False

    @property
    def kept(self) -> Shape:
        """The shape of what this rank has."""
        ranges = (range(*part.indices(side)) for part, side in zip(self.index, self.shape, strict=False))
        return (*map(len, ranges), *self.shape[len(self.index) :])


@dataclass(frozen=True, slots=True)
class _Plan:
    """The parts of each tensor of the model: `top` by field of Weights, `layers` by field of a layer."""

    top: dict[str, tuple[Part, ...]]
    layers: tuple[dict[str, tuple[Part, ...]], ...]

    def parts(self) -> Iterator[Part]:
        for group in (self.top, *self.layers):
            for parts in group.values():
                yield from parts


def find_layout(folder: Path) -> Path:
    """Return the folder of the weights: the checkpoint itself, or `original/` if only that was downloaded."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is not a folder: give the checkpoint's folder, or a hub name")
    inner = folder / "original"
    if not any((folder / name).is_file() for name in (INDEX, SINGLE)) and inner.is_dir():
        return inner
    return folder


def load(
    folder: Path,
    config: ModelConfig,
    device: torch.device,
    dtype: torch.dtype,
    report: Callable[[Progress], None],
    shard: Shard = WHOLE,
) -> Weights:
    """Load a checkpoint. All headers are checked before any weights are read; experts stay in MXFP4, or become it.

    config: the dimensions of the whole model. shard: what is loaded of it.

    CheckpointError: a tensor is missing or has another shape. TooLittleMemoryError: the weights do not fit.
    """
    with SafetensorsReader.of(folder) as reader:
        plan = _sharded(_plan(reader, config), config, shard)
        _check(reader, plan, folder)
        total = sum(_size(reader, part, dtype) for part in plan.parts())
        _check_memory(total, device)
        weights = _Loader(reader, device, dtype, report, total, config.layers).load(plan, shard.tokens(config).start)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the copies of quantised experts: their memory is for the KV cache
    return weights


class _Loader:
    def __init__(
        self,
        reader: SafetensorsReader,
        device: torch.device,
        dtype: torch.dtype,
        report: Callable[[Progress], None],
        total: int,
        layers: int,
    ) -> None:
        self._reader = reader
        self._device = device
        self._dtype = dtype
        self._report = report
        self._progress = Progress(0, total, 0, layers)
        self._squares = self._squared_errors = 0.0

    def load(self, plan: _Plan, first_token: int) -> Weights:
        embedding = self._tensor(plan.top["embedding"])
        layers = tuple(self._layer(parts) for parts in plan.layers)
        norm, unembedding = (self._tensor(plan.top[field]) for field in ("norm", "unembedding"))
        return Weights(embedding, layers, norm, unembedding, first_token)

    def _layer(self, parts: dict[str, tuple[Part, ...]]) -> Layer:
        made = {name: self._tensor(of) for name, of in parts.items() if not name.startswith(EXPERTS)}
        up, down = (
            self._experts({name: of for name, of in parts.items() if name.startswith(each)}) for each in EXPERTS
        )
        self._advance(0, layers=1)
        return Layer(**made, up=up, down=down)

    def _experts(self, parts: dict[str, tuple[Part, ...]]) -> Experts:
        """Return a projection of blocks, scales and bias, or of weights and bias."""
        if len(parts) == 2:
            ((wide,), bias) = parts.values()
            words, scales, name = *self._quantised(wide), wide.name
        else:
            blocks, of_blocks, bias = parts.values()
            words, scales = self._packed(self._tensor(blocks), self._tensor(of_blocks))
            name = of_blocks[0].name
        if scales.max().item() > LARGEST_SCALE:
            raise CheckpointError(f"{name} has scales above {LARGEST_SCALE}, which no kernel reads")
        return Experts(words, scales, self._tensor(bias))

    @staticmethod
    def _packed(blocks: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Pack one expert after the other, in the memory of its blocks."""
        words = blocks.view(torch.int32)
        for expert, expert_blocks in zip(words, blocks, strict=True):
            expert.copy_(mxfp4.words_of(expert_blocks))
        return words, mxfp4.padded(scales)

    def _quantised(self, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise weights [experts, inputs, rows] one expert after the other, as their copies take memory."""
        experts, inputs, rows = part.kept
        groups = inputs // GROUP
        words = torch.empty(experts, rows, groups, 4, dtype=torch.int32, device=self._device)
        scales = mxfp4.padded(torch.empty(words.shape[:-1], dtype=torch.uint8, device=self._device))
        for expert, view in enumerate(self._reader.view(part.name)[part.index]):
            values = view.to(self._device, torch.float32).T.contiguous()
            words[expert], scales[expert] = mxfp4.encode(values)
            error = mxfp4.decode(words[expert], scales[expert], torch.float32) - values
            self._squares += values.square().sum().item()
            self._squared_errors += error.square().sum().item()
            if not math.isfinite(self._squares):
                raise CheckpointError(f"{part.name} has values that are infinite, no numbers, or too large")
            self._advance(words[expert].nbytes + rows * groups)
        return words, scales

    def _tensor(self, parts: tuple[Part, ...]) -> torch.Tensor:
        """Concatenate the parts, copied from the mapped files, in one tensor on the device."""
        dtype = self._kept_dtype(parts[0])
        shape = sum(part.kept[0] for part in parts), *parts[0].kept[1:]
        make = torch.zeros if parts[0].omitted else torch.empty
        made = make(shape, dtype=dtype, device=self._device)
        row = 0
        for part in parts:
            if not part.omitted:
                made[row : row + part.kept[0]].copy_(self._reader.view(part.name)[part.index])
            row += part.kept[0]
            self._advance(_size(self._reader, part, self._dtype))
        return made

    def _kept_dtype(self, part: Part) -> torch.dtype:
        kept = self._reader.locations[part.name].dtype
        return kept if kept == torch.uint8 else self._dtype

    def _advance(self, size: int, layers: int = 0) -> None:
        old = self._progress
        self._progress = replace(
            old,
            bytes_done=old.bytes_done + size,
            layers_done=old.layers_done + layers,
            quantisation_error=math.sqrt(self._squared_errors / self._squares) if self._squares else None,
        )
        self._report(self._progress)


def _size(reader: SafetensorsReader, part: Part, dtype: torch.dtype) -> int:
    count, location = math.prod(part.kept), reader.locations[part.name]
    if location.dtype == torch.uint8:
        return count
    return count // 2 + count // GROUP if part.wide else count * dtype.itemsize


def _check(reader: SafetensorsReader, plan: _Plan, folder: Path) -> None:
    for part in plan.parts():
        location = reader.locations.get(part.name)
        if location is None:
            raise CheckpointError(f"{folder} lacks the tensor {part.name}: its download is incomplete")
        if location.shape != part.shape:
            raise CheckpointError(
                f"{part.name} in {location.file} has the shape {list(location.shape)}, where config.json asks for"
                f" {list(part.shape)}: the two do not belong together"
            )
        packed = part.name.endswith(("blocks", "scales")) and not part.wide
        if packed != (location.dtype == torch.uint8):
            raise CheckpointError(
                f"{part.name} in {location.file} is {location.dtype}: experts are in MXFP4, or none of them is"
            )


def _check_memory(needed: int, device: torch.device) -> None:
    free = free_bytes(device)
    if needed > free:
        raise TooLittleMemoryError(
            f"The weights need {gigabytes(needed)}, and {device} has {gigabytes(free)} free:"
            " free some of it, or use a larger device or a smaller model"
        )


def _plan(reader: SafetensorsReader, config: ModelConfig) -> _Plan:
    original = "embedding.weight" in reader.locations
    top = {
        "embedding": (
            "embedding.weight" if original else "model.embed_tokens.weight",
            (config.vocabulary, config.hidden),
        ),
        "norm": ("norm.scale" if original else "model.norm.weight", (config.hidden,)),
        "unembedding": ("unembedding.weight" if original else "lm_head.weight", (config.vocabulary, config.hidden)),
    }
    return _Plan(
        top={field: (Part(name, shape),) for field, (name, shape) in top.items()},
        layers=tuple(_layer_parts(reader, number, config) for number in range(config.layers)),
    )


def _sharded(plan: _Plan, config: ModelConfig, shard: Shard) -> _Plan:
    """Return the plan of what a rank has."""

    def part_of(field: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
        if field.startswith("qkv"):
            return _heads(parts, config, shard)
        index, omitted = shard.index(field, config), shard.omits(field)
        return tuple(replace(part, index=index, omitted=omitted) for part in parts)

    def part_of_group(group: dict[str, tuple[Part, ...]]) -> dict[str, tuple[Part, ...]]:
        return {field: part_of(field, parts) for field, parts in group.items()}

    return _Plan(part_of_group(plan.top), tuple(part_of_group(layer) for layer in plan.layers))


def _heads(parts: tuple[Part, ...], config: ModelConfig, shard: Shard) -> tuple[Part, ...]:
    """Return the heads of q, k and v, which are one tensor of the checkpoint or three."""
    if len(parts) == 3:
        return tuple(replace(part, index=(rows,)) for part, rows in zip(parts, shard.heads(config), strict=True))
    starts = (0, config.query_width, config.query_width + config.kv_width)
    return tuple(
        replace(parts[0], index=(slice(start + rows.start, start + rows.stop),))
        for start, rows in zip(starts, shard.heads(config), strict=True)
    )


def _layer_parts(reader: SafetensorsReader, number: int, config: ModelConfig) -> dict[str, tuple[Part, ...]]:
    if "embedding.weight" in reader.locations:
        return _original_layer(number, config)
    name = f"model.layers.{number}.mlp.experts.gate_up_proj"
    if name in reader.locations:
        return _fine_tuned_layer(number, config, "")
    blocks = reader.locations.get(f"{name}_blocks")
    if blocks is not None and blocks.dtype != torch.uint8:  # transformers 5 writes dequantised weights by this name
        return _fine_tuned_layer(number, config, "_blocks")
    return _hugging_face_layer(number, config)


def _hugging_face_layer(number: int, config: ModelConfig) -> dict[str, tuple[Part, ...]]:
    shapes = _layer_shapes(config)
    attention, mlp = f"model.layers.{number}.self_attn.", f"model.layers.{number}.mlp."
    widths = (("q", config.query_width), ("k", config.kv_width), ("v", config.kv_width))
    names = {
        "attention_norm": f"model.layers.{number}.input_layernorm.weight",
        "sinks": f"{attention}sinks",
        "out": f"{attention}o_proj.weight",
        "out_bias": f"{attention}o_proj.bias",
        "mlp_norm": f"model.layers.{number}.post_attention_layernorm.weight",
        "router": f"{mlp}router.weight",
        "router_bias": f"{mlp}router.bias",
        **{f"up_{part}": f"{mlp}experts.gate_up_proj_{part}" for part in ("blocks", "scales", "bias")},
        **{f"down_{part}": f"{mlp}experts.down_proj_{part}" for part in ("blocks", "scales", "bias")},
    }
    return {
        "qkv": tuple(Part(f"{attention}{letter}_proj.weight", (width, config.hidden)) for letter, width in widths),
        "qkv_bias": tuple(Part(f"{attention}{letter}_proj.bias", (width,)) for letter, width in widths),
        **{field: (Part(name, shapes[field]),) for field, name in names.items()},
    }


def _fine_tuned_layer(number: int, config: ModelConfig, suffix: str) -> dict[str, tuple[Part, ...]]:
    """Return the layer of a fine-tune without MXFP4, whose experts' weights have inputs before rows."""
    parts, experts = _hugging_face_layer(number, config), f"model.layers.{number}.mlp.experts."
    for field, name, shape in (
        ("up", "gate_up_proj", (config.experts, config.hidden, 2 * config.intermediate)),
        ("down", "down_proj", (config.experts, config.intermediate, config.hidden)),
    ):
        bias = parts.pop(f"{field}_bias")
        del parts[f"{field}_blocks"], parts[f"{field}_scales"]
        parts[f"{field}_weights"] = (Part(f"{experts}{name}{suffix}", shape, wide=True),)
        parts[f"{field}_bias"] = bias
    return parts


def _original_layer(number: int, config: ModelConfig) -> dict[str, tuple[Part, ...]]:
    shapes = _layer_shapes(config)
    attention, mlp = f"block.{number}.attn.", f"block.{number}.mlp."
    names = {
        "attention_norm": f"{attention}norm.scale",
        "qkv": f"{attention}qkv.weight",
        "qkv_bias": f"{attention}qkv.bias",
        "sinks": f"{attention}sinks",
        "out": f"{attention}out.weight",
        "out_bias": f"{attention}out.bias",
        "mlp_norm": f"{mlp}norm.scale",
        "router": f"{mlp}gate.weight",
        "router_bias": f"{mlp}gate.bias",
        **{f"up_{part}": f"{mlp}mlp1_weight.{part}" for part in ("blocks", "scales")},
        "up_bias": f"{mlp}mlp1_bias",
        **{f"down_{part}": f"{mlp}mlp2_weight.{part}" for part in ("blocks", "scales")},
        "down_bias": f"{mlp}mlp2_bias",
    }
    return {field: (Part(name, shapes[field]),) for field, name in names.items()}


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, inner, experts = config.hidden, config.intermediate, config.experts
    qkv = config.query_width + 2 * config.kv_width
    return {
        "attention_norm": (hidden,),
        "qkv": (qkv, hidden),
        "qkv_bias": (qkv,),
        "sinks": (config.query_heads,),
        "out": (hidden, config.query_width),
        "out_bias": (hidden,),
        "mlp_norm": (hidden,),
        "router": (experts, hidden),
        "router_bias": (experts,),
        "up_blocks": (experts, 2 * inner, hidden // GROUP, GROUP // 2),
        "up_scales": (experts, 2 * inner, hidden // GROUP),
        "up_bias": (experts, 2 * inner),
        "down_blocks": (experts, hidden, inner // GROUP, GROUP // 2),
        "down_scales": (experts, hidden, inner // GROUP),
        "down_bias": (experts, hidden),
    }
