"""Runs programs that models write to call tools, step by step.

No process is kept between steps. Each step runs the whole program again from its start, with the results of its calls
so far, until the program has ended or waits for calls without results. So a program can go on in a later request, on
any server. The same code, seed, time, tools and results always make the same calls in the same order.

When nothing else in the program can run, its waiting calls get their results: those of hosted tools if any waits, else
those of client tools. All of them get their results together, in the order of the calls. So the order in which
the results arrived makes no difference.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from ..concurrency.offloading import computed
from ..core.program_limits import CODE_CHARACTERS
from ..core.surrogates import without_surrogates
from ..process_pool.pool import Task, WorkerPool
from .confinement import unconfinable

CALLS: Final = 256
"""Calls of a program. Each step runs the program again, so their number bounds the steps, too."""
ARGUMENT_CHARACTERS: Final = 65_536
"""Characters of the arguments of a call: large texts are passed by name, not in calls."""
ALL_ARGUMENTS_CHARACTERS: Final = 1 << 20
"""Characters of the arguments of all calls, which each step reports."""
OUTPUT_CHARACTERS: Final = 1 << 20
"""Characters of a program's output, more than any model reads."""
RESULTS_CHARACTERS: Final = 8 << 20
"""Characters of the results of all calls, which each step gets."""
STEP_SECONDS: Final = 15.0
"""Time of a step, on a busy machine: three times the processor time that a program has."""

_FAILURE_CHARACTERS: Final = 4_096
"""Characters of the line with the reason for a failure, which follows the output."""
_Arguments = Annotated[str, Field(max_length=ARGUMENT_CHARACTERS)]
_TASK: Final = "llama_stack_responses.programs.program_task"
_LISTED_NAMES: Final = 50
"""Names of tools in the error for an unknown one."""
_ESCAPED_BYTES: Final = 6
"""Maximum bytes of a character in JSON."""
_REPORT_BYTES: Final = _ESCAPED_BYTES * (ALL_ARGUMENTS_CHARACTERS + OUTPUT_CHARACTERS) + (1 << 20)
_BROKEN: Final = "Error: The process of the program ended unexpectedly, perhaps because it used too much memory."
_FAILURES: Final = {
    "seconds": f"Error: The program took more than {STEP_SECONDS:g} seconds.",
    "unconfined": "Error: This server cannot run programs.",
}
"""What the model reads where the worker process did not report, by the problem of its task."""


@dataclass(frozen=True, slots=True)
class ProgramTool:
    """A tool that a program can call.

    Attributes:
        name: its name as a property of `tools`; any text.
        hosted: whether this server runs it; otherwise the client does.
    """

    name: str
    hosted: bool


@dataclass(frozen=True, slots=True)
class CallResult:
    """The result of a call.

    Attributes:
        kind: what the program gets: the text as a string, the value of the JSON, or an `Error` with the message.
        value: the text, the JSON, or the message.
    """

    kind: Literal["text", "json", "error"]
    value: str


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """A call that a program made.

    Attributes:
        name: name of the tool.
        arguments: its argument as JSON; `{}` if there was none.
    """

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Step:
    """How far a program came.

    Attributes:
        calls: all calls that the program made since its start. Empty if its process did not report.
        waiting: indexes of the calls without results for which the program waits; empty if it has ended.
        output: everything that the program wrote since its start; the last line has the reason if it failed.
        ended: how the program ended; None if it waits.
    """

    calls: Sequence[ProgramCall]
    waiting: Sequence[int]
    output: str
    ended: Literal["completed", "failed"] | None


