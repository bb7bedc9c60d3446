"""An OpenTelemetry collector (OTLP over HTTP) for a server started with `collector.env`.

with Collector() as collector:
    ...                                     # a server, started with `collector.env`
    spans = collector.spans(trace_id, 3)    # waits for three spans
    collector.points("gen_ai.client.token.usage", model="local/m")
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.support.waiting import wait_until
from tests.support.web import Answer, ReceivedRequest, Web

PROTOBUF = "application/x-protobuf"
SCOPE = "llama_stack_responses"


@dataclass(frozen=True, slots=True)
class Span:
    """A span; ids in hex. `scope` is the instrumentation that created it."""

    scope: str
    name: str
    trace_id: str
    span_id: str
    parent_id: str
    kind: str
    status: str
    events: list[str]
    attributes: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Point:
    """The state of a histogram for some attributes."""

    attributes: dict[str, Any]
    count: int
    sum: float


class Collector:
    """The collector, for a `with` block."""

    def __init__(self) -> None:
        """Create an empty collector."""
        self._web = Web()
        self._web.answer_all = self._take
        self._spans: dict[str, list[Span]] = defaultdict(list)
        self._points: dict[str, list[Point]] = {}

    def __enter__(self) -> Self:
        """Start serving."""
        self._web.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop serving."""
        self._web.__exit__()

    @property
    def env(self) -> dict[str, str]:
        """The environment variables by which a server sends its spans and metrics here, with short delays."""
        return {
            "OTEL_SERVICE_NAME": "stack",
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._web.url(""),
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_LOGS_EXPORTER": "none",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }

    def spans(self, trace_id: str, count: int) -> list[Span]:
        """Wait for `count` spans of this project in a trace; return them in the order of their end."""

        def found() -> list[Span]:
            return [span for span in self._spans[trace_id] if span.scope == SCOPE]

        wait_until(lambda: len(found()) >= count)
        return found()

    def all_spans(self, trace_id: str) -> list[Span]:
        """Return all spans of a trace so far, including those of other instrumentation."""
        return list(self._spans[trace_id])

    def points(self, name: str, **attributes: Any) -> list[Point]:
        """Wait for and return the points of a histogram with these attributes; `_` in their names matches `.`."""

        def found() -> list[Point]:
            wanted = attributes.items()
            points = self._points.get(name, [])
            return [
                each
                for each in points
                if wanted <= {key.replace(".", "_"): v for key, v in each.attributes.items()}.items()
            ]

        wait_until(lambda: bool(found()))
        return found()

    def _take(self, request: ReceivedRequest) -> Answer:
        self._web.seen.clear()
        if request.path == "/v1/traces":
            self._take_spans(request.body)
        elif request.path == "/v1/metrics":
            self._take_metrics(request.body)
        return Answer(headers={"content-type": PROTOBUF})

    def _take_spans(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    self._spans[span.trace_id.hex()].append(_span(scope.scope.name, span))

    def _take_metrics(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    points = metric.histogram.data_points
                    self._points[metric.name] = [
                        Point(_attributes(each.attributes), each.count, each.sum) for each in points
                    ]


def _span(scope: str, span: Any) -> Span:
    return Span(
        scope=scope,
        name=span.name,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        kind=span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        status=span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        events=[event.name for event in span.events],
        attributes=_attributes(span.attributes),
    )


def _attributes(pairs: Iterable[Any]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind)
