"""Loggers that add the request, the response and the trace to their records."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from traceback import TracebackException
from typing import Any, Final

from opentelemetry import context, trace

_ABOUT: Final = context.create_key("llama_stack_responses.about")

ENDED: Final = "llama_stack_responses.ended"
"""Name of the logger with one line for each response that has ended, at level INFO."""

_FRAMES: Final = 12
"""Maximum frames of each exception of a chain in a log line; the last ones are kept."""

_SHOWN: Final = 6_000
"""Maximum characters of a traceback in a log line; the last ones are kept."""

_LONGEST: Final = 2_000
"""Maximum characters of a value in a log line; the first ones are kept."""


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Add these names to all records that are logged within the block, and in tasks that are created there."""
    token = context.attach(context.set_value(_ABOUT, {**_known(), **names}))
    try:
        yield
    finally:
        context.detach(token)


def known(name: str) -> str | None:
    """Return the value that `about` was given for this name; None outside such a block."""
    return _known().get(name)


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return the logger of this name, whose records carry the names given to `about`.

    They are attributes of the record, which JSON logs show as fields.
    """
    return _Naming(logging.getLogger(name))


def bound_tracebacks() -> None:
    """Make all installed handlers limit the length of tracebacks and values, for every logger.

    The host, uvicorn and asyncio log exceptions that a client can cause, such as a WebSocket message that is not UTF-8,
    and the path of each request, which may have 64 KiB. The handlers of the hosts format lines with `rich`, and
    exceptions with highlighted source code. That blocks the event loop for a quarter of a second and more; a short
    plain text takes less than a millisecond.
    """
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    for handler in {handler for logger in (logging.root, *loggers) for handler in logger.handlers}:
        if not any(isinstance(each, _PlainTracebacks) for each in handler.filters):
            handler.addFilter(_PlainTracebacks())


def leave_out(name: str, message: str) -> None:
    """Drop this message, which a client can cause, from the logger `name`, and log it here at level DEBUG instead."""

    def others(record: logging.LogRecord) -> bool:
        if record.msg != message:
            return True
        get_logger(__name__).debug("%s: %s", name, message)
        return False

    logging.getLogger(name).addFilter(others)


def _cut(value: Any) -> Any:
    """Return the value, truncated if it is a long string."""
    return f"{value[:_LONGEST]}..." if isinstance(value, str) and len(value) > _LONGEST else value


class _PlainTracebacks(logging.Filter):
    """Moves a record's exception into its message as plain text, and truncates long values, before formatting."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(map(_cut, record.args))
        fields = record.msg if isinstance(record.msg, dict) else None
        error = _raised(record.exc_info) or _raised((fields or {}).get("exc_info"))
        if error is None:
            return True
        if fields is None:
            record.msg, record.args = "%s\n%s", (record.getMessage(), _traceback(error))
        else:
            # structlog, which the hosts log with, passes its fields as the message.
            record.msg = {**fields, "event": f"{fields.get('event', '')}\n{_traceback(error)}", "exc_info": None}
        record.exc_info = record.exc_text = None
        return True


class _Naming(logging.LoggerAdapter[logging.Logger]):
    """Adds the trace id and the names given to `about` to each record."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**_trace(), **_known(), **(kwargs.get("extra") or {})}}


def _known() -> Mapping[str, str]:
    known: Any = context.get_value(_ABOUT)
    return known or {}


def _trace() -> Mapping[str, str]:
    span = trace.get_current_span().get_span_context()
    return {"trace_id": trace.format_trace_id(span.trace_id)} if span.is_valid else {}


def _raised(given: Any) -> BaseException | None:
    """Return the exception that the value of `exc_info` refers to."""
    if isinstance(given, tuple):
        return given[1] if isinstance(given[1], BaseException) else None
    if isinstance(given, BaseException):
        return given
    return sys.exception() if given else None


def _traceback(error: BaseException) -> str:
    """Return the end of a traceback, limited in frames and characters."""
    text = "".join(TracebackException.from_exception(error, limit=-_FRAMES, max_group_width=3).format()).rstrip()
    return text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}"
