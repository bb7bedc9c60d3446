"""Keeps the host from computing log lines that it drops."""

from __future__ import annotations

import structlog
from structlog.stdlib import LoggerFactory, filter_by_level


def skip_disabled_levels() -> None:
    """Have the host's loggers check the level of a line first.

    They otherwise compute its fields and its time, and `logging` drops the result. The host's router and its access
    checks log several lines at level DEBUG for each request.
    """
    config = structlog.get_config()
    processors = config["processors"]
    if isinstance(config["logger_factory"], LoggerFactory) and filter_by_level not in processors:
        # In place, because loggers that were used before have this list.
        processors.insert(0, filter_by_level)
