"""Runs programs with the same tools, time and seed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from llama_stack_responses.features.programs.runtime import ProgramRuntime, ProgramTool, Step
from llama_stack_responses.items.call_result import CallResult
from llama_stack_responses.process_pool.pool import WorkerPool
from llama_stack_responses.process_pool.time_budget import TimeBudget

STARTED_MS: Final = 1_700_000_000_000
TOOLS: Final = (
    ProgramTool("search", hosted=True),
    ProgramTool("fetch", hosted=True),
    ProgramTool("ask", hosted=False),
    ProgramTool("name with-dash", hosted=False),
    ProgramTool("__proto__", hosted=False),
)


def text(value: str) -> CallResult:
    return CallResult("text", value)


def data(value: str) -> CallResult:
    return CallResult("json", value)


def error(value: str) -> CallResult:
    return CallResult("error", value)


class Programs:
    """Runs programs.

    Args:
        pool: the worker processes.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self.runtime = ProgramRuntime(pool)

    async def step(
        self,
        code: str,
        results: Mapping[int, CallResult] | None = None,
        *,
        seed: str = "resp_1",
        budget: TimeBudget | None = None,
    ) -> Step:
        return await self.runtime.step(
            code,
            started_ms=STARTED_MS,
            seed=seed,
            tools=TOOLS,
            results=results or {},
            budget=budget,
        )

    async def output(self, code: str, *results: CallResult) -> str:
        """Return the output of a program that completes with these results."""
        step = await self.step(code, dict(enumerate(results)))
        assert step.ended == "completed", step
        return step.output

    async def failure(self, code: str, *results: CallResult) -> str:
        """Return the output of a program that fails with these results."""
        step = await self.step(code, dict(enumerate(results)))
        assert (step.ended, list(step.waiting)) == ("failed", []), step
        return step.output

    async def waiting(self, code: str, *results: CallResult) -> list[str]:
        """Return the calls that a program waits for, as `name arguments`."""
        step = await self.step(code, dict(enumerate(results)))
        assert step.ended is None, step
        return [f"{step.calls[each].name} {step.calls[each].arguments}" for each in step.waiting]
