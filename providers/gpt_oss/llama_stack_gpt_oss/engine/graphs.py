"""Decode steps as CUDA graphs: one launch instead of hundreds."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any, Protocol

import torch

from .batch import Batch
from .cache import PAGE
from .model import Model
from .ops import Head

WARM_UPS = 2  # steps before a capture, to compile kernels and settle the allocator


def graph_sizes(sequences: int) -> tuple[int, ...]:
    """Return the batch sizes to capture: 8 apart up to 64, then an eighth apart, up to `sequences`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < sequences:
        sizes.append(sizes[-1] + max(8, sizes[-1] // 64 * 8))
    return (*(size for size in sizes if size < sequences), sequences)


def padded(batch: Batch, rows: int, widest: int, scratch: int) -> Batch:
    """Pad a decode step to the captured number of rows and blocks; padding rows write to a scratch block."""
    more = rows - len(batch.tokens)
    kv_groups, sequences, pages = batch.tables.shape
    tables = batch.tables.new_full((kv_groups, rows, widest), scratch)
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
        decodes=rows,
        longest=0,
    )


class Record(Protocol):
    """A function that captures a step."""

    def __call__(self, compute: Callable[[], Head]) -> tuple[Head, Callable[[], None]]:
        """Capture `compute`; return its output and a function that recomputes it from the same input tensors."""


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool."""

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
    """Return the capture function; None on devices without graphs."""
    return CudaGraphs() if device.type == "cuda" else None


class _Recorded:
    """One captured step and its input tensors."""

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
    """Captures a decode step for each batch size, with or without logits, on first use.

    sequences: the maximum number of sequences in a step.
    """

    def __init__(self, model: Model, context: int, sequences: int, record: Record) -> None:
        self._model = model
        self.sizes = graph_sizes(sequences)
        self._widest = -(-context // PAGE)
        self._record = record
        self._recorded: dict[tuple[int, bool], _Recorded] = {}

    def forward(self, batch: Batch) -> Head:
        """Compute a step like `Model.forward`, which also runs prefill steps and batches over the largest size.

        The result is valid until the next step.
        """
        rows = len(batch.tokens)
        size = next((size for size in self.sizes if size >= rows), None)
        if size is None or batch.longest or len(batch.sampled) != rows:
            return self._model.forward(batch)
        whole = padded(batch, size, self._widest, self._model.scratch)
        kind = (size, batch.kept)
        if kind not in self._recorded:
            self._recorded[kind] = _Recorded(self._model, whole, self._record)
        head = self._recorded[kind].replay(whole)
        return Head(head.tokens[:rows], None if head.logits is None else head.logits[:rows])
