"""The limit of this process on open files."""

from __future__ import annotations

import resource

from ..logs import get_logger

logger = get_logger(__name__)


def raise_file_limit() -> None:
    """Let this process open as many files as it may.

    Systems give processes 1,024 and let them raise that. A stream takes two: the client's connection and that to the
    model server. Child processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        logger.warning("could not raise the limit on open files from %d to %d: %s", soft, hard, error)
    else:
        logger.info("raised the limit on open files from %d to %d", soft, hard)
