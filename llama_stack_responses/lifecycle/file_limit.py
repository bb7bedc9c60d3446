"""The limit of this process on open files."""

from __future__ import annotations

import resource
from typing import Final

from ..logs import get_logger

logger = get_logger(__name__)


_FILES_PER_STREAM: Final = 2
"""The client's connection and that to the model server."""


def raise_file_limit(streams: int) -> None:
    """Let this process open as many files as it may, and warn if they are too few for so many streams.

    Systems give processes 1,024 and let them raise that. Child processes inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _FILES_PER_STREAM * streams
    if hard != resource.RLIM_INFINITY and hard < needed:
        logger.warning(
            "the hard limit on open files is too low for %d streams, which need %d: raise it from %d (`ulimit -Hn`, "
            "`LimitNOFILE` of systemd) or lower `limits.answers.streams`",
            streams,
            needed,
            hard,
        )
    if soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError) as error:
        logger.warning("could not raise the limit on open files from %d to %d: %s", soft, hard, error)
    else:
        logger.info("raised the limit on open files from %d to %d", soft, hard)
