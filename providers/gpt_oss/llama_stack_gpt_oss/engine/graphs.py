"""Decode steps as CUDA graphs: one launch in place of hundreds."""

from dataclasses import fields
from typing import Any

import torch

from .batch import Batch
from .cache import PAGE
from .model import Model
from .ops import Head

SIZES = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
WARM_UPS = 2  # steps that compile kernels and settle the allocator, before one is recorded


def padded(batch: Batch, rows: int, widest: int, scratch: int) -> Batch:
    """A decode step with as many rows and pages as were recorded: what is added writes to a page that nobody reads."""
    more = rows - len(batch.tokens)
    kinds, sequences, pages = batch.tables.shape
    tables = batch.tables.new_full((kinds, rows, widest), scratch)
    tables[:, :sequences, :pages] = batch.tables

    def fill(tensor: torch.Tensor, value: int) -> torch.Tensor:
        return torch.cat((tensor, tensor.new_full((*tensor.shape[:-1], more), value)), dim=-1)

    return Batch(
        tokens=fill(batch.tokens, 0),
        positions=fill(batch.positions, 0),
        slots=fill(batch.slots, scratch * PAGE),
        starts=torch.arange(rows + 1, dtype=batch.starts.dtype, device=batch.starts.device),
        lengths=fill(batch.lengths, 1),
        tables=tables,
        sampled=torch.arange(rows, device=batch.sampled.device),
        temperatures=fill(batch.temperatures, 0),
        seeds=fill(batch.seeds, 0),
        kept=batch.kept,
        longest=1,
    )


class _Recorded:
    """One graph, what it reads and what it writes."""

    def __init__(self, model: Model, batch: Batch, pool: Any) -> None:
        self._batch = batch
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                model.forward(batch)
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._head = model.forward(batch)

    @property
    def pool(self) -> Any:
        return self._graph.pool()

    def replay(self, batch: Batch) -> Head:
        for field in fields(Batch):
            place = getattr(self._batch, field.name)
            if isinstance(place, torch.Tensor):
                place.copy_(getattr(batch, field.name), non_blocking=True)
        self._graph.replay()
        return self._head


class DecodeGraphs:
    """Records a graph for each size, with logits kept or not, when it is first needed; all share one pool of memory.

    For CUDA alone.
    """

    def __init__(self, model: Model, context: int) -> None:
        self._model = model
        self._widest = -(-context // PAGE)
        self._recorded: dict[tuple[int, bool], _Recorded] = {}
        self._pool: Any = None

    def forward(self, batch: Batch) -> Head:
        """As the model's own, which computes what is no decode step or has more rows than any size.

        What is returned lasts until the next step is computed.
        """
        rows = len(batch.tokens)
        size = next((size for size in SIZES if size >= rows), None)
        if size is None or batch.longest > 1 or len(batch.sampled) != rows:
            return self._model.forward(batch)
        whole = padded(batch, size, self._widest, self._model.scratch)
        kind = (size, batch.kept)
        if kind not in self._recorded:
            self._recorded[kind] = _Recorded(self._model, whole, self._pool)
            self._pool = self._recorded[kind].pool
        head = self._recorded[kind].replay(whole)
        return Head(head.tokens[:rows], None if head.logits is None else head.logits[:rows])
