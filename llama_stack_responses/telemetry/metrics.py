"""Metrics: each is declared where it is counted, as a `Metric`, and made when it is first recorded.

Names, units and buckets are those of OpenTelemetry's GenAI conventions where they exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from opentelemetry.metrics import Meter
from opentelemetry.util.types import AttributeValue

type Labels = Mapping[str, AttributeValue]
type Recorder = Callable[[float, Labels | None], None]
"""Records a value, or adds one to a counter, with attributes that have few values."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """A histogram, or without buckets a counter, or a gauge if its value is shown.

    `docs/guides/operations.md` has a row for each.

    Attributes:
        name: its name in OpenTelemetry.
        unit: `s`, or a word in braces, such as `{token}`.
        description: what it measures, for exporters.
        buckets: the upper bounds of the histogram's buckets.
    """

    name: str
    unit: str
    description: str
    buckets: Sequence[float] = ()


SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The buckets of what takes as long as a model."""


class Instruments:
    """The instruments of one meter."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._recorders: dict[Metric, Recorder] = {}

    def recorder(self, metric: Metric) -> Recorder:
        """Return what records values of this metric."""
        found = self._recorders.get(metric)
        if found is None:
            found = self._recorders[metric] = self._made(metric)
        return found

    def _made(self, metric: Metric) -> Recorder:
        if not metric.buckets:
            return self._meter.create_counter(metric.name, metric.unit, metric.description).add
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
        ).record
