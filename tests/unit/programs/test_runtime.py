"""Programs: what they see, how they go on after calls, and how they end. They run in real worker processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from llama_stack_responses.programs.runtime import CallResult, ProgramRuntime, ProgramTool, Step

STARTED_MS = 1_700_000_000_000
TOOLS = (
    ProgramTool("search", hosted=True),
    ProgramTool("fetch", hosted=True),
    ProgramTool("ask", hosted=False),
    ProgramTool("name with-dash", hosted=False),
)


class Programs:
    """Runs programs with the same tools, time and seed."""

    def __init__(self, pool: WorkerPool) -> None:
        self._runtime = ProgramRuntime(pool)

    async def step(self, code: str, results: Mapping[int, CallResult] | None = None) -> Step:
        return await self._runtime.step(
            code, owner="ann", started_ms=STARTED_MS, seed="resp_1", tools=TOOLS, results=results or {}
        )

    async def output(self, code: str) -> str:
        """Return the output of a program that completes without calls."""
        step = await self.step(code)
        assert step.ended == "completed", step
        return step.output


@pytest.fixture
async def programs() -> AsyncIterator[Programs]:
    pool = WorkerPool(PoolLimits())
    yield Programs(pool)
    await pool.close()


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("", ""),
        ("return 5", "5"),
        ("text('a'); text({b: [1]}); return 'c'", 'a\n{"b":[1]}\nc'),
        ("const text = 1; const tools = 2; return text + tools", "3"),
        (
            "text(undefined); text(10n); text(new TypeError('x')); text(Symbol('y'))",
            "undefined\n10\nTypeError: x\nSymbol(y)",
        ),
        (
            "console.log('a', 1, [2]); console.warn(); console.info('b'); console.error('c'); console.debug('d')",
            "a 1 [2]\n\nb\nc\nd",
        ),
        ("function f() { return 1 }\nclass A {}\nreturn f() // a comment", "1"),
        ("x = 1; return await Promise.resolve(x)", "1"),
        ("return 'nul \\0 é 😀'", "nul \0 é 😀"),
        ("return '\\ud800'", "\ufffd"),
    ],
)
async def test_program_writes_output(programs: Programs, code: str, output: str) -> None:
    assert await programs.output(code) == output
