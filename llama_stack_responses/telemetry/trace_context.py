"""W3C trace context: extract it from headers, propagate it, and store it for later."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from ..logs import Attached

_HEADERS: Final = TraceContextTextMapPropagator()
_HEADER_CHARACTERS: Final = 512
"""Maximum characters of a header: as many as W3C Trace Context asks everyone to propagate of `tracestate`."""


def trace_headers() -> dict[str, str]:
    """Return the headers that propagate the current trace; none without a trace.

    Only `traceparent` and `tracestate`: a client's baggage may be private.
    """
    headers: dict[str, str] = {}
    _HEADERS.inject(headers)
    return headers


def within(headers: Mapping[str, str]) -> Attached:
    """Run the block in the trace that these headers name, and in no other."""
    return Attached(trace_of(headers))


def trace_of(headers: Mapping[str, str]) -> Context:
    """Return the current context with the trace that these headers name, and no other."""
    known = {
        name: headers[name]
        for name in _HEADERS.fields
        if len(headers.get(name, "")) in range(1, _HEADER_CHARACTERS + 1)
    }
    return _HEADERS.extract(known, trace.set_span_in_context(trace.INVALID_SPAN))


def is_traced() -> bool:
    """Return whether there is a current trace, as when the operator has instrumented the host's HTTP server."""
    return trace.get_current_span().get_span_context().is_valid
