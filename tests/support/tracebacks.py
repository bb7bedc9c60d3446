"""Fails a test if a server has logged a traceback, and says which one."""

from itertools import takewhile
from pathlib import Path
from typing import Final

BEFORE: Final = 5
"""Lines before a traceback that are shown."""
MAX_LINES: Final = 80
"""Lines of a traceback that are shown: the last ones."""
_CONTINUED: Final = (" ", "╭", "│", "╰")
"""Begins of the lines of a traceback, of Python's and of those in a box. The line with the exception follows them."""


def assert_no_traceback(log: Path, since: int = 0) -> None:
    """Fail if a log has a traceback; the error begins with its exception.

    Args:
        log: the log.
        since: bytes at its beginning that do not count.
    """
    lines = log.read_bytes()[since:].decode(errors="replace").splitlines()
    begin = next((number for number, line in enumerate(lines) if "Traceback" in line), None)
    if begin is None:
        return
    margin = len(lines[begin]) - len(lines[begin].lstrip(" "))
    frames = list(takewhile(lambda line: line[margin:].startswith(_CONTINUED), lines[begin + 1 :]))
    end = begin + 1 + len(frames)
    exception = lines[end : end + 1]
    shown = [*lines[max(begin - BEFORE, 0) : begin + 1], *frames[-MAX_LINES:], *exception]
    raise AssertionError("\n".join([f"a traceback was logged: {''.join(exception).strip()}", *shown]))
