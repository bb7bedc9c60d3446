"""The check that a server has logged no traceback."""

from pathlib import Path
from textwrap import indent

import pytest

from tests.support.tracebacks import BEFORE, MAX_LINES, assert_no_traceback

FRAME = '  File "a.py", line {}, in run\n'
OF_PYTHON = f"Traceback (most recent call last):\n{FRAME.format(1)}ValueError: no\n"
IN_BOX = "╭──── Traceback (most recent call last) ────╮\n│ a.py:1 in run │\n╰──────╯\nValueError: no\n"
OF_RECORD = indent(OF_PYTHON, " " * 9)
"""As the lines after the first one of a record."""


@pytest.mark.parametrize("traceback", [OF_PYTHON, IN_BOX, OF_RECORD])
def test_error_begins_with_the_exception_and_shows_its_traceback(tmp_path: Path, traceback: str) -> None:
    (tmp_path / "log").write_text("early\n" + "before\n" * BEFORE + traceback + "after\n")
    with pytest.raises(AssertionError) as caught:
        assert_no_traceback(tmp_path / "log")
    expected = "a traceback was logged: ValueError: no\n" + "before\n" * BEFORE + traceback
    assert str(caught.value) == expected.removesuffix("\n")


def test_error_shows_the_last_lines_of_a_long_traceback(tmp_path: Path) -> None:
    frames = [FRAME.format(number) for number in range(MAX_LINES + 1)]
    (tmp_path / "log").write_text("Traceback (most recent call last):\n" + "".join(frames))
    with pytest.raises(AssertionError) as caught:
        assert_no_traceback(tmp_path / "log")
    assert str(caught.value).splitlines()[2:] == [frame.removesuffix("\n") for frame in frames[1:]]


def test_lines_before_the_start_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(OF_PYTHON)
    begin = log.stat().st_size
    assert_no_traceback(log, begin)
    log.write_text(OF_PYTHON + "after\n" + OF_PYTHON)
    with pytest.raises(AssertionError, match=r"\nafter\nTraceback"):
        assert_no_traceback(log, begin)
