"""A plugin that collects garbage at the end of each file, so that what a test has left open fails a test of its file.

A socket that is not closed, and that a cycle of objects holds (as an exception and the frames of its traceback do), is
reported when it is collected. Without this, that would be during any later test, or at the end of the run.

A client of OpenAI that is not closed is always reported. By itself, it closes its connections when it is collected, and
only if its socket is collected before it, which happens now and then, there is a report.

`python -X tracemalloc=25 -m pytest FILE` shows where the object was made.
"""

import gc
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def no_leaks() -> Iterator[None]:
    """Collect the garbage of a module, at its end: first of its fixtures, this one ends last.

    pytest turns what is reported meanwhile into an error of the test.
    """
    # Importing it takes long, and most files do not need it.
    if found := sys.modules.get("openai._base_client"):
        found.SyncHttpxClientWrapper.__del__ = _report_unclosed
    yield
    gc.collect()


def _report_unclosed(client: Any) -> None:
    if not client.is_closed:
        client.close()
        warnings.warn(f"unclosed client of OpenAI, {client!r}", ResourceWarning, source=client, stacklevel=1)


def report_leaks(config: pytest.Config) -> None:
    """Register the plugin."""
    config.pluginmanager.register(sys.modules[__name__], "leaks")
