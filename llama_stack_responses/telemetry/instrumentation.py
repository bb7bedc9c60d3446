"""Spans and metrics of responses, model rounds, tool calls, the queue and the store.

They go to the process's providers, which `exporters.py` sets up, or `opentelemetry-instrument`, or the host. Without a
setup, the API's defaults do nothing. Messages are left out unless the operator enables them, and so are the texts of
errors, which may quote messages.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from types import TracebackType
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from ..core.errors import ApiError
from ..core.lru_cache import LruCache
from ..core.types import Json
from ..logs import Attached, known
from ..stream.call_kinds import ServerCall
from ..stream.deltas import Finish
from ..stream.usage import Usage
from . import message_attributes, model_failures
from .gauges import Gauges, GaugeSources
from .loop_monitor import EventLoopMonitor
from .metrics import SECONDS, Instruments, Labels, Metric, Recorder

_SCOPE: Final = "llama_stack_responses"
_SCHEMA: Final = "https://opentelemetry.io/schemas/1.37.0"

_ANY_PROVIDER: Final = "_OTHER"
TOKENS: Final = Metric(
    "gen_ai.client.token.usage", "{token}", "Tokens of a model round", tuple(4**power for power in range(14))
)
OPERATION: Final = Metric("gen_ai.client.operation.duration", "s", "Time of a model round or a tool call", SECONDS)
_SECONDS_TO_FIRST: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
FIRST_CHUNK: Final = Metric(
    "gen_ai.client.operation.time_to_first_chunk", "s", "Time to a model round's first chunk", _SECONDS_TO_FIRST
)
REQUEST: Final = Metric("gen_ai.server.request.duration", "s", "Time of a response", SECONDS)
FIRST_TOKEN: Final = Metric(
    "gen_ai.server.time_to_first_token", "s", "Time to a response's first output", _SECONDS_TO_FIRST
)
STORE: Final = Metric(
    "llama_stack_responses.store.duration",
    "s",
    "Time of a call of the store",
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
LOOP_DELAY: Final = Metric(
    "llama_stack_responses.event_loop.delay",
    "s",
    "Lateness of a timer in the event loop",
    (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
LOOP_HOLDS: Final = Metric(
    "llama_stack_responses.event_loop.holds", "{hold}", "Times that the event loop was blocked for too long"
)

_MAX_LABELS: Final = 256
"""Maximum number of labels that are kept for further operations with the same model."""

_SETTINGS: Final[Mapping[str, str]] = {
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}
"""Settings of a chat request, and their span attributes."""


class Operation:
    """An operation in progress.

    Args:
        span: the operation's span.
        labels: the attributes of its metrics, of low cardinality.
        wants_content: whether messages are recorded on the span.
    """

    __slots__ = ("_began", "_has_output", "_instruments", "_labels", "_span", "_wants_content")

    def __init__(self, span: Span, labels: Labels, instruments: Instruments, *, wants_content: bool) -> None:
        self._span = span
        self._labels = labels
        self._instruments = instruments
        self._wants_content = wants_content
        self._began = perf_counter()
        self._has_output = False  # whether a model has begun to answer

    def failed(self, error: BaseException) -> None:
        """Record that it ended with an error; cancellation does not set the span's error status."""
        kind = _kind(error)
        self._span.set_attribute("error.type", kind)
        if isinstance(error, Exception):
            self._span.set_status(Status(StatusCode.ERROR))
        self._labels = {**self._labels, "error.type": kind}
        if not self._has_output and _is_clients(error):
            # The model and its provider may not exist, and clients could create any number of labels.
            known = {name: value for name, value in self._labels.items() if name != "gen_ai.request.model"}
            self._labels = {**known, "gen_ai.provider.name": _ANY_PROVIDER}

    @property
    def labels(self) -> Labels:
        """The attributes of its metrics, including its error."""
        return self._labels

    @property
    def seconds(self) -> float:
        """Seconds since its start."""
        return perf_counter() - self._began


