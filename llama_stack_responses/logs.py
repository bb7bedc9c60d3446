"""Loggers whose lines name the request and the response that they are about, and their trace."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from traceback import TracebackException
from typing import Any, Final

from opentelemetry import context, trace

_ABOUT: Final = context.create_key("llama_stack_responses.about")

_FRAMES: Final = 12
"""Frames of each exception of a chain that a log line shows: the last ones."""

_SHOWN: Final = 6_000
"""Characters of a traceback in a log line: the last ones."""

_LONGEST: Final = 2_000
"""Characters of a value in a log line: the first ones."""


@contextmanager
def about(**names: str) -> Iterator[None]:
    """Names what all lines are about that are logged within the block, and in the tasks that are begun there."""
    token = context.attach(context.set_value(_ABOUT, {**_known(), **names}))
    try:
        yield
    finally:
        context.detach(token)


def get_logger(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """The logger of this name; its records have what `about` named as attributes, which JSON logs show as fields."""
    return _Naming(logging.getLogger(name))


def bound_tracebacks() -> None:
    """Has all installed handlers write tracebacks and long values in bounded lengths, for every logger.

    The host, uvicorn and asyncio too log exceptions that a client can cause, such as a WebSocket message that is not
    UTF-8, and the path of each request, which may have 64 KiB. The handlers of the hosts draw lines with `rich`, an
    exception with its source code in colours. That holds the event loop for a quarter of a second and more; a short
    plain text takes less than a millisecond.
    """
    loggers = [logging.getLogger(name) for name in logging.root.manager.loggerDict]
    for handler in {handler for logger in (logging.root, *loggers) for handler in logger.handlers}:
        if not any(isinstance(each, _PlainTracebacks) for each in handler.filters):
            handler.addFilter(_PlainTracebacks())


def leave_out(name: str, message: str) -> None:
    """Has the logger of this name leave out this message, which a client can cause; it becomes a debug line of ours."""

    def others(record: logging.LogRecord) -> bool:
        if record.msg != message:
            return True
        get_logger(__name__).debug("%s: %s", name, message)
        return False

    logging.getLogger(name).addFilter(others)


def _cut(value: Any) -> Any:
    """The value, or its beginning if it is a long text."""
    return f"{value[:_LONGEST]}..." if isinstance(value, str) and len(value) > _LONGEST else value


class _PlainTracebacks(logging.Filter):
    """Puts a record's exception into its message, as text, and cuts long values, before a handler draws it."""

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
            # structlog, which the hosts log with, hands over its fields as the message.
            record.msg = {**fields, "event": f"{fields.get('event', '')}\n{_traceback(error)}", "exc_info": None}
        record.exc_info = record.exc_text = None
        return True


class _Naming(logging.LoggerAdapter[logging.Logger]):
    """Adds what a line is about."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**_trace(), **_known(), **(kwargs.get("extra") or {})}}


def _known() -> Mapping[str, str]:
    known: Any = context.get_value(_ABOUT)
    return known or {}


def _trace() -> Mapping[str, str]:
    span = trace.get_current_span().get_span_context()
    return {"trace_id": trace.format_trace_id(span.trace_id)} if span.is_valid else {}


def _raised(given: Any) -> BaseException | None:
    """The exception that `exc_info` means."""
    if isinstance(given, tuple):
        return given[1] if isinstance(given[1], BaseException) else None
    if isinstance(given, BaseException):
        return given
    return sys.exception() if given else None


def _traceback(error: BaseException) -> str:
    """The end of a traceback, cut to a bounded number of frames and characters."""
    text = "".join(TracebackException.from_exception(error, limit=-_FRAMES, max_group_width=3).format()).rstrip()
    return text if len(text) <= _SHOWN else f"...{text[-_SHOWN:]}"
