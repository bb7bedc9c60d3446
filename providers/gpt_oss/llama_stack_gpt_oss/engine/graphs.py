"""Decode steps as CUDA graphs: one launch in place of hundreds."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Protocol

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


class Record(Protocol):
    """How a step is recorded."""

    def __call__(self, compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
        """Where `compute` leaves its result, and what computes it: from the same tensors each time, into the same."""


class CudaGraphs:
    """Records graphs that share one pool of memory."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            head = compute()
        self._pool = graph.pool()
        return head, graph.replay


def recorder(device: torch.device) -> Record | None:
    """None where nothing is recorded."""
    return CudaGraphs() if device.type == "cuda" else None


class _Recorded:
    """One recorded step, and the tensors that it reads."""

    def __init__(self, model: Model, batch: Batch, record: Record) -> None:
        self._batch = batch
        self._head, self._compute = record(partial(model.forward, batch))

    def replay(self, batch: Batch) -> Head:
        for field in fields(Batch):
            place = getattr(self._batch, field.name)
            if isinstance(place, torch.Tensor):
                place.copy_(getattr(batch, field.name), non_blocking=True)
        self._compute()
        return self._head


class DecodeSteps:
    """Records a decode step of each size, with logits kept or not, when it is first needed."""

    def __init__(self, model: Model, context: int, record: Record) -> None:
        self._model = model
        self._widest = -(-context // PAGE)
        self._record = record
        self._recorded: dict[tuple[int, bool], _Recorded] = {}

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
            self._recorded[kind] = _Recorded(self._model, whole, self._record)
        head = self._recorded[kind].replay(whole)
        return Head(head.tokens[:rows], None if head.logits is None else head.logits[:rows])