class ResponseOperation(Operation):
    """A response, from the server's first work on it to its last item."""

    __slots__ = ()

    def observe(self) -> None:
        """Record that a model has begun to answer."""
        if not self._has_output:
            self._has_output = True
            self._instruments.recorder(FIRST_TOKEN)(self.seconds, self._labels)

    def ended(self, response: Json, status: str, rounds: int, direct_writes: int = 0) -> None:
        """Record how it ended, and how often deltas were written to the client's connection without a task."""
        self._span.set_attribute("llama_stack_responses.direct_writes", direct_writes)
        self._span.set_attribute("llama_stack_responses.status", status)
        self._span.set_attribute("llama_stack_responses.rounds", rounds)
        if usage := response["usage"]:
            self._span.set_attribute("gen_ai.usage.input_tokens", usage["input_tokens"])
            self._span.set_attribute("gen_ai.usage.output_tokens", usage["output_tokens"])


class RoundOperation(Operation):
    """A model round.

    Attributes:
        whole: the response that it is part of.
        failures: takes the failure of its model server.
        first_chunk: seconds until the first chunk; None before that.
        usage: its tokens; None before its end.
        extensions: the number of chunks of which only the text was read, since all else was as before.
        provider: the provider of the model server; empty as long as it is unknown.
    """

    __slots__ = ("extensions", "failures", "first_chunk", "provider", "usage", "whole")

    def __init__(self, span: Span, labels: Labels, instruments: Instruments, *, wants_content: bool) -> None:
        super().__init__(span, labels, instruments, wants_content=wants_content)
        self.whole: ResponseOperation
        self.failures: model_failures.LastFailures
        self.first_chunk: float | None = None
        self.usage: Usage | None = None
        self.extensions = 0
        self.provider = ""

    def failed(self, error: BaseException) -> None:
        """Record that it ended with an error, and report it if the model server has failed."""
        super().failed(error)
        if failure := model_failures.failure_of(error):
            more = model_failures.labels_of(failure)
            self._span.set_attributes(dict(more))
            provider = self.provider or str(self._labels["gen_ai.provider.name"])
            model = str(self._labels.get("gen_ai.request.model", ""))
            self._labels = {**self._labels, **more, "gen_ai.provider.name": provider}
            model_failures.report(failure, provider, model, self._instruments.recorder(model_failures.FAILURES))
            self.failures.add(provider, model, failure)

    def set_request(self, request: Json) -> None:
        """Record the request to the model."""
        if not self._span.is_recording():
            return
        self._span.set_attributes(_settings(request))
        if self._wants_content:
            self._span.set_attribute("gen_ai.input.messages", message_attributes.input_messages(request["messages"]))

    def waited(self, seconds: float) -> None:
        """Record that it waited for a slot of the model server, which does not count as that server's time."""
        self._began += seconds
        self._span.set_attribute("llama_stack_responses.model_server.wait", seconds)

    def observe(self, chunk: Any) -> None:
        """Record the first chunk; later calls have no effect."""
        if self._has_output:
            return
        self._has_output = True
        self.whole.observe()
        self.first_chunk = seconds = self.seconds
        self._instruments.recorder(FIRST_CHUNK)(seconds, self._labels)
        self._span.set_attribute("gen_ai.response.time_to_first_chunk", seconds)
        for name in ("id", "model"):
            if isinstance(value := getattr(chunk, name, None), str) and value:
                self._span.set_attribute(f"gen_ai.response.{name}", value)

    def ended(self, finish: Finish, items: Sequence[Json]) -> None:
        """Record how it ended, and the items that it generated."""
        self.usage = usage = finish.usage
        if self._span.is_recording():
            self._describe_end(finish, items)
        record = self._instruments.recorder(TOKENS)
        for kind, count in (("input", usage.input_tokens), ("output", usage.output_tokens)):
            record(count, {**self._labels, "gen_ai.token.type": kind})

    def _describe_end(self, finish: Finish, items: Sequence[Json]) -> None:
        usage, span = finish.usage, self._span
        span.set_attributes(
            {
                "gen_ai.response.finish_reasons": [finish.reason],
                "gen_ai.usage.input_tokens": usage.input_tokens,
                "gen_ai.usage.output_tokens": usage.output_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
                "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
                "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
                "llama_stack_responses.extensions": self.extensions,
            }
        )
        if self._wants_content:
            span.set_attribute("gen_ai.output.messages", message_attributes.output_messages(items, finish.reason))


