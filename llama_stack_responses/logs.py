"""Loggers that add the request, the response and the trace to their records; the form of all log lines."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextvars import Token
from traceback import TracebackException
from typing import Any, Final

from opentelemetry import context, trace
from opentelemetry.context import Context

_ABOUT: Final = context.create_key("llama_stack_responses.about")

ENDED: Final = "llama_stack_responses.ended"
"""Name of the logger with one line for each response that has ended, at level INFO."""

DELETED: Final = "llama_stack_responses.deleted"
"""Name of the logger with one line for each deletion of expired responses, at level INFO."""

_MAX_FRAMES: Final = 12
"""Maximum frames of each exception of a chain in a log line; the last ones are kept."""

_TRACEBACK_CHARACTERS: Final = 6_000
"""Maximum characters of a traceback in a log line; the last ones are kept."""

_WIDTHS: Final = ("LLAMA_STACK_LOG_WIDTH", "OGX_LOG_WIDTH")
"""The hosts' settings of the width of log lines."""

_HOSTS: Final = ("llama_stack.log", "ogx.log")
"""The hosts' modules with their handlers."""

_LEVEL_CHARACTERS: Final = 8
_INDENT: Final = "\n" + " " * (_LEVEL_CHARACTERS + 1)
"""What begins further lines of a record, below its level of `_LEVEL_CHARACTERS` characters."""

_LEVEL: Final = re.compile(r"\[(?:critical|debug|error|info|notset|warning) *\]")
"""The level as structlog writes it into each line of the hosts."""

_LOGGER: Final = re.compile(r"\[[a-z_][a-z0-9_.]*\]")
"""The name of a logger, as the hosts write it. `rich` takes it for a style and leaves it out."""

_AMBIGUOUS: Final = re.compile(r"""[ \t=\r\n"']""")
"""Characters of a text that is quoted as the value of a field."""

_CONTROLS: Final = dict.fromkeys(map(ord, "\a\b\v\f\r"))
"""Characters that `rich` leaves out."""

_REPEAT_SECONDS: Final = 60.0
"""Seconds after which a failure that repeats is logged again."""

_VALUE_CHARACTERS: Final = 2_000
"""Maximum characters of a value in a log line; the first ones are kept."""


class Attached:
    """Makes a context of OpenTelemetry the current one within a block.

    An open stream holds several of these, and a generator would take several times the memory.
    """

    __slots__ = ("_context", "_token")

    def __init__(self, attached: Context) -> None:
        self._context = attached
        self._token: Token[Context]

    def __enter__(self) -> None:
        self._token = context.attach(self._context)

    def __exit__(self, *_: object) -> None:
        context.detach(self._token)


def about(within: Context | None = None, /, **names: str) -> Attached:
    """Add these names to all records that are logged within the block, and in tasks that are created there.

    Args:
        within: the context that is extended; the current one by default.
        names: the names and their values.
    """
    return Attached(context.set_value(_ABOUT, {**_known(), **names}, within))


def known(name: str) -> str | None:
    """Return the value that `about` was given for this name; None outside such a block."""
    return _known().get(name)


type Logger = logging.LoggerAdapter[logging.Logger]


def get_logger(name: str) -> Logger:
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
    for handler in {handler for logger in _loggers() for handler in logger.handlers}:
        if not any(isinstance(each, _PlainTracebacks) for each in handler.filters):
            handler.addFilter(_PlainTracebacks())


def name_process(number: int | None) -> None:
    """Add the number of this process to all lines, from every logger, as `server_process`; None ends that."""
    for handler in {handler for logger in _loggers() for handler in logger.handlers}:
        for earlier in [each for each in handler.filters if isinstance(each, _OfProcess)]:
            handler.removeFilter(earlier)
        if number is not None:
            handler.addFilter(_OfProcess(number))


def plain_lines(environment: Mapping[str, str] = os.environ) -> None:
    """Replace the hosts' handlers, which render lines for a terminal, where no terminal shows them.

    They lay out each line with `rich`, also in files and pipes. For the host's line of each
    request, that takes a large part of the CPU of a short response. The words, the fields and the level are the same;
    only long lines are not wrapped, and what looks like a style or an emoji in a message stays as it is. If the
    operator has set the width of lines, they are laid out as before.
    """
    if any(name in environment for name in _WIDTHS):
        return
    replacements: dict[logging.Handler, logging.Handler] = {}
    for logger in _loggers():
        for handler in logger.handlers:
            console = getattr(handler, "console", None)
            # Another program's handler may have columns for the time and the place.
            if type(handler).__module__ in _HOSTS and console is not None and not console.is_terminal:
                replacements[handler] = replacements.get(handler) or _PlainLines(handler)
        logger.handlers = [replacements.get(handler, handler) for handler in logger.handlers]


def _loggers() -> list[logging.Logger]:
    return [logging.root, *(logging.getLogger(name) for name in logging.root.manager.loggerDict)]


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
    return f"{value[:_VALUE_CHARACTERS]}..." if isinstance(value, str) and len(value) > _VALUE_CHARACTERS else value


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


