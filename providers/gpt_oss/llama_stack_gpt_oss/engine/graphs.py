"""Decode steps as CUDA graphs: one launch instead of hundreds."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from .batch import Batch, StepInput, padded
from .model import Model
from .ops import HeadOutput
from .staging import Staging
from .state import State
from .warm_up import WarmUpStep, scratch_step

WARM_UPS = 2  # steps before a capture, to compile kernels, settle the allocator and make room for logits
MAX_VERIFIED = 256  # rows of a step with drafts


def graph_sizes(sequences: int) -> tuple[int, ...]:
    """Return the batch sizes to capture: 8 apart up to 64, then an eighth apart, up to `sequences`."""
    sizes = [1, 2, 4, 8]
    while sizes[-1] < sequences:
        sizes.append(sizes[-1] + max(8, sizes[-1] // 64 * 8))
    return (*(size for size in sizes if size < sequences), sequences)


def most_verified(sequences: int, drafts: int) -> int:
    """Return the maximum number of rows of decodes in a step with drafts; 0 without drafts."""
    return min(MAX_VERIFIED, sequences * (1 + drafts)) if drafts else 0


def verified_sizes(sequences: int, drafts: int) -> tuple[int, ...]:
    """Return the numbers of rows to capture of steps with drafts: powers of two, and from 64 on the means between."""
    most = most_verified(sequences, drafts)
    sizes = [size for size in (2, 4, 8, 16, 32, 64, 96, 128, 192, MAX_VERIFIED) if size < most]
    return (*sizes, most) if most else ()


class Capture(Protocol):
    """A function that captures a step."""

    def __call__(self, compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
        """Capture `compute`; return its output and a function that recomputes it from the same input tensors."""


class CudaGraphs:
    """Captures CUDA graphs that share one memory pool and one stream, whose freed memory the next capture reuses."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._stream = torch.cuda.Stream()

    def __call__(self, compute: Callable[[], HeadOutput]) -> tuple[HeadOutput, Callable[[], None]]:
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for _ in range(WARM_UPS):
                compute()
        torch.cuda.current_stream().wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Calls of other threads, such as NCCL's watchdog with tensor parallelism, must not end the capture.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            head = compute()
        self._pool = graph.pool()
        return head, graph.replay


def capture_for(device: torch.device) -> Capture | None:
    """Return the capture function; None on devices without graphs."""
    return CudaGraphs() if device.type == "cuda" else None


class Steps:
    """Computes steps. Each is one copy of its packed numbers to the device, and the kernels that read them there."""

    def __init__(self, model: Model, state: State, staging: Staging) -> None:
        self._model = model
        self._state = state
        self._staging = staging

    def forward(self, step: StepInput) -> tuple[HeadOutput, Batch]:
        """Compute a step, and keep its tokens in the state. The result is valid until the next step."""
        return self._compute(step, self._staging.send(step.packed()))

    def _compute(self, step: StepInput, packed: torch.Tensor) -> tuple[HeadOutput, Batch]:
        batch = self._model.unpack(packed, step, self._state)
        head = self._model.forward(batch)
        self._state.drawn.index_copy_(0, batch.owners, head.tokens)
        return head, batch


class _Captured:
    """One captured step: the tensor that it reads its numbers from, its output, and the function that replays it."""

    batch: Batch

    def __init__(self, packed: torch.Tensor, compute: Callable[[], tuple[HeadOutput, Batch]], capture: Capture) -> None:
        def head() -> HeadOutput:
            head, self.batch = compute()  # of the capture, last: the tensors that the replays write
            return head

        self.packed = packed
        self.head, self.replay = capture(head)


class DecodeSteps(Steps):
    """Captures a decode step for each number of rows, with or without logits and drafts, on first use.

    The step's numbers are unpacked inside the graph. Cells for which a graph has no room are written before it: it has
    one for each row and KV group, since a row needs at most one more block.
    sequences: the maximum number of sequences in a step. drafts: the maximum number of a sequence's drafts.
    """

    def __init__(
        self, model: Model, state: State, staging: Staging, sequences: int, capture: Capture, drafts: int = 0
    ) -> None:
        super().__init__(model, state, staging)
        self.sizes = graph_sizes(sequences)
        self.verified = verified_sizes(sequences, drafts)
        self._kv_groups = len(model.config.kv_groups)
        self._capture_with = capture
        self._captured: dict[tuple[int, bool, int], _Captured] = {}

    def forward(self, step: StepInput) -> tuple[HeadOutput, Batch]:
        rows = len(step.fields.tokens)
        sizes = self.sizes if step.width == 1 else self.verified
        size = next((size for size in sizes if size >= rows), None)
        if size is None or not step.is_decode:
            return super().forward(step)
        room = size * self._kv_groups
        if len(step.fields.addresses) > room:
            step = self._write_cells(step)
        whole = padded(step, size, room, self._state.spare, self._state.unused)
        kind = (size, step.kept, step.width)
        if kind not in self._captured:
            self._captured[kind] = self._capture(size, room, step)
        captured = self._captured[kind]
        self._staging.send(whole.packed(), captured.packed)
        captured.replay()
        head = captured.head
        logits = None if head.logits is None else head.logits[:rows]
        return HeadOutput(head.tokens[:rows], logits, features=head.features), captured.batch

    def _capture(self, rows: int, room: int, like: StepInput) -> _Captured:
        """Capture a step of the spare entry only: the capture computes it several times."""
        spare = self._state.spare
        scratch = scratch_step(WarmUpStep((1,) * rows, like.kept, like.width), spare)
        step = padded(scratch, rows, room, spare, self._state.unused)
        packed = self._staging.send(step.packed())
        return _Captured(packed, partial(self._compute, step, packed), self._capture_with)

    def _write_cells(self, step: StepInput) -> StepInput:
        """Write the changed cells in a copy of their own; return the step without them."""
        addresses, values = step.fields.addresses, step.fields.values
        sent = self._staging.send([*addresses, *values])
        self._state.cells.index_copy_(0, sent[: len(addresses)].long(), sent[len(addresses) :])
        return replace(step, fields=step.fields._replace(addresses=[], values=[]))
