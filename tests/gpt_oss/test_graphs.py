"""What captures of decode steps share, with a replaced torch.cuda: no GPU runs here."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from llama_stack_gpt_oss.engine.graphs import WARM_UPS, CudaGraphs, graph_sizes, verified_sizes
from llama_stack_gpt_oss.engine.logits import LogitsMemory
from llama_stack_gpt_oss.engine.ops import HeadOutput
from llama_stack_gpt_oss.engine.warm_up import warm_up_steps

from .support.engines import CPU


class Device:
    """Records in which stream and pool graphs are captured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.capturing = False
        self.streams = 0
        self.captures: list[tuple[object, object]] = []
        current = SimpleNamespace(wait_stream=lambda _: None)
        graph = SimpleNamespace(pool=lambda: "pool", replay=lambda: None)
        monkeypatch.setattr(torch.cuda, "Stream", self._stream)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
        monkeypatch.setattr(torch.cuda, "stream", self._in_stream)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: graph)
        monkeypatch.setattr(torch.cuda, "graph", self._capture)

    def _stream(self) -> object:
        self.streams += 1
        return SimpleNamespace(wait_stream=lambda _: None)

    @contextmanager
    def _in_stream(self, _: object) -> Iterator[None]:
        yield

    @contextmanager
    def _capture(self, _: object, pool: object, stream: object, capture_error_mode: str) -> Iterator[None]:
        assert capture_error_mode == "thread_local"
        self.captures.append((pool, stream))
        self.capturing = True
        yield
        self.capturing = False


def test_captures_share_stream_and_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device(monkeypatch)
    graphs = CudaGraphs()
    for _ in range(3):
        graphs(lambda: HeadOutput(torch.zeros(1), None))
    assert device.streams == 1
    (first, stream), *others = device.captures
    assert first is None
    assert others == [("pool", stream)] * 2


def test_memory_of_logits_never_grows_in_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps before a capture have as many rows, so they make the room."""
    device, memory, empty = Device(monkeypatch), LogitsMemory(), torch.empty
    grown: list[bool] = []
    computed: list[bool] = []

    def counted(*size: int, **options: Any) -> torch.Tensor:
        grown.append(device.capturing)
        return empty(*size, **options)

    monkeypatch.setattr(torch, "empty", counted)
    graphs = CudaGraphs()
    for rows in (2, 8, 4):

        def compute(rows: int = rows) -> HeadOutput:
            computed.append(device.capturing)
            return HeadOutput(torch.zeros(rows), memory.room(rows, 10, CPU))

        graphs(compute)
    assert computed == [*[False] * WARM_UPS, True] * 3
    assert grown == [False, False]


@pytest.mark.parametrize(("sequences", "drafts"), [(1, 0), (64, 0), (64, 4), (512, 4)])
def test_largest_step_is_captured_first(sequences: int, drafts: int) -> None:
    """So that all others, also those with prompts, use its room for logits."""
    sizes, verified = graph_sizes(sequences), verified_sizes(sequences, drafts)
    steps = warm_up_steps(sizes, 2048, 131072, verified, 1 + drafts)
    captured = [len(step.counts) for step in steps if max(step.counts) == 1 and step.kept]
    assert captured == sorted((*sizes, *verified), reverse=True)
    assert steps[0].kept
    assert max(len(step.counts) for step in steps) == max(len(steps[0].counts), 2)
