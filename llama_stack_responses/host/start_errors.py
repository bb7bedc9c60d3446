"""The end of a start that fails because of the user's configuration: one sentence, without the host's traceback."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Final

from ..core.setting_values import WrongConfiguration
from ..lifecycle.siblings import shared_folder
from ..logs import say_instead_of_traceback

_STARTUP_FAILURE: Final = 3
"""Exit status of a worker process with which uvicorn ends all of them; it starts one with another status again."""


@contextmanager
def sentence_last() -> Iterator[None]:
    """Have a process that ends by a `WrongConfiguration` of the block print its sentence last, and no traceback.

    llama-stack lets an exception end the program. OGX passes the text of its traceback to uvicorn's log. A worker
    process of either would print the traceback without asking `sys.excepthook`.
    """
    try:
        yield
    except WrongConfiguration as error:
        if multiprocessing.parent_process():
            sys.stderr.write(f"{error}\n")
            # Those that have started with another content of the file go on.
            raise SystemExit(1 if shared_folder(os.getppid()).exists() else _STARTUP_FAILURE) from None
        sys.excepthook = _print_sentence
        say_instead_of_traceback(str(error))
        raise


def _print_sentence(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, WrongConfiguration):
        sys.stderr.write(f"\n{error}\n")
    else:
        sys.__excepthook__(kind, error, trace)
