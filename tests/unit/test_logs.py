"""Lines and tracebacks in the log are bounded plain text, whichever logger writes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from io import StringIO
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import structlog
from rich.console import Console
from rich.logging import RichHandler

from llama_stack_responses.logs import Outage, bound_tracebacks, name_process, plain_lines


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
    log_text = output.getvalue()
    assert "it failed: 100%" in log_text
    assert log_text.count("xxxxx") > 0
    assert "╭" not in log_text
    assert len(log_text) < 10_000


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
    log_text = output.getvalue()
    assert "it failed" in log_text
    assert log_text.count("xxxxx") > 0
    assert "╭" not in log_text
    assert len(log_text) < 10_000


def test_long_value_is_cut(output: StringIO) -> None:
    bound_tracebacks()
    logging.getLogger("noisy").error("%s %d %s", "/" * 60_000, 200, "the end")
    log_text = output.getvalue()
    assert "the end" in log_text
    assert len(log_text) < 10_000


def test_line_without_exception_stays_unchanged(output: StringIO) -> None:
    bound_tracebacks()
    logging.getLogger("noisy").error("plain %s", "words")
    assert "plain words" in output.getvalue()


# Lines


class HostHandler(RichHandler):
    """A handler as the hosts define it."""

    __module__ = "ogx.log"


def noisy(**console: Any) -> tuple[logging.Logger, StringIO]:
    """Return a logger with a handler like the hosts', and its output."""
    written = StringIO()
    handler = HostHandler(
        console=Console(file=written, **{"width": 40, **console}), show_time=False, show_path=False, markup=True
    )
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    handler.addFilter(lambda record: "unwanted" not in record.getMessage())
    logger = logging.getLogger("plain")
    logger.handlers, logger.propagate = [handler], False
    return logger, written


def test_line_outside_terminal_is_not_laid_out() -> None:
    logger, written = noisy()
    logger.warning("short")
    before = written.getvalue()
    plain_lines(environment={})
    plain_lines(environment={})
    logger.warning("short")
    assert written.getvalue().split() == before.split() * 2
    logger.error("%s", "long " * 40)
    assert written.getvalue().splitlines()[-1] == f"ERROR    plain: {'long ' * 40}"
    logger.warning("unwanted")
    assert "unwanted" not in written.getvalue()


def test_further_lines_of_record_are_indented() -> None:
    logger, written = noisy()
    text = "a\nINFO     b", "c [1]\n\nINFO     d"
    for each in text:
        logger.warning("%s", each)
    before = [line.rstrip() for line in written.getvalue().splitlines()]
    plain_lines(environment={})
    for each in text:
        logger.warning("%s", each)
    assert [line.rstrip() for line in written.getvalue().splitlines()] == before * 2


@pytest.mark.parametrize("text", ["a [bold red]b [/v1/x] [1, 2]", "[fe80::1]:80", r"\[A] :smile: at 13:51:26"])
def test_message_stays_as_it_is(text: str) -> None:
    logger, written = noisy()
    plain_lines(environment={})
    logger.warning("%s", text)
    assert written.getvalue() == f"WARNING  plain: {text}\n"


def test_characters_that_control_a_terminal_are_left_out() -> None:
    logger, written = noisy()
    plain_lines(environment={})
    logger.warning("a\rb\ac")
    assert written.getvalue() == "WARNING  plain: abc\n"


def test_name_of_logger_is_left_out() -> None:
    logger, written = noisy()
    plain_lines(environment={})
    logger.warning("at 13:51:26 completed [llama_stack_responses.ended] tokens=3")
    assert written.getvalue() == "WARNING  plain: at 13:51:26 completed  tokens=3\n"


def test_level_of_structlog_is_left_out_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    logger, written = noisy()
    renderer = structlog.dev.ConsoleRenderer(colors=False)
    chain = [structlog.stdlib.add_log_level]
    logger.handlers[0].setFormatter(structlog.stdlib.ProcessorFormatter(renderer, foreign_pre_chain=chain))
    logger.warning("words")
    before = written.getvalue()
    plain_lines(environment={})
    render = Mock()
    monkeypatch.setattr(HostHandler, "render_message", render)
    logger.warning("words")
    assert written.getvalue().split() == before.split() * 2
    render.assert_not_called()


