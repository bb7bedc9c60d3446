"""A program that runs in steps does what it does in one replay, in whatever order the results arrive."""

from __future__ import annotations

import asyncio
import random
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llama_stack_responses.features.programs.runtime import Step
from llama_stack_responses.items.call_result import CallResult
from llama_stack_responses.process_pool.pool import PoolLimits, WorkerPool
from tests.unit.features.programs.program_harness import Programs

NAMES: Final = st.sampled_from(["search", "fetch", "ask", "name with-dash"])
LEAVES: Final = st.one_of(
    st.builds(lambda name, n: f"tools['{name}']([{n}, count++])", NAMES, st.integers(0, 9)),
    st.builds(lambda n: f"new Promise(done => setTimeout(done, {n}, Date.now() + {n}))", st.integers(0, 9)),
    st.just("Promise.resolve(Math.random())"),
    st.builds(lambda n: f"Promise.reject(new Error({n}))", st.integers(0, 9)),
)


def _nested(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    some = st.lists(inner, min_size=1, max_size=4).map(", ".join)
    combined = st.sampled_from(["all", "race", "any", "allSettled"])
    return st.one_of(
        st.builds(lambda how, each: f"Promise.{how}([{each}])", combined, some),
        st.builds(lambda a, b: f"(async () => {{ text(await {a}); return {b} }})()", inner, inner),
        st.builds(
            lambda times, a: f"(async () => {{ for (let i = 0; i < {times}; i++) text(await {a}); return count }})()",
            st.integers(0, 3),
            inner,
        ),
        st.builds(
            lambda a, b, c: f"(async () => text(await {a}).length % 2 ? {b} : {c})()".replace("text(", "shown("),
            inner,
            inner,
            inner,
        ),
        st.builds(lambda a: f"{a}.catch(error => text(error))", inner),
        st.builds(lambda a, b: f"({a}.then(text, text), {b})", inner, inner),
    )


PROGRAMS: Final = st.recursive(LEAVES, _nested, max_leaves=12).map(
    lambda each: f"let count = 0; const shown = v => (text(v), JSON.stringify(v) ?? ''); return await {each}"
)


def result(index: int) -> CallResult:
    """Return the result of a call; every fourth is an error."""
    if index % 4 == 3:
        return CallResult("error", f"no {index}")
    return CallResult("json", f"[{index}]") if index % 2 else CallResult("text", f"r{index}" * (index % 3 + 1))


async def lived(programs: Programs, code: str, chance: random.Random) -> tuple[Step, dict[int, CallResult]]:
    """Run a program in steps. Before each, some of the calls that wait get their results, in any order."""
    results: dict[int, CallResult] = {}
    calls: list[object] = []
    while (step := await programs.step(code, results)).ended is None:
        assert list(step.calls[: len(calls)]) == calls
        calls = list(step.calls)
        for index in chance.sample(step.waiting, chance.randint(1, len(step.waiting))):
            results[index] = result(index)
    return step, results


@pytest.mark.extended
def test_steps_and_replay_do_the_same() -> None:
    pool = WorkerPool(PoolLimits())

    @given(code=PROGRAMS, seed=st.integers(0, 2**32))
    @settings(max_examples=50, deadline=None)
    def compare(code: str, seed: int) -> None:
        async def run() -> None:
            programs, chance = Programs(pool), random.Random(seed)
            step, results = await lived(programs, code, chance)
            again, _ = await lived(programs, code, chance)
            replayed = await programs.step(code, dict(sorted(results.items(), reverse=True)))
            assert step == again == replayed

        runner.run(run())

    with asyncio.Runner() as runner:
        try:
            compare()
        finally:
            runner.run(pool.close())
