"""Lines of disabled levels are dropped before their fields are computed, also by loggers that were used before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from llama_stack_responses.host.patches import skip_disabled_levels


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The events that structlog processes, configured as the hosts configure it."""
    processed: list[str] = []

    def process(_: Any, __: str, event: Any) -> Any:
        processed.append(event["event"])
        return event

    before = structlog.get_config()
    structlog.configure(
        processors=[process, structlog.stdlib.render_to_log_kwargs],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    yield processed
    structlog.configure(**before)


def test_line_of_disabled_level_is_not_processed(lines: list[str], caplog: pytest.LogCaptureFixture) -> None:
    logger = structlog.get_logger("some.host")
    caplog.set_level(logging.INFO, "some.host")
    logger.debug("first")
    assert lines == ["first"]
    skip_disabled_levels()
    skip_disabled_levels()
    logger.debug("second")
    logger.info("third")
    caplog.set_level(logging.DEBUG, "some.host")
    logger.debug("fourth")
    assert lines == ["first", "third", "fourth"]
    assert caplog.messages == ["third", "fourth"]


def test_loggers_of_other_kind_are_left_alone(lines: list[str]) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory())
    skip_disabled_levels()
    assert structlog.stdlib.filter_by_level not in structlog.get_config()["processors"]
    assert not lines