class TestLinesOfStructlog:
    """The lines of a handler with structlog's formatter, as the hosts set it up."""

    @staticmethod
    def both(renderer: Any) -> tuple[logging.Logger, StringIO, StringIO]:
        """Return a logger, and the same lines as laid out by structlog and as written for it."""
        logger, written = noisy()
        shared: list[Any] = [
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
            lambda _, __, fields: {**fields, "timestamp": "2026-11-29T11:00:00Z"},
        ]
        last = [structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer]
        formatter = structlog.stdlib.ProcessorFormatter(processors=last, foreign_pre_chain=shared)
        [handler] = logger.handlers
        handler.setFormatter(formatter)
        plain_lines(environment={})
        laid_out = StringIO()
        other = logging.StreamHandler(laid_out)
        other.setFormatter(formatter)
        logger.addHandler(other)
        return logger, written, laid_out

    def test_line_has_words_of_structlog_without_its_layout(self) -> None:
        logger, written, laid_out = self.both(structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0))
        extra = {"tokens": 3, "model": "a b", "nothing": None, "plain": "x", "note": "it's", "pair": "a=b", "empty": ""}
        logger.warning("%s [0-9] ended", "response", extra=extra)
        logger.warning("without fields")
        expected = laid_out.getvalue().replace("[warning  ] ", "").replace(" [plain]", "")
        assert [line.split() for line in written.getvalue().splitlines()] == [
            ["WARNING", *line.split()] for line in expected.splitlines()
        ]

    def test_line_has_the_number_of_its_process(self) -> None:
        logger, written, _ = self.both(structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0))
        for number in (1, 0, None):
            name_process(number)
            logger.warning("words")
        lines = [line.split()[2:] for line in written.getvalue().splitlines()]
        assert lines == [["words", "server_process=1"], ["words", "server_process=0"], ["words"]]

    @pytest.mark.parametrize("known", [True, False])
    def test_structlog_lays_out_only_what_is_not_known(self, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
        logger, written, _ = self.both(structlog.dev.ConsoleRenderer(colors=False, pad_event_to=0 if known else 40))
        logger.handlers = logger.handlers[:1]
        render = create_autospec(
            structlog.dev.ConsoleRenderer.__call__, side_effect=structlog.dev.ConsoleRenderer.__call__
        )
        monkeypatch.setattr(structlog.dev.ConsoleRenderer, "__call__", render)
        logger.warning("words", extra={"tokens": 3})
        assert render.called is not known
        structlog.wrap_logger(
            logger,
            processors=[structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
            wrapper_class=structlog.stdlib.BoundLogger,
        ).warning("of structlog", tokens=4)
        assert render.called
        assert [line.split()[-2:] for line in written.getvalue().splitlines()] == [
            ["words", "tokens=3"],
            ["structlog", "tokens=4"],
        ]


def test_handler_of_other_program_keeps_its_columns() -> None:
    written = StringIO()
    handler = RichHandler(console=Console(file=written, width=100), log_time_format="[the time]")
    logger = logging.getLogger("plain")
    logger.handlers, logger.propagate = [handler], False
    plain_lines(environment={})
    logger.warning("words")
    assert "[the time]" in written.getvalue()
    assert "test_logs.py" in written.getvalue()


@pytest.mark.parametrize(
    ("console", "environment"),
    [({"force_terminal": True}, {}), ({}, {"LLAMA_STACK_LOG_WIDTH": "40"}), ({}, {"OGX_LOG_WIDTH": "40"})],
    ids=["terminal", "llama-stack", "ogx"],
)
def test_line_on_terminal_or_of_set_width_is_laid_out(console: dict[str, Any], environment: dict[str, str]) -> None:
    logger, written = noisy(**console)
    plain_lines(environment)
    logger.error("%s", "long " * 40)
    assert len(written.getvalue().splitlines()) > 3


def test_failure_that_repeats_is_logged_once_a_minute_and_each_new_one_at_once() -> None:
    now = 0.0
    outage = Outage(lambda: now)
    busy, full = OSError("busy"), OSError("full")
    assert [outage.should_log(each) for each in (busy, busy, full, full, busy)] == [True, False, True, False, True]
    now = 59.9
    assert not outage.should_log(OSError("busy"))
    now = 60.0
    assert outage.should_log(busy)
    assert not outage.should_log(busy)
    outage.over()
    assert outage.should_log(busy)
