"""The trace that a piece of work belongs to, as W3C headers: how it comes in, goes on, and is kept for later."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_HEADERS: Final = TraceContextTextMapPropagator()
_LONGEST: Final = 512
"""Characters of a header: what everybody passes on, by the W3C's word."""


def trace_headers() -> dict[str, str]:
    """The headers that take the current trace on; none if there is no trace.

    Only `traceparent` and `tracestate`: what else a client has put into its baggage is nobody else's business.
    """
    headers: dict[str, str] = {}
    _HEADERS.inject(headers)
    return headers


@contextmanager
def within(headers: Mapping[str, str]) -> Iterator[None]:
    """Has the block belong to the trace that these headers name, and to no other."""
    known = {name: headers[name] for name in _HEADERS.fields if len(headers.get(name, "")) in range(1, _LONGEST + 1)}
    token = context.attach(_HEADERS.extract(known, trace.set_span_in_context(trace.INVALID_SPAN)))
    try:
        yield
    finally:
        context.detach(token)


def is_traced() -> bool:
    """Whether there is a current trace, as there is where the operator has the host's HTTP server instrumented."""
    return trace.get_current_span().get_span_context().is_valid
