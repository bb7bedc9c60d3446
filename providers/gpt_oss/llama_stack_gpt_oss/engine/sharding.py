"""How tensor parallelism divides a model among its ranks, each of which has a device of its own.

Attention is divided by heads, with the KV cache; the unembedding by tokens of the vocabulary. Experts are divided by
their intermediate size, and not by expert: a token's few experts would often lie on one rank, and the others would wait
for it. MXFP4 groups stay whole, so the parts may differ by a group. Embedding, norms and router are on every rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .config import ModelConfig
from .errors import EngineError
from .mxfp4 import GROUP

Index = tuple[slice, ...]
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one rank."""

    rank: int = 0
    size: int = 1

    def check(self, config: ModelConfig) -> None:
        """Raise an EngineError if the model cannot be divided among so many ranks."""
        groups = config.intermediate // GROUP
        if config.kv_heads % self.size or config.vocabulary % self.size or groups < self.size:
            sizes = [size for size in range(1, config.kv_heads + 1) if config.kv_heads % size == 0]
            raise EngineError(
                f"tensor_parallel_size is {self.size}, which does not divide the model's {config.kv_heads} key-value"
                f" heads, {config.vocabulary} tokens and {groups} groups of an expert: set it to one of"
                f" {', '.join(map(str, sizes))}"
            )

    def config(self, config: ModelConfig) -> ModelConfig:
        """Return the dimensions of the part. The vocabulary stays whole: sampled tokens are those of all ranks."""
        return replace(
            config,
            query_heads=config.query_heads // self.size,
            kv_heads=config.kv_heads // self.size,
            intermediate=_length(self.intermediate(config)),
        )

    def intermediate(self, config: ModelConfig) -> slice:
        """Return the part of an expert's intermediate values: whole groups."""
        groups = self._part(config.intermediate // GROUP)
        return slice(groups.start * GROUP, groups.stop * GROUP)

    def tokens(self, config: ModelConfig) -> slice:
        return self._part(config.vocabulary)

    def heads(self, config: ModelConfig) -> Iterator[slice]:
        """Yield the rows of q, of k and of v."""
        return (self._part(width) for width in (config.query_width, config.kv_width, config.kv_width))

    def index(self, field: str, config: ModelConfig) -> Index:
        """Return the part of a tensor of the model, named as in `Layer` and `Weights`, except for qkv."""
        inner = self.intermediate(config)
        groups = slice(inner.start // GROUP, inner.stop // GROUP)
        rows = slice(2 * inner.start, 2 * inner.stop)
        indexes: dict[str, Index] = {
            "sinks": (self._part(config.query_heads),),
            "out": (ALL, self._part(config.query_width)),
            "up_blocks": (ALL, rows),
            "up_scales": (ALL, rows),
            "up_bias": (ALL, rows),
            "up_weights": (ALL, ALL, rows),
            "down_blocks": (ALL, ALL, groups),
            "down_scales": (ALL, ALL, groups),
            "down_weights": (ALL, inner),
            "unembedding": (self.tokens(config),),
        }
        return indexes.get(field, ())

    def omits(self, field: str) -> bool:
        """Whether the tensor is zero here: a bias of sums over the ranks counts once."""
        return self.rank > 0 and field in ("out_bias", "down_bias")

    def _part(self, count: int) -> slice:
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)


WHOLE = Shard()


def _length(part: slice) -> int:
    return part.stop - part.start
