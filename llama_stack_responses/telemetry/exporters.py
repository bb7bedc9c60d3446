"""The exporters of this process, as the standard OTEL_* variables of its environment ask for them.

`opentelemetry-instrument` sets up the same and instruments many libraries in addition, which takes several times as
long for each request. If it has started this process, everything is left to it, and so is what the host has set up.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final

from opentelemetry import metrics, trace

from ..logs import get_logger

logger = get_logger(__name__)

_OF_INSTRUMENT: Final = "opentelemetry.instrumentation.auto_instrumentation"
"""The module that `opentelemetry-instrument` imports in each process that it starts."""

_PROTOCOLS: Final[Mapping[str, str]] = {"http/protobuf": "http", "grpc": "grpc"}
_CLASSES: Final[Mapping[str, str]] = {
    "TRACES": "trace_exporter:OTLPSpanExporter",
    "METRICS": "metric_exporter:OTLPMetricExporter",
}
_KNOWN: Final = ("otlp", "prometheus", "console", "none")
_INSTANCE: Final = "service.instance.id"


class Exporters:
    """The exporters of this process.

    Args:
        instance: the name of this process among those of the service, unless the environment has one.
        environment: the environment variables.

    Attributes:
        scraped: whether Prometheus shall scrape this process, whose metrics `prometheus_client` has then.
    """

    def __init__(self, instance: str, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = environment
        self._instance = instance
        self._flushes: list[Callable[[], object]] = []
        self.scraped = False

    def open(self) -> None:
        """Start to export; log what cannot be exported, and go on without it."""
        if _OF_INSTRUMENT in sys.modules:
            return
        for signal, start in (("TRACES", self._trace), ("METRICS", self._measure)):
            wanted = self._wanted(signal)
            try:
                start(wanted)
            except (ImportError, KeyError) as error:
                self._refuse(signal, error)

    def flush(self) -> None:
        """Send what has not been sent; this waits for the collector."""
        for flush in self._flushes:
            flush()

    def _wanted(self, signal: str) -> set[str]:
        """Return the names of the exporters of traces or metrics: by default `otlp`, if it has an address."""
        named = self._environment.get(f"OTEL_{signal}_EXPORTER", "").strip().lower()
        if not named:
            addresses = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
            return {"otlp"} if any(map(self._environment.get, addresses)) else set()
        wanted = {each.strip() for each in named.split(",")}
        if unknown := sorted(wanted.difference(_KNOWN)):
            logger.error("unknown exporter in OTEL_%s_EXPORTER, which can be %s: %s", signal, _KNOWN, unknown)
        return wanted

    def _trace(self, wanted: set[str]) -> None:
        if not wanted & {"otlp", "console"} or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return
        sdk = import_module("opentelemetry.sdk.trace")
        export = import_module("opentelemetry.sdk.trace.export")
        provider = sdk.TracerProvider(resource=self._resource())
        if "otlp" in wanted:
            provider.add_span_processor(export.BatchSpanProcessor(self._otlp("TRACES")))
        if "console" in wanted:
            provider.add_span_processor(export.SimpleSpanProcessor(export.ConsoleSpanExporter()))
        trace.set_tracer_provider(provider)
        self._flushes.append(provider.force_flush)

    def _measure(self, wanted: set[str]) -> None:
        provider: Any = metrics.get_meter_provider()
        has_provider = hasattr(provider, "add_metric_reader")
        readers: list[Any] = []
        if "prometheus" in wanted:
            readers.append(import_module("opentelemetry.exporter.prometheus").PrometheusMetricReader())
            self.scraped = True
        if "otlp" in wanted and not has_provider:
            export = import_module("opentelemetry.sdk.metrics.export")
            readers.append(export.PeriodicExportingMetricReader(self._otlp("METRICS")))
        if has_provider:
            for reader in readers:
                provider.add_metric_reader(reader)
        elif readers:
            sdk = import_module("opentelemetry.sdk.metrics")
            provider = sdk.MeterProvider(readers, resource=self._resource())
            metrics.set_meter_provider(provider)
            self._flushes.append(provider.force_flush)

    def _otlp(self, signal: str) -> Any:
        """Return the exporter of this signal, which reads its address, its headers and the like by itself."""
        module, name = _CLASSES[signal].split(":")
        return getattr(
            import_module(f"opentelemetry.exporter.otlp.proto.{_PROTOCOLS[self._protocol(signal)]}.{module}"), name
        )()

    def _protocol(self, signal: str) -> str:
        names = (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        return next(filter(None, map(self._environment.get, names)), "http/protobuf")

    def _resource(self) -> Any:
        named = _INSTANCE in self._environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
        own = {} if named else {_INSTANCE: self._instance}
        return import_module("opentelemetry.sdk.resources").Resource.create(own)

    def _refuse(self, signal: str, error: ImportError | KeyError) -> None:
        if isinstance(error, KeyError):
            why = f"OTEL_EXPORTER_OTLP_PROTOCOL has to be one of {', '.join(_PROTOCOLS)}"
        else:
            why = f"{error.name or error} is not installed"
        logger.error("cannot export %s: %s", signal.lower(), why)
