"""A background response with programs: a lost worker never causes a call to be repeated that may not be repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pytest

from llama_stack_responses.features.programs.runtime import ProgramCall, ProgramTool, Step
from llama_stack_responses.features.programs.tool import ProgramTool as Programs
from llama_stack_responses.items.call_result import CallResult
from llama_stack_responses.items.kinds.mcp import MCP_CALL
from llama_stack_responses.process_pool.time_budget import TimeBudget
from llama_stack_responses.requests.request import CreateRequest
from llama_stack_responses.store.records import Records
from llama_stack_responses.stream.call_kinds import CallKind
from llama_stack_responses.tools.registry import client_tools
from llama_stack_responses.tools.tool_function import Function, Invocation, Outcome, chat_function
from tests.support.inference import Round, call, finish, text
from tests.support.leases import requeue_stalled
from tests.support.records import WatchedRecords
from tests.support.waiting import turns
from tests.unit.jobs.harness import ID, PATIENCE, ProcessHarness

type Json = dict[str, Any]

STAGES: Final = (("lookup", ["a", "b"]), ("lookup", ["c"]), ("ask", ["d"]))
"""The calls that the program makes, with the arguments of each; each stage follows the results of the one before it."""

PROGRAM: Final = call("run_program", "1", '{"code": "..."}')


class ScriptedRuntime:
    """Runs the program of `STAGES`."""

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
        await asyncio.sleep(0)
        calls: list[ProgramCall] = []
        for name, arguments in STAGES:
            first = len(calls)
            calls += [ProgramCall(name, json.dumps({"query": each})) for each in arguments]
            if waiting := [number for number in range(first, len(calls)) if number not in results]:
                return Step(calls, waiting, "", None)
        return Step(calls, [], ",".join(results[number].value for number in sorted(results)), "completed")


class Lookup:
    """A hosted tool of programs, which answers with its argument.

    Attributes:
        begun: the arguments of its calls.
    """

    def __init__(self, repeatable: bool) -> None:
        self.begun: list[str] = []
        self._repeatable = repeatable

    def make(self, _: Json, __: CreateRequest) -> Lookup:
        """Return the tool for an entry of a request."""
        return self

    def functions(self) -> Sequence[Function]:
        """Return the single function."""
        fields = {"server_label": "s", "name": "lookup", "approval_request_id": None}
        kind = CallKind(MCP_CALL, lambda *_: fields, hosted=True)
        chat = chat_function("lookup", None, None)
        return [Function(chat, kind, self._run, repeatable=self._repeatable, callers=frozenset({"programmatic"}))]

    async def _run(self, invocation: Invocation) -> Outcome:
        query = (await invocation.arguments())["query"]
        self.begun.append(query)
        await turns(3)
        return Outcome(query, {"output": query})

    def handles(self) -> Collection[str]:
        """Return no handles."""
        return ()

    def chosen(self, choice: Json) -> Collection[str]:
        """Return no names."""
        return ()


TOOLS: Final[list[Json]] = [
    {"type": "programmatic_tool_calling"},
    {"type": "web_search"},
    {"type": "function", "name": "ask", "allowed_callers": ["programmatic"]},
]


class JobHarness:
    """One process with the tools of programs."""

    def __init__(self, records: Records, *rounds: Round, repeatable: bool) -> None:
        self.lookup = Lookup(repeatable)
        runtime: Any = ScriptedRuntime()
        makers = {
            **client_tools(),
            "web_search": self.lookup.make,
            "programmatic_tool_calling": lambda *_: Programs(runtime),
        }
        self.harness = ProcessHarness(records, *rounds, makers=makers)


@pytest.mark.extended
@pytest.mark.parametrize("repeatable", [True, False], ids=["repeatable", "once"])
@pytest.mark.parametrize("read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("steps", range(0, 140, 5))
async def test_next_worker_repeats_only_repeatable_calls_of_a_program(
    records: WatchedRecords, steps: int, read: bool, repeatable: bool
) -> None:
    first = JobHarness(records, [text("Let me look."), PROGRAM, finish("tool_calls")], repeatable=repeatable)
    await first.harness.submit(first.harness.background_jobs(), tools=TOOLS)
    reader = asyncio.create_task(first.harness.read()) if read else None
    task = asyncio.create_task(first.harness.runner(await first.harness.claim("dies")).run())
    await turns(steps)
    task.cancel()
    await asyncio.wait([task])
    await requeue_stalled(first.harness.jobs)
    checkpoint = await first.harness.jobs.checkpoint(ID)
    second = JobHarness(
        records,
        *[[text("Let me look."), PROGRAM, finish("tool_calls")]] * (1 - (checkpoint.rounds if checkpoint else 0)),
        repeatable=repeatable,
    )
    if checkpoint:
        await second.harness.run_job("lives")
    final = await second.harness.result(taken_over=True)
    if reader:
        async with asyncio.timeout(PATIENCE):
            assert await reader == await second.harness.event_log.read_all(ID, -1)
    assert final["status"] == "completed"
    calls = [item for item in final["output"] if item["type"] == "mcp_call"]
    assert all(item["status"] in ("completed", "failed", "incomplete") for item in calls)
    assert all(item["output"] or item["error"] or item["status"] == "incomplete" for item in calls)
    completed = [json.loads(item["arguments"])["query"] for item in calls if item["status"] == "completed"]
    assert len(completed) == len(set(completed)), "a finished call was repeated"
    assert repeatable or not {*first.lookup.begun} & {*second.lookup.begun}, "a call that may have run was run again"
    asked = [item for item in final["output"] if item["type"] == "function_call"]
    if final["output"][-1]["type"] != "program_output":
        [ask] = asked
        assert json.loads(ask["arguments"]) == {"query": "d"}
        assert ask["status"] == "completed"
