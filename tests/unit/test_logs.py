"""Tracebacks in the log are bounded plain text, whichever logger writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO

import pytest
import structlog
from rich.console import Console
from rich.logging import RichHandler

from llama_stack_responses.logs import bound_tracebacks


@pytest.fixture
def output() -> Iterator[StringIO]:
    """The output of a handler like the hosts', for the logger `noisy`."""
    written = StringIO()
    handler = RichHandler(console=Console(file=written, width=120), rich_tracebacks=True)
    logger = logging.getLogger("noisy")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def deep(levels: int) -> None:
    if levels == 0:
        raise RuntimeError("canary " + "x" * 50_000)
    deep(levels - 1)


def log_failure(logger: logging.Logger) -> None:
    try:
        deep(200)
    except RuntimeError:
        logger.exception("it failed: %s", "100%")


def test_traceback_of_other_logger_is_plain_and_bounded(output: StringIO) -> None:
    bound_tracebacks()
    bound_tracebacks()
    log_failure(logging.getLogger("noisy"))
    said = output.getvalue()
    assert "it failed: 100%" in said
    assert said.count("xxxxx") > 0
    assert "╭" not in said
    assert len(said) < 10_000


def test_traceback_of_structlog_is_plain_and_bounded(output: StringIO) -> None:
    bound_tracebacks()
    [handler] = logging.getLogger("noisy").handlers
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(structlog.dev.ConsoleRenderer(colors=False)))
    logger = structlog.wrap_logger(
        logging.getLogger("noisy"),
        processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    try:
        deep(200)
    except RuntimeError:
        logger.exception("it failed")
    said = output.getvalue()
    assert "it failed" in said
    assert said.count("xxxxx") > 0
    assert "╭" not in said
    assert len(said) < 10_000


def test_long_value_is_cut(output: StringIO) -> None:
    bound_tracebacks()
    logging.getLogger("noisy").error("%s %d %s", "/" * 60_000, 200, "the end")
    said = output.getvalue()
    assert "the end" in said
    assert len(said) < 10_000


def test_line_without_exception_stays_unchanged(output: StringIO) -> None:
    bound_tracebacks()
    logging.getLogger("noisy").error("plain %s", "words")
    assert "plain words" in output.getvalue()