class ToolOperation(Operation):
    """A call of a tool."""

    __slots__ = ()

    def set_arguments(self, arguments: str) -> None:
        """Record the arguments."""
        if self._wants_content:
            self._span.set_attribute("gen_ai.tool.call.arguments", arguments)

    def ended(self, output: Any) -> None:
        """Record the output for the model."""
        if self._wants_content:
            self._span.set_attribute("gen_ai.tool.call.result", message_attributes.tool_result(output))


class _Doing[Kind: Operation]:
    """Makes the span of an operation the current one within a block, and ends and measures it afterwards.

    An open stream holds two of these, and generators would take several times the memory.
    """

    __slots__ = ("_attached", "_measured", "_span", "operation")

    def __init__(self, operation: Kind, span: Span, measured: Recorder) -> None:
        self.operation = operation
        self._span = span
        self._measured = measured
        # Without a tracer, the span has the context of the current one.
        is_new = span.get_span_context() != trace.get_current_span().get_span_context()
        self._attached = Attached(trace.set_span_in_context(span)) if is_new else None

    def __enter__(self) -> Kind:
        if self._attached:
            self._attached.__enter__()
        return self.operation

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        operation = self.operation
        try:
            if error:
                operation.failed(error)
            self._measured(operation.seconds, operation.labels)
        finally:
            if self._attached:
                self._attached.__exit__()
            self._span.end()


class Telemetry:
    """The owner of the tracer and the instruments.

    Args:
        tracers: provider of tracers; defaults to the process's.
        meters: provider of meters; defaults to the process's.
        environment: environment variables that may enable contents.

    Attributes:
        failures: the last failures of model servers.
    """

    def __init__(
        self,
        tracers: trace.TracerProvider | None = None,
        meters: metrics.MeterProvider | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._tracer = trace.get_tracer(_SCOPE, tracer_provider=tracers, schema_url=_SCHEMA)
        self._store_tracer = trace.get_tracer(f"{_SCOPE}.store", tracer_provider=tracers, schema_url=_SCHEMA)
        self._meter = metrics.get_meter(_SCOPE, meter_provider=meters, schema_url=_SCHEMA)
        self._instruments = Instruments(self._meter)
        self._wants_content = message_attributes.is_wanted(environment)
        self._labels = LruCache[tuple[str, str], Labels](_MAX_LABELS)
        self.failures = model_failures.LastFailures()

    def response(self, response: Json) -> AbstractContextManager[ResponseOperation]:
        """Trace a response that runs within the block."""
        labels = self._labels_of("invoke_agent", response["model"])
        more: dict[str, AttributeValue] = {
            "gen_ai.response.id": response["id"],
            "openai.api.type": "responses",
            "llama_stack_responses.jobs": bool(response["background"]),
        }
        if owner := known("owner"):
            more["llama_stack_responses.owner"] = owner
        if conversation := response["conversation"]:
            more["gen_ai.conversation.id"] = conversation["id"]
        measured = self._instruments.recorder(REQUEST)
        return self._doing(ResponseOperation, "invoke_agent", SpanKind.INTERNAL, labels, more, measured)

    def round(self, model: str, whole: ResponseOperation) -> AbstractContextManager[RoundOperation]:
        """Trace a model round of this response that runs within the block."""
        name, labels, measured = f"chat {model}", self._labels_of("chat", model), self._instruments.recorder(OPERATION)
        doing = self._doing(RoundOperation, name, SpanKind.CLIENT, labels, {}, measured)
        doing.operation.whole, doing.operation.failures = whole, self.failures
        return doing

    def tool(self, call: ServerCall, item_type: str) -> AbstractContextManager[ToolOperation]:
        """Trace a tool call within the block, which an item of this type shows."""
        name = f"execute_tool {call.name}"
        # Without the tool's name: that of an MCP server's tool is chosen by the client.
        labels = {"gen_ai.operation.name": "execute_tool", "llama_stack_responses.item.type": item_type}
        more = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.call.id": call.call_id,
            "gen_ai.tool.type": "extension",
        }
        measured = self._instruments.recorder(OPERATION)
        doing = self._doing(ToolOperation, name, SpanKind.INTERNAL, labels, more, measured)
        doing.operation.set_arguments(call.arguments)
        return doing

    def storing(self, operation: str) -> AbstractContextManager[None]:
        """Time a call of the store within the block; it has a span if it belongs to a trace."""
        return _StoreCall(self._instruments.recorder(STORE), operation, self._store_tracer)

    def record(self, metric: Metric, value: float = 1, labels: Labels | None = None) -> None:
        """Record a value, or add it to a counter. The labels have few values: never a name that clients choose."""
        self._instruments.recorder(metric)(value, labels)

    def show_value(self, metric: Metric, value: Callable[[], float | None]) -> None:
        """Let exporters read a metric as a gauge.

        Args:
            metric: the metric, without buckets.
            value: returns its value, in any thread; None if there is none.
        """

        def observe(_: CallbackOptions) -> Iterable[Observation]:
            found = value()
            return [] if found is None else [Observation(found)]

        self._meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.description)

    def show(self, sources: GaugeSources) -> None:
        """Let exporters read the gauges of the server of this event loop. Without one, they are never read."""
        Gauges(self._meter, sources, asyncio.get_running_loop())

    def monitor_loop(self, threshold: float) -> EventLoopMonitor:
        """Start to monitor the running event loop; blocked periods of more than `threshold` seconds are logged.

        The caller has to stop the returned monitor.
        """
        delay, holds = self._instruments.recorder(LOOP_DELAY), self._instruments.recorder(LOOP_HOLDS)
        # Prometheus computes increases between scrapes: of a counter that begins at one, the first one would be lost.
        holds(0, None)
        monitor = EventLoopMonitor(threshold, lambda seconds: delay(seconds, None), lambda _: holds(1, None))
        monitor.start()
        return monitor

    def _labels_of(self, operation: str, model: str) -> Labels:
        """Return the labels of an operation, which open ones with the same model share."""
        labels = self._labels.get((operation, model))
        if labels is None:
            labels = _labels(operation, model)
            self._labels.set((operation, model), labels)
        return labels

    def _doing[Kind: Operation](
        self, kind: type[Kind], name: str, span_kind: SpanKind, labels: Labels, more: Labels, measured: Recorder
    ) -> _Doing[Kind]:
        span = self._tracer.start_span(name, kind=span_kind, attributes={**labels, **more})
        wants_content = self._wants_content and span.is_recording()
        return _Doing(kind(span, labels, self._instruments, wants_content=wants_content), span, measured)


