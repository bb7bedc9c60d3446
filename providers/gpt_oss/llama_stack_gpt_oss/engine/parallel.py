"""Tensor parallelism: several ranks, each a process with a device, compute every step together.

Rank 0 schedules, samples and announces each step; the others follow. Each has a shard of the weights and of the KV
cache. A layer adds what the ranks have computed twice: after the attention and after the experts.
"""

from dataclasses import replace
from pathlib import Path
from typing import Self

import torch
import torch.distributed

from .batch import Batch, Fields, StepInput
from .graphs import DecodeSteps, Steps, capture_for
from .logits import LogitsMemory
from .model import Model
from .ops import HeadOutput, LayerKVCache, Ops, Routed
from .runner import Announce
from .sampler import Restricted
from .sharding import Shard
from .staging import Staging
from .state import State
from .weights import Layer, Weights


class Ranks:
    """The collective operations of the default process group.

    With NCCL, they are kernels on the current stream, so they are captured in the graphs of decode steps. All ranks
    capture and replay the same graphs in the same order, since they are given the same steps; vLLM does the same.
    """

    def __init__(self, size: int) -> None:
        self.size = size

    @classmethod
    def join(cls, shard: Shard, rendezvous: Path, device: torch.device) -> Self:
        """Wait for all ranks. rendezvous: a file that only they use, and that does not exist before."""
        store = torch.distributed.FileStore(str(rendezvous), shard.size)  # type: ignore[attr-defined]
        if device.type == "cuda":
            torch.distributed.init_process_group(
                "nccl", store=store, rank=shard.rank, world_size=shard.size, device_id=device
            )
        else:
            torch.distributed.init_process_group("gloo", store=store, rank=shard.rank, world_size=shard.size)
        return cls(shard.size)

    def add(self, part: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' parts, in place."""
        torch.distributed.all_reduce(part)
        return part

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """Return all ranks' parts [size, ...]."""
        parts = part.new_empty(self.size * len(part), *part.shape[1:])
        torch.distributed.all_gather_into_tensor(parts, part.contiguous())
        return parts.unflatten(0, (self.size, len(part)))

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Replace the tensor by that of rank 0."""
        torch.distributed.broadcast(tensor, src=0)


class ParallelOps:
    """The operations of a rank, on its shard of the weights; sums and samples are those of all ranks.

    The residual is added to the sum, not to a part: in bf16 it would be rounded once more.
    """

    def __init__(self, ops: Ops, ranks: Ranks, announce: Announce) -> None:
        """Create the operations. announce: called by rank 0 only."""
        self.config = ops.config
        self._ops = ops
        self._ranks = ranks
        self._announce = announce
        self._logits = LogitsMemory()

    def unpack(self, fields: Fields[torch.Tensor], step: StepInput, state: State) -> Batch:
        return self._ops.unpack(fields, step, state)

    def qkv(
        self,
        x: torch.Tensor,
        layer: Layer,
        rope: tuple[torch.Tensor, torch.Tensor],
        batch: Batch,
        kv_cache: LayerKVCache,
    ) -> torch.Tensor:
        return self._ops.qkv(x, layer, rope, batch, kv_cache)

    def attention(
        self, queries: torch.Tensor, layer: Layer, window: int | None, batch: Batch, kv_cache: LayerKVCache
    ) -> torch.Tensor:
        return self._ops.attention(queries, layer, window, batch, kv_cache)

    def out(self, mixed: torch.Tensor, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        return x + self._ranks.add(self._ops.out(mixed, torch.zeros_like(x), layer))

    def route(self, x: torch.Tensor, layer: Layer) -> Routed:
        return self._ops.route(x, layer)

    def up(self, routed: Routed, layer: Layer) -> torch.Tensor:
        return self._ops.up(routed, layer)

    def down(self, inner: torch.Tensor, routed: Routed, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        return x + self._ranks.add(self._ops.down(inner, routed, torch.zeros_like(x), layer))

    def head(self, x: torch.Tensor, weights: Weights, batch: Batch) -> HeadOutput:
        """Sample from each rank's part of the vocabulary, and take the best token, of equal ones the first."""
        mine = self._ops.head(x, weights, batch)
        assert mine.scores is not None
        best = self._ranks.gather(mine.scores).argmax(0, keepdim=True)
        tokens = self._ranks.gather(mine.tokens).gather(0, best)[0]
        return HeadOutput(tokens, None if mine.logits is None else self._whole(mine.logits))

    def redraw(self, head: HeadOutput, batch: Batch, restricted: Restricted) -> None:
        """Sample on rank 0, which alone has the requests' restrictions, and send the tokens to the others."""
        self._announce(None)
        self._ops.redraw(head, batch, restricted)
        self._ranks.broadcast(head.tokens)

    def _whole(self, logits: torch.Tensor) -> torch.Tensor:
        rows, width = logits.shape
        whole = self._logits.room(rows, self._ranks.size * width, logits.device)
        whole.view(rows, self._ranks.size, width).copy_(self._ranks.gather(logits).movedim(0, 1))
        return whole


class Follower:
    """What a rank other than 0 does: it computes the announced steps."""

    def __init__(
        self, model: Model, device: torch.device, context: int, sequences: int, drafts: int, ranks: Ranks
    ) -> None:
        """Create a follower of a `ModelRunner` with the same arguments."""
        self._state = State(len(model.config.kv_groups), sequences, context, model.scratch, device)
        staging, capture = Staging(device), capture_for(device)
        steps = DecodeSteps(model, self._state, staging, sequences, capture, drafts) if capture else None
        self._steps = steps or Steps(model, self._state, staging)
        self._ranks = ranks
        self._last: tuple[HeadOutput, Batch] | None = None

    @torch.inference_mode()
    def follow(self, step: StepInput | None) -> None:
        """Compute a step, or receive the tokens of the last one that rank 0 has sampled again."""
        if step is not None:
            head, batch = self._steps.forward(step)
            self._last = replace(head, logits=None), batch
        elif self._last is not None:
            head, batch = self._last
            self._ranks.broadcast(head.tokens)
            self._state.drawn.index_copy_(0, batch.owners[: len(head.tokens)], head.tokens)
