"""The memory of kept logits, which all steps share."""

import torch


class LogitsMemory:
    """Memory for the kept logits of a step, up to the next step: a step is sampled before the next one starts.

    A logits tensor for each captured graph would take gigabytes. The memory grows in the steps that are computed before
    a capture, never inside one. Graphs write to the memory that they were captured with, so that of before stays.
    """

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []

    def room(self, rows: int, width: int, device: torch.device) -> torch.Tensor:
        """Return a tensor [rows, width] in f32, whose contents are undefined."""
        size = rows * width
        if not self._tensors or len(self._tensors[-1]) < size:
            self._tensors.append(torch.empty(size, dtype=torch.float32, device=device))
        return self._tensors[-1][:size].view(rows, width)
