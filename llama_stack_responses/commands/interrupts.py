"""What Ctrl-C does in a command: it ends the process silently, in order while the command works, and else at once."""

from __future__ import annotations

# `signal` imports `enum`, which takes as long as the rest of the program's first steps.
import _signal as signal  # type: ignore[import-not-found,unused-ignore]
import os

STATUS = 130
"""Exit status of a command that Ctrl-C ended: 128, and the number of the signal."""


def end_at_once() -> None:
    """Let Ctrl-C end the process from now on, unless it is ignored.

    While modules are imported, a `KeyboardInterrupt` would be printed, or be lost in a callback of the interpreter.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def end_in_order() -> None:
    """Let Ctrl-C raise `KeyboardInterrupt` from now on, if it would end the process."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end(*_: object) -> None:
    os._exit(STATUS)
