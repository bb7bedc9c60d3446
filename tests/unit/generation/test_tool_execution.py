"""Calls of hosted tools begin in the turns of their users."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from llama_stack_responses.concurrency.fair_yield import FairYield
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.held_output import HeldOutput
from llama_stack_responses.generation.tool_execution import ToolExecution
from llama_stack_responses.stream.call_kinds import ServerCall
from llama_stack_responses.telemetry.instrumentation import Telemetry
from llama_stack_responses.tools.tool_function import Invocation, Outcome, Output
from tests.support.reservations import unlimited
from tests.support.shares import as_user


async def test_call_of_one_user_does_not_wait_for_all_calls_of_another() -> None:
    fair_yield, begun, answers = FairYield(), list[str](), list[Output | None]()

    async def run(invocation: Invocation) -> Outcome:
        begun.append(invocation.call.call_id)
        return Outcome("found")

    async def answered(_: ServerCall, output: Output | None) -> None:
        answers.append(output)

    def calls_of(user: str, number: int) -> asyncio.Task[None]:
        toolset: Any = SimpleNamespace(function=lambda _: SimpleNamespace(run=run, composite=False, repeatable=True))
        execution = ToolExecution(
            toolset, cast("Any", None), EventBuffer(wanted=False), 30, Telemetry(), HeldOutput(unlimited()), fair_yield
        )
        calls = [ServerCall("lookup", user, "{}", closed=True) for _ in range(number)]
        return as_user(user, execution.answer(calls, answered, again=False))

    await asyncio.gather(*(calls_of("many", 10) for _ in range(5)), calls_of("one", 1))
    assert begun.index("one") <= 2
    assert answers == ["found"] * 51
