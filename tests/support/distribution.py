"""Which tests a process of pytest-xdist runs together: those of a file, and those that drive a browser.

The latter share a stack with the page and a browser, so that each starts once.
"""

from typing import Final

from xdist.scheduler import LoadFileScheduling

BROWSER: Final = "tests/integration/browser/"


class FileScheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
    """`--dist=loadfile`, in which the tests of a browser are like those of a file."""

    def _split_scope(self, nodeid: str) -> str:
        return BROWSER if nodeid.startswith(BROWSER) else str(super()._split_scope(nodeid))
