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
import json
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from ...concurrency.offloading import in_thread_if_large
from ...core.surrogates import without_surrogates
from ...items.call_result import CallResult
from ...process_pool.pool import Task, WorkerPool
from ...process_pool.time_budget import TimeBudget
from .kinds import CODE_CHARACTERS

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
CPU_SECONDS: Final = 5.0
"""Processor time of a step. Programs wait for tools and compute little; each step runs the whole program again."""
STEP_SECONDS: Final = 15.0
"""Time of a step, on a busy machine: three times the processor time that a program has."""

_FAILURE_CHARACTERS: Final = 2_048
"""Characters of the reason for a failure, which follows the output."""
_TASK: Final = "llama_stack_responses.features.programs.program_task"
_LISTED_NAMES: Final = 50
"""Names of tools in the error for an unknown one."""
_BYTES_PER_CHARACTER: Final = 4
"""Maximum bytes of a character in UTF-8."""
_REPORT_BYTES: Final = _BYTES_PER_CHARACTER * (ALL_ARGUMENTS_CHARACTERS + OUTPUT_CHARACTERS + _FAILURE_CHARACTERS)
_BROKEN: Final = "Error: The program's process was ended. It used too much memory or processor time."
_FAILURES: Final = {
    "seconds": f"Error: The program took more than {STEP_SECONDS:g} seconds.",
    "budget": "Error: The programs of this response took too much time.",
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
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def step(
        self,
        code: str,
        *,
        started_ms: int,
        seed: str,
        tools: Sequence[ProgramTool],
        results: Mapping[int, CallResult],
        budget: TimeBudget | None = None,
    ) -> Step:
        """Run a program until it has ended or waits for calls without results.

        A program that fails, exceeds a limit or breaks its process is a step that has `failed`.

        Args:
            code: body of an async function in JavaScript.
            started_ms: the time that the program reads, in milliseconds since 1970.
            seed: what its random numbers depend on.
            tools: what it can call; with distinct names.
            results: results of its calls so far, by their indexes.
            budget: the time for steps that this one shares with others.

        Raises:
            ApiError: 429, too many tasks of this user wait; 503, no worker process can be started.
        """
        if len(code) > CODE_CHARACTERS:
            return _failed(f"Error: The program is longer than {CODE_CHARACTERS} characters.")
        if sum(len(each.value) for each in results.values()) > RESULTS_CHARACTERS:
            return _failed(f"Error: The results of the calls are longer than {RESULTS_CHARACTERS} characters.")
        settings = partial(_settings, code, started_ms, seed, tools)
        content = [code, *(each.name for each in tools), *(each.value for each in results.values())]
        task = await in_thread_if_large(lambda: _task(settings(), results), content)
        answer = await self._pool.run(task, budget)
        if "problem" in answer:
            return _failed(_FAILURES.get(answer["problem"], _BROKEN))
        return _step(answer, tools, results.keys())


_Length = Annotated[int, Field(ge=0, le=ARGUMENT_CHARACTERS)]


class _Report(BaseModel):
    """The head of what a worker process reports; `program_task.read` describes it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    calls: Annotated[list[tuple[NonNegativeInt, _Length]], Field(max_length=CALLS)]
    waiting: Annotated[list[int], Field(max_length=CALLS)]
    ended: Literal["completed", "failed"] | None


def _settings(code: str, started_ms: int, seed: str, tools: Sequence[ProgramTool]) -> bytes:
    """Return what `environment.js` reads, as JSON."""
    digest = hashlib.blake2b(seed.encode("utf-8", "replace"), digest_size=16).digest()
    settings = {
        "code": code,
        "started_ms": started_ms,
        "seed": struct.unpack("=4i", digest),
        "tools": [{"name": each.name, "hosted": each.hosted} for each in tools],
        "listed_names": _LISTED_NAMES,
        "calls": CALLS,
        "argument_characters": ARGUMENT_CHARACTERS,
        "all_arguments_characters": ALL_ARGUMENTS_CHARACTERS,
        "output_characters": OUTPUT_CHARACTERS,
        "failure_characters": _FAILURE_CHARACTERS,
    }
    return json.dumps(settings).encode()


def _task(settings: bytes, results: Mapping[int, CallResult]) -> Task:
    values = {index: without_surrogates(each.value).encode() for index, each in results.items()}
    options = {
        "settings_bytes": len(settings),
        "cpu_seconds": CPU_SECONDS,
        "results": [[index, results[index].kind, len(value)] for index, value in values.items()],
    }
    return Task(_TASK, b"".join([settings, *values.values()]), STEP_SECONDS, _REPORT_BYTES, options)


def _step(answer: Mapping[str, str], tools: Sequence[ProgramTool], known: Collection[int]) -> Step:
    """Read a report. A program may have taken control of the process that wrote it."""
    try:
        report, text = _Report.model_validate_json(answer.get("report", "")), answer["text"]
        names = [tools[tool].name for tool, _ in report.calls]
    except (ValidationError, IndexError):
        return _failed(_BROKEN)
    ends = list(accumulate((length for _, length in report.calls), initial=0))
    possible = set(range(len(names))).difference(known)
    if (
        report.waiting != sorted(possible.intersection(report.waiting))
        or bool(report.waiting) == bool(report.ended)
        or ends[-1] > min(len(text), ALL_ARGUMENTS_CHARACTERS)
        or len(text) - ends[-1] > OUTPUT_CHARACTERS + 2 * _FAILURE_CHARACTERS
    ):
        return _failed(_BROKEN)
    calls = [ProgramCall(name, text[start:end]) for name, (start, end) in zip(names, pairwise(ends), strict=True)]
    return Step(calls, report.waiting, text[ends[-1] :], report.ended)


def _failed(why: str) -> Step:
    return Step(calls=(), waiting=(), output=why, ended="failed")
