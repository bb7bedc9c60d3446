"""A plugin that collects garbage at the end of each file, so that what a test has left open fails a test of its file.

A socket that is not closed, and that a cycle of objects holds (as an exception and the frames of its traceback do), is
reported when it is collected. Without this, that would be during any later test, or at the end of the run.
`python -X tracemalloc=25 -m pytest FILE` shows where the object was made.
"""

import gc
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_leaks() -> Iterator[None]:
    """Collect the garbage of a module, at its end: first of its fixtures, this one ends last.

    pytest turns what is reported meanwhile into an error of the test.
    """
    yield
    gc.collect()


def report_leaks(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(sys.modules[__name__], "leaks")
