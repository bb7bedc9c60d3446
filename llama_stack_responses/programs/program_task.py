"""Runs one step of a program, in a worker process that has no rights left: a program is untrusted code."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# The package `quickjs` around this module starts a thread when it is imported, and this process is forked.
from _quickjs import Context, JSException

from ..core.types import Json
from .confinement import confine

CPU_SECONDS: Final = 5.0
"""Processor time of a step. Programs wait for tools and compute little; each step runs the whole program again."""
MEMORY_BYTES: Final = 64 << 20
"""Memory of a program: eight times the results of its calls."""
STACK_BYTES: Final = 1 << 20
"""Stack of a program: some thousand nested calls, an eighth of what a process has on Linux."""

_REPORT_SECONDS: Final = 1.0
_REPORT_BYTES: Final = 64 << 20
"""Time and memory for the report, in addition: a program at its limits still shows what it did."""
_LINES_BEFORE: Final = 2
"""Lines that QuickJS puts before the body of a function made from text."""
_FAILURE_CHARACTERS: Final = 2_048

_TOO_LONG: Final = f"Error: The program took more than {CPU_SECONDS:g} seconds of processor time."

_ENVIRONMENT: Final = Path(__file__).with_name("environment.js").read_text().replace("\n", " ")
_LINE: Final = re.compile(r"<input>:(\d+):")


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the report of a step as JSON in `text`, or the reason for failure as `problem`.

    Args:
        content: the code in UTF-8, then the values of the results.
        options: `code_bytes`; `results`, a list of indexes, kinds and sizes in bytes; `settings` for the environment.
    """
    if not confine():
        return {"problem": "unconfined"}
    program = _Program(options["settings"] | {"code": content[: options["code_bytes"]].decode()})
    at = options["code_bytes"]
    for index, kind, size in options["results"]:
        program.give(index, kind, content[at : at + size].decode())
        at += size
    return {"text": program.step()}


class _Program:
    """A program in its context.

    Args:
        settings: what its environment needs.
    """

    def __init__(self, settings: Json) -> None:
        self._context = Context()
        self._context.set_memory_limit(MEMORY_BYTES)
        self._context.set_max_stack_size(STACK_BYTES)
        bounds = {"lines_before": _LINES_BEFORE, "failure_characters": _FAILURE_CHARACTERS}
        self._command = self._context.eval(_ENVIRONMENT)(json.dumps(settings | bounds))

    def give(self, index: int, kind: str, value: str) -> None:
        """Give the program the result of a call."""
        self._command("result", index, kind, value)

    def step(self) -> str:
        """Run the program until it has ended or waits for calls without results; return the report."""
        failure = self._failure()
        self._context.set_time_limit(_REPORT_SECONDS)
        self._context.set_memory_limit(MEMORY_BYTES + _REPORT_BYTES)
        if failure:
            self._command("abort", failure)
        report: str = self._command("report")
        return report

    def _failure(self) -> str | None:
        """Run the program as far as possible; return why it was ended."""
        deadline = time.process_time() + CPU_SECONDS
        try:
            self._enter(deadline, self._command, "run")
            while True:
                while self._enter(deadline, self._context.execute_pending_job):
                    pass
                if not self._enter(deadline, self._command, "advance"):
                    return None
        except JSException as error:
            what, _, stack = str(error).partition("\n")
            if time.process_time() >= deadline:
                what = _TOO_LONG
            return what[:_FAILURE_CHARACTERS] + _place(stack)
        except TimeoutError:
            return _TOO_LONG

    def _enter(self, deadline: float, call: Callable[..., Any], *arguments: str) -> Any:
        """Make one call into the context: its limit on time is for one call.

        Raises:
            TimeoutError: the step has no time left.
        """
        left = deadline - time.process_time()
        if left <= 0:
            raise TimeoutError
        self._context.set_time_limit(left)
        return call(*arguments)


def _place(stack: str) -> str:
    """Return the line of the program in a stack."""
    lines = (int(each) - _LINES_BEFORE for each in _LINE.findall(stack))
    return next((f" (line {each})" for each in lines if each > 0), "")
