"""What exporters get of telemetry, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from llama_stack_responses.telemetry.instrumentation import Telemetry


class ExportedTelemetry:
    """Telemetry with its exported data."""

    def __init__(self, **environment: str) -> None:
        self._exporter = InMemorySpanExporter()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self.telemetry = Telemetry(tracers, MeterProvider([self._reader]), environment)

    @property
    def spans(self) -> list[Any]:
        """The ended spans."""
        return list(self._exporter.get_finished_spans())

    def points(self) -> dict[str, list[tuple[Mapping[str, Any], int, float]]]:
        """Return the attributes, count and sum of each point, by metric name.

        A point of a counter or gauge counts as one, with its value as the sum.
        """
        data: Any = self._reader.get_metrics_data()
        return {
            metric.name: [
                (dict(each.attributes), getattr(each, "count", 1), getattr(each, "sum", 0) or getattr(each, "value", 0))
                for each in metric.data.data_points
            ]
            for found in (data.resource_metrics if data else ())
            for scope in found.scope_metrics
            for metric in scope.metrics
        }