class _OfProcess(logging.Filter):
    """Adds the number of a process to each record: of several processes behind one port, which share a log."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.msg, dict):
            record.msg = {**record.msg, "server_process": self._number}
        else:
            record.server_process = self._number
        return True


type _Processors = Sequence[Callable[[Any, str, dict[str, Any]], Any]]
"""Functions of structlog that change the fields of an event, one after the other."""


class _PlainLines(logging.StreamHandler[Any]):
    """Writes the lines of a handler of `rich` without layout.

    Args:
        rich: the handler.
    """

    def __init__(self, rich: Any) -> None:
        super().__init__(rich.console.file)
        self.setLevel(rich.level)
        self.setFormatter(rich.formatter)
        self.filters = rich.filters
        self._processors = _processors(rich.formatter)

    def format(self, record: logging.LogRecord) -> str:
        """Return the level and the message, which has neither the level nor the name of the logger again."""
        message = _fields_line(record, self._processors) if self._processors else None
        if message is None:
            message = _without_level(super().format(record))
        # Only the first line of a record begins at the margin, so a value with line ends cannot pass for other records.
        return f"{record.levelname:<{_LEVEL_CHARACTERS}} {message.translate(_CONTROLS).replace('\n', _INDENT)}"


def _without_level(line: str) -> str:
    """Return a line as structlog lays it out without the level and the name of the logger."""
    return _LOGGER.sub("", _LEVEL.sub("", line, count=1))


def _processors(formatter: Any) -> _Processors:
    """Return the processors of structlog for records of this package and of uvicorn, without the last one.

    They add the time and the fields, and OGX's redact values. The last one lays the line out, which takes more than all
    others. They are empty if `_line_of` does not write the same words as it, or the formatter is not structlog's.
    """
    first, others = getattr(formatter, "foreign_pre_chain", None), getattr(formatter, "processors", ())
    if not first or not others or type(others[-1]).__name__ != "ConsoleRenderer":
        return ()
    sample: dict[str, Any] = {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "a b", "logger": "x.y"}
    sample |= {"number": 1, "words": "a 'b'", "name": "c", "again": "d=e"}
    return [*first, *others[:-1]] if _without_level(others[-1](None, "info", {**sample})) == _line_of(sample) else ()


def _fields_line(record: logging.LogRecord, processors: _Processors) -> str | None:
    """Return the line of a record; None if it is one of structlog's, or has a traceback."""
    if isinstance(record.msg, dict) or record.exc_info or record.stack_info:
        return None
    fields: dict[str, Any] = {"event": record.getMessage(), "_record": record, "_from_structlog": False}
    name = record.levelname.lower()
    for process in processors:
        fields = process(None, name, fields)
    return _line_of(fields)


def _line_of(fields: dict[str, Any]) -> str:
    """Return the line of these fields of an event, without the level and the name of the logger; they are taken out."""
    time, event = fields.pop("timestamp", ""), fields.pop("event")
    for name in ("level", "logger"):
        fields.pop(name, None)
    values = [f"{name}={_quoted(value)}" for name, value in sorted(fields.items())]
    return f"{time}  {event}  {' '.join(values)}".rstrip(" ")


def _quoted(value: Any) -> str:
    return value if isinstance(value, str) and not _AMBIGUOUS.search(value) else repr(value)


class Outage:
    """Finds out which failures of a loop that tries again are worth a line: each that is new, and one a minute.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last = ""
        self._until = 0.0

    def should_log(self, error: Exception) -> bool:
        """Return whether to log this failure."""
        now, text = self._clock(), str(error)
        if text == self._last and now < self._until:
            return False
        self._last, self._until = text, now + _REPEAT_SECONDS
        return True

    def over(self) -> None:
        """Record a success: the next failure is new."""
        self._last = ""


def print_no_lines() -> None:
    """Print no lines of this package unless the host does: without any handler, Python prints warnings and errors."""
    logging.getLogger("llama_stack_responses").addHandler(logging.NullHandler())


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


def _raised(error: Any) -> BaseException | None:
    """Return the exception that the value of `exc_info` refers to."""
    if isinstance(error, tuple):
        return error[1] if isinstance(error[1], BaseException) else None
    if isinstance(error, BaseException):
        return error
    return sys.exception() if error else None


def _traceback(error: BaseException) -> str:
    """Return the end of a traceback, limited in frames and characters."""
    text = "".join(TracebackException.from_exception(error, limit=-_MAX_FRAMES, max_group_width=3).format()).rstrip()
    return text if len(text) <= _TRACEBACK_CHARACTERS else f"...{text[-_TRACEBACK_CHARACTERS:]}"


def say_instead_of_traceback(sentence: str) -> None:
    """Have uvicorn log a start error by its sentence, which is printed again at the end of the process."""
    logging.getLogger("uvicorn.error").addFilter(SentenceOfTraceback(sentence))


class SentenceOfTraceback(logging.Filter):
    """Replaces the traceback of a start error by its sentence, and repeats that at the end of the process.

    Args:
        sentence: the error's message.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__()
        self._sentence = sentence

    def filter(self, record: logging.LogRecord) -> bool:
        """Let all lines through."""
        text = str(record.msg)
        if text.startswith("Traceback") and self._sentence in text:
            record.msg = self._sentence
            atexit.register(sys.stderr.write, f"\n{self._sentence}\n")
        return True
