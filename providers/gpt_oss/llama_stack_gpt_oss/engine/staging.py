"""Copies of a step's integers to the device, through pinned memory."""

from array import array
from collections.abc import Iterable

import torch

BUFFERS = 3  # one that is filled, while those of two started steps may still be read


class Staging:
    """Copies integers to the device without a wait: a buffer is filled again after its last copy has ended."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pinned = device.type == "cuda"
        self._buffers = [torch.empty(0, dtype=torch.int32) for _ in range(BUFFERS)]
        self._copied: list[torch.cuda.Event | None] = [None] * BUFFERS
        self._next = 0

    def send(self, values: Iterable[int], target: torch.Tensor | None = None) -> torch.Tensor:
        """Copy int32 values to a tensor of their number, by default a new one."""
        numbers = values if isinstance(values, array) else array("i", values)
        if target is None:
            target = torch.empty(len(numbers), dtype=torch.int32, device=self.device)
        if not numbers:
            return target
        buffer = self._buffer(len(numbers))
        buffer.copy_(torch.frombuffer(numbers, dtype=torch.int32))
        target.copy_(buffer, non_blocking=True)
        if self._pinned:
            self._copied[self._next] = torch.cuda.current_stream(self.device).record_event()
        return target

    def _buffer(self, size: int) -> torch.Tensor:
        """Return the next buffer, whose copy has ended."""
        self._next = (self._next + 1) % BUFFERS
        copied = self._copied[self._next]
        if copied is not None:
            copied.synchronize()
        if len(self._buffers[self._next]) < size:
            self._buffers[self._next] = torch.empty(2 * size, dtype=torch.int32, pin_memory=self._pinned)
        return self._buffers[self._next][:size]