class ProgramRuntime:
    """Runs steps of programs in worker processes.

    Args:
        pool: the worker processes.

    Attributes:
        unavailable: why this system cannot run programs; None if it can.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self.unavailable: Final = unconfinable() or _engine_missing()

    async def step(
        self,
        code: str,
        *,
        owner: Hashable,
        started_ms: int,
        seed: str,
        tools: Sequence[ProgramTool],
        results: Mapping[int, CallResult],
    ) -> Step:
        """Run a program until it has ended or waits for calls without results.

        A program that fails, exceeds a limit or breaks its process is a step that has `failed`.

        Args:
            code: body of an async function in JavaScript.
            owner: who shares the worker processes.
            started_ms: the time that the program reads, in milliseconds since 1970.
            seed: what its random numbers depend on.
            tools: what it can call; with distinct names.
            results: results of its calls so far, by their indexes.

        Raises:
            ApiError: 429, too many tasks of this owner wait; 503, no worker process can be started.
        """
        if len(code) > CODE_CHARACTERS:
            return _failed(f"Error: The program is longer than {CODE_CHARACTERS} characters.")
        if sum(len(each.value) for each in results.values()) > RESULTS_CHARACTERS:
            return _failed(f"Error: The results of the calls are longer than {RESULTS_CHARACTERS} characters.")
        settings = _settings(started_ms, seed, tools)
        task = await computed(partial(_task, code, settings, results), code, [each.value for each in results.values()])
        answer = await self._pool.run(task, owner)
        if "text" not in answer:
            return _failed(_FAILURES.get(answer.get("problem", ""), _BROKEN))
        return await computed(partial(_step, answer["text"], tools, results.keys()), answer["text"])


class _Report(BaseModel):
    """What a worker process reports of a step: calls as indexes of tools and arguments, and the fields of `Step`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    calls: Annotated[list[tuple[NonNegativeInt, _Arguments]], Field(max_length=CALLS)]
    waiting: Annotated[list[int], Field(max_length=CALLS)]
    output: Annotated[str, Field(max_length=OUTPUT_CHARACTERS + _FAILURE_CHARACTERS)]
    ended: Literal["completed", "failed"] | None


def _engine_missing() -> str | None:
    try:
        import _quickjs  # noqa: F401
    except ImportError:
        return "the package quickjs-ng is not installed"
    return None


def _settings(started_ms: int, seed: str, tools: Sequence[ProgramTool]) -> dict[str, Any]:
    """Return what `environment.js` reads."""
    digest = hashlib.blake2b(seed.encode("utf-8", "replace"), digest_size=16).digest()
    return {
        "started_ms": started_ms,
        "seed": [int.from_bytes(digest[at : at + 4], signed=True) for at in range(0, len(digest), 4)],
        "tools": [{"name": each.name, "hosted": each.hosted} for each in tools],
        "listed_names": _LISTED_NAMES,
        "calls": CALLS,
        "argument_characters": ARGUMENT_CHARACTERS,
        "all_arguments_characters": ALL_ARGUMENTS_CHARACTERS,
        "output_characters": OUTPUT_CHARACTERS,
    }


def _task(code: str, settings: dict[str, Any], results: Mapping[int, CallResult]) -> Task:
    values = {index: without_surrogates(each.value).encode() for index, each in sorted(results.items())}
    body = without_surrogates(code).encode()
    options = {
        "code_bytes": len(body),
        "results": [[index, results[index].kind, len(value)] for index, value in values.items()],
        "settings": settings,
    }
    return Task(_TASK, b"".join([body, *values.values()]), STEP_SECONDS, _REPORT_BYTES, options)


def _step(text: str, tools: Sequence[ProgramTool], known: Collection[int]) -> Step:
    """Read a report. A program may have taken control of the process that wrote it."""
    try:
        report = _Report.model_validate_json(text)
        calls = [ProgramCall(tools[tool].name, arguments) for tool, arguments in report.calls]
    except (ValidationError, IndexError):
        return _failed(_BROKEN)
    possible = set(range(len(calls))).difference(known)
    if report.waiting != sorted(possible.intersection(report.waiting)) or bool(report.waiting) == bool(report.ended):
        return _failed(_BROKEN)
    return Step(calls, report.waiting, report.output, report.ended)


def _failed(why: str) -> Step:
    return Step(calls=(), waiting=(), output=why, ended="failed")
