"""The demo's terminal output: plain text, or colour and progress on an interactive terminal."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

WATCHED = sys.stdout.isatty()
COLOURED = WATCHED and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
REDRAW_SECONDS = 0.2


def _styled(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURED else text


def bold(text: str) -> str:
    """Format a heading."""
    return _styled("1", text)


def dim(text: str) -> str:
    """Format secondary text, such as code."""
    return _styled("2", text)


def error(text: str) -> None:
    """Print an error."""
    print(_styled("31", text) if sys.stderr.isatty() else text, file=sys.stderr, flush=True)


@contextmanager
def progress(text: str) -> Iterator[None]:
    """Show that `text` is in progress during the block, with the seconds on an interactive terminal."""
    if not WATCHED:
        print(f"{text} ...", flush=True)
        yield
        return
    done = threading.Event()
    drawer = threading.Thread(target=_draw, args=(text, done), daemon=True)
    drawer.start()
    try:
        yield
    finally:
        done.set()
        drawer.join()
        print(flush=True)


def _draw(text: str, done: threading.Event) -> None:
    for tick in count():
        print(f"\r{text} ... {int(tick * REDRAW_SECONDS)} s", end="", flush=True)
        if done.wait(REDRAW_SECONDS):
            return
