"""Runs one step of a program, in a worker process that has no rights left: a program is untrusted code."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

# The package `quickjs` around this module starts a thread when it is imported, and this process is forked.
from _quickjs import Context, JSException

from ...core.types import Json
from .confinement import confine

MEMORY_BYTES: Final = 64 << 20
"""Memory of a program: eight times the results of its calls."""
STACK_BYTES: Final = 1 << 20
"""Stack of a program: some thousand nested calls, an eighth of what a process has on Linux."""

_REPORT_SECONDS: Final = 1.0
_REPORT_BYTES: Final = 64 << 20
"""Time and memory for the report, in addition: a program at its limits still shows what it did."""
_PROCESS_SECONDS: Final = 3
"""Processor time of the process, in addition. QuickJS notices its own limit late in some long operations."""

_ENVIRONMENT: Final = Path(__file__).with_name("environment.js").read_text().replace("\n", " ")


def read(content: bytes, options: Json) -> dict[str, str]:
    """Return the report of a step, or the reason for failure as `problem`.

    `report` is JSON: calls as indexes of their tools and lengths of their arguments, the indexes of those that wait,
    and how the program ended. `text` has the arguments of all calls and then the output.

    Args:
        content: the settings of the environment, and the values of the results.
        options: `settings_bytes`; `cpu_seconds` of the program; `results`, a list of indexes, kinds and bytes.
    """
    seconds = options["cpu_seconds"]
    if not confine(math.ceil(seconds) + _PROCESS_SECONDS):
        return {"problem": "unconfined"}
    at = options["settings_bytes"]
    program = _Program(content[:at].decode(), seconds)
    for index, kind, size in options["results"]:
        program.give(index, kind, content[at : at + size].decode())
        at += size
    report = json.loads(program.step())
    texts = [arguments for _, arguments in report["calls"]]
    report["calls"] = [[tool, len(arguments)] for tool, arguments in report["calls"]]
    texts.append(report.pop("output"))
    return {"report": json.dumps(report), "text": "".join(texts)}


class _Program:
    """A program in its context.

    Args:
        settings: the settings of its environment, as JSON.
        seconds: its processor time.
    """

    def __init__(self, settings: str, seconds: float) -> None:
        self._seconds = seconds
        self._context = Context()
        self._context.set_memory_limit(MEMORY_BYTES)
        self._context.set_max_stack_size(STACK_BYTES)
        self._command = self._context.eval(_ENVIRONMENT)(settings)

    def give(self, index: int, kind: str, value: str) -> None:
        """Give the program the result of a call."""
        self._command("result", index, kind, value)

    def step(self) -> str:
        """Run the program until it has ended or waits for calls without results; return what it did, as JSON."""
        failure = self._failure()
        self._context.set_time_limit(_REPORT_SECONDS)
        self._context.set_memory_limit(MEMORY_BYTES + _REPORT_BYTES)
        if failure:
            self._command("abort", *failure)
        report: str = self._command("report")
        return report

    def _failure(self) -> tuple[str, str] | None:
        """Run the program as far as possible; return why it could not go on, and where it was."""
        deadline = time.process_time() + self._seconds
        too_long = f"Error: The program took more than {self._seconds:g} seconds of processor time."
        try:
            self._enter(deadline, self._command, "run")
            while True:
                while self._enter(deadline, self._context.execute_pending_job):
                    pass
                if not self._enter(deadline, self._command, "advance"):
                    return None
        except JSException as error:
            what, _, stack = str(error).partition("\n")
            return (what if time.process_time() < deadline else too_long), stack
        except TimeoutError:
            return too_long, ""

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