class _StoreCall:
    """Times a call of the store. A request makes several: a generator would take twice as long.

    Args:
        measured: records the seconds.
        operation: the name of the call.
        tracer: makes its span. What the server does by itself, such as heartbeats, has none.
    """

    def __init__(self, measured: Recorder, operation: str, tracer: trace.Tracer) -> None:
        self._measured = measured
        self._labels = {"llama_stack_responses.store.operation": operation}
        self._span: Span | None = None
        if trace.get_current_span().is_recording():
            self._span = tracer.start_span(f"store {operation}", kind=SpanKind.CLIENT, attributes=self._labels)
        self._began = perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        span = self._span
        if isinstance(error, ApiError):
            self._labels["error.type"] = kind = _kind(error)
            if span:
                span.set_attribute("error.type", kind)
                span.set_status(Status(StatusCode.ERROR))
        self._measured(perf_counter() - self._began, self._labels)
        if span:
            span.end()


def _labels(operation: str, model: str) -> Labels:
    provider, slash, _ = model.partition("/")
    return {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": provider if slash else _ANY_PROVIDER,
        "gen_ai.request.model": model,
    }


def _settings(request: Json) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        attribute: value for name, attribute in _SETTINGS.items() if isinstance(value := request.get(name), int | float)
    }
    attributes["gen_ai.request.stream"] = bool(request.get("stream"))
    attributes["gen_ai.output.type"] = "json" if "response_format" in request else "text"
    return attributes


def _is_clients(error: BaseException) -> bool:
    """Return whether clients can cause any number of these errors: by invalid requests, or by disconnecting."""
    if isinstance(error, ApiError):
        return error.status < 500 and error.status != 429
    return not isinstance(error, Exception)


def _kind(error: BaseException) -> str:
    if isinstance(error, ApiError):
        return error.code or str(error.status)
    return type(error).__name__ if isinstance(error, Exception) else "cancelled"
