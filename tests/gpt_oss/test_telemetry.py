"""The engine's metrics as exporters collect them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint

from llama_stack_gpt_oss import telemetry
from llama_stack_gpt_oss.engine import scheduler
from llama_stack_gpt_oss.engine.engine import Engine, Metrics, Request
from llama_stack_gpt_oss.engine.sampling_params import SamplingParams
from llama_stack_gpt_oss.engine.scheduler import Limits
from llama_stack_gpt_oss.process.frames import line, unpack_metrics
from llama_stack_gpt_oss.telemetry import EngineTelemetry

from .support.engines import CountingRunner, engine_over

ONE = Limits(sequences=1, step_tokens=64, waiting=4)


def values(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Collect, and return the value of each metric."""
    data = reader.get_metrics_data()
    found = data.resource_metrics[0].scope_metrics[0].metrics if data and data.resource_metrics else []
    points = [(metric.name, point) for metric in found for point in metric.data.data_points]
    assert all(point.attributes == {"gen_ai.request.model": "tiny"} for _, point in points)
    return {
        name.removeprefix(f"{telemetry.PREFIX}."): point.value
        for name, point in points
        if isinstance(point, NumberDataPoint)
    }


@contextmanager
def answering(engine: Engine, path: Path) -> Iterator[list[bytes]]:
    """Answer connections like an engine process, after its greeting; yield the requests."""
    asked: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.makefile("rb").readline())
                connection.sendall(line({"ready": {}}) + line({"metrics": asdict(engine.metrics()), "tag": 0}))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            yield asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_metrics_of_engine_are_collected_with_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One answer has run, one runs, and one waits. Each of nine steps takes a second."""
    engine, _ = engine_over(CountingRunner(ONE), limits=ONE)
    seconds = 0
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: seconds))
    monkeypatch.setattr(telemetry, "monotonic", lambda: 0.0)  # a collection takes long on a busy machine
    for name in ("a", "b", "c"):
        engine.add(Request((name,), list(range(70)), SamplingParams(max_tokens=5)))
    for _ in range(9):
        engine.step()
        seconds += 1
    reader = InMemoryMetricReader()
    EngineTelemetry(MeterProvider([reader]).get_meter("test"), tmp_path / "engine.sock", "tiny")
    with answering(engine, tmp_path / "engine.sock") as asked:
        found = values(reader)
    now = engine.metrics()
    assert len(asked) == 1
    assert found == {
        "steps": 8,
        "step.tokens": 70 + 4 + 6 + 1,
        "tokens.generated": 6,
        "tokens.prompt": 140,
        "tokens.cached": 64,
        "tokens.drafted": 0,
        "tokens.accepted": 0,
        "admitted": 2,
        "preemptions": 0,
        "sequences.running": 1,
        "queue.length": 1,
        "queue.time": 7,
        "queue.age": 9,
        "kv.blocks": 64,
        "kv.blocks.used": now.pages_used,
    }
    assert now.pages_used > 0


def test_metrics_have_no_value_while_no_engine_answers(tmp_path: Path) -> None:
    reader = InMemoryMetricReader()
    EngineTelemetry(MeterProvider([reader]).get_meter("test"), tmp_path / "engine.sock", "tiny")
    assert values(reader) == {}


def test_metrics_of_other_versions_are_read() -> None:
    now = asdict(engine_over(CountingRunner(ONE))[0].metrics())
    del now["queue_seconds"]
    assert unpack_metrics({**now, "future": 1}) == Metrics(**now)
