"""One run of a program: its steps, and the calls that it makes in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import orjson

from ...concurrency.offloading import in_thread_if_large
from ...core.decoded_arguments import decoded_arguments
from ...core.errors import ApiError
from ...core.types import Json
from ...items.call_result import CUT_OFF, CallResult, failed
from ...items.kinds.custom_tool_call import CUSTOM_INPUT, CUSTOM_TOOL_CALL
from ...items.program_calls import ProgramRecord, unfinished_programs
from ...items.registry import ITEM_KINDS
from ...process_pool.time_budget import TimeBudget
from ...stream.call_kinds import ServerCall
from ...tools.tool_function import Function, ItemReporter, ToolError
from .runtime import ProgramCall, ProgramRuntime, ProgramTool, Step

_SECONDS: Final = 60.0
"""Time of all steps of a program in one response, without the time of its calls: each step runs it from its start."""
_DIFFERENT: Final = (
    "The calls of this program in the conversation are not those that it makes when it runs again: they were changed "
    "or left out. Write a new program."
)


class ProgramError(Exception):
    """A program that cannot go on; the message is for the model."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended.

    Attributes:
        output: what it wrote, and the reason if it failed.
    """

    output: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Program:
    """A program, and what it needs to run the same way again.

    Attributes:
        code: its JavaScript code.
        started_ms: when it began, in milliseconds since the epoch.
        seed: seeds its random numbers.
        functions: what it can call, by name.
    """

    code: str
    started_ms: int
    seed: str
    functions: Mapping[str, Function]


@dataclass(frozen=True, slots=True)
class _Read:
    """A call that a program makes, as the model would make it.

    Attributes:
        function: the function that it calls.
        arguments: the arguments.
        item: what its item says.
    """

    function: Function
    arguments: str
    item: Json


class ProgramRun:
    """Runs a program until it has ended or waits for the client.

    Args:
        program: the program.
        call_id: the `call_id` of its item.
        before: its item, and the items of its calls in earlier responses.
        reporter: makes its calls, and has their items.
        runtime: runs its steps.
    """

    def __init__(
        self,
        program: Program,
        call_id: str,
        before: Sequence[Json],
        reporter: ItemReporter,
        runtime: ProgramRuntime,
    ) -> None:
        self._program, self._call_id, self._before = program, call_id, before
        self._reporter, self._runtime = reporter, runtime
        self._tools = [ProgramTool(name, function.kind.hosted) for name, function in program.functions.items()]
        self._schemas = {each.origin: each.output_schema for each in program.functions.values() if each.origin}
        self._budget = TimeBudget(_SECONDS)
        self._record = self._latest()
        self._results: dict[int, CallResult] = {}
        # For each call that the program has made, the position of its item in its record; None if it was refused.
        self._positions: list[int | None] = []
        self._placed = 0

    async def finish(self) -> Ending | None:
        """Run the program to its end; return None if it waits for the client.

        A program that fails ends when the calls that it has made are answered: the client runs them anyway.
        """
        try:
            step = await self._first()
            while not step.ended:
                if not await self._answer(step):
                    return None
                step = await self._step()
            ending = Ending(step.output, failed=step.ended == "failed")
        except ApiError as error:
            ending = Ending(f"Error: {error.message}", failed=True)
        except (ProgramError, ToolError) as error:
            ending = Ending(f"Error: {error}", failed=True)
        return None if self._awaits_client() else ending

    def _awaits_client(self) -> bool:
        positions = range(len(self._record.calls))
        return len(self._recorded(positions, positions)) < len(positions)

    async def _first(self) -> Step:
        """Run the program with all results that are recorded, if its calls are those that are recorded."""
        items = self._record.calls
        self._results = self._recorded(range(len(items)), range(len(items)))
        step = await self._step()
        if self._results and not await self._are_same(step.calls[: len(items)], items):
            # A refused call has no item, so the numbers of the calls after it differ: give the results one by one.
            self._results = {}
            step = await self._step()
        return step

    async def _step(self) -> Step:
        program = self._program
        return await self._runtime.step(
            program.code,
            started_ms=program.started_ms,
            seed=program.seed,
            tools=self._tools,
            results=self._results,
            budget=self._budget,
        )

    async def _answer(self, step: Step) -> bool:
        """Make the new calls of a step, and take the results that there are; return whether there are any."""
        running: list[ServerCall] = []
        try:
            await self._make(step.calls[len(self._positions) :], running)
        finally:
            await self._reporter.answer_calls(running)
            self._record = self._latest()
        before = len(self._results)
        numbers = [number for number in step.waiting if self._positions[number] is not None]
        positions = [position for number in numbers if (position := self._positions[number]) is not None]
        self._results |= await in_thread_if_large(partial(self._recorded, numbers, positions), self._record.outputs)
        return len(self._results) > before or any(self._positions[number] is None for number in step.waiting)

    async def _make(self, calls: Sequence[ProgramCall], running: list[ServerCall]) -> None:
        """Find the items of these calls, or make the calls; add those that the server runs to `running`.

        Raises:
            ProgramError: the calls are not those that are recorded.
            ToolError: no more tools may be called.
        """
        reads, recorded = await self._read(calls), self._record.calls
        for read in reads:
            number, position = len(self._positions), self._placed
            if isinstance(read, CallResult):
                self._positions.append(None)
                self._results[number] = read
                continue
            self._positions.append(position)
            self._placed += 1
            if position < len(recorded):
                if not _is_same(read, recorded[position]):
                    raise ProgramError(_DIFFERENT)
            elif call := self._reporter.make(read.function, read.arguments, self._call_id):
                running.append(call)

    def _latest(self) -> ProgramRecord:
        """Return the program's record with the calls and outputs so far."""
        output = self._reporter.output()
        present = {item["id"] for item in output}
        before = [item for item in self._before if item.get("id") not in present]
        return unfinished_programs([*before, *output])[self._call_id]

    def _recorded(self, numbers: Iterable[int], positions: Iterable[int]) -> dict[int, CallResult]:
        """Return the results of calls that there are, by the number of the call; their items are at `positions`."""
        results: dict[int, CallResult] = {}
        for number, position in zip(numbers, positions, strict=True):
            item = self._record.calls[position]
            schema = self._schemas.get((item.get("namespace"), item.get("name", "")))
            if result := _result_of(item, self._record.outputs.get(item.get("call_id", "")), schema):
                results[number] = result
        return results

    async def _are_same(self, calls: Sequence[ProgramCall], items: Sequence[Json]) -> bool:
        reads = await self._read(calls)
        return all(
            not isinstance(read, CallResult) and _is_same(read, item)
            for read, item in zip(reads, items[: len(reads)], strict=True)
        )

    async def _read(self, calls: Sequence[ProgramCall]) -> list[_Read | CallResult]:
        """Return the calls as the model would make them, or the errors for those that are refused."""
        functions = self._program.functions
        return await in_thread_if_large(
            lambda: [_read(functions, call) for call in calls], [call.arguments for call in calls]
        )


def _read(functions: Mapping[str, Function], call: ProgramCall) -> _Read | CallResult:
    function = functions.get(call.name)
    if function is None:
        raise ProgramError(f"There is no tool named '{call.name}'.")
    kind = function.kind
    try:
        value = decoded_arguments(call.arguments)
    except ValueError as error:
        return _refused(call, str(error))
    streamed = kind.form.streamed
    if kind.form is CUSTOM_TOOL_CALL and isinstance(value, str):
        value = {CUSTOM_INPUT: value}
    if not isinstance(value, dict):
        return _refused(call, "a string is expected" if kind.form is CUSTOM_TOOL_CALL else "an object is expected")
    arguments = orjson.dumps(value).decode()
    said = kind.whole(arguments) if kind.whole else {}
    if said is None or (kind.decoder and streamed and not isinstance(value.get(streamed.key), str)):
        return _refused(call, "they do not fit the tool")
    if streamed:
        said = {streamed.key: value[streamed.key] if kind.decoder else arguments}
    return _Read(function, arguments, {"type": kind.form.type, **kind.fields(function.name, ""), **said})


def _result_of(call: Json, output: Json | None, schema: Json | None) -> CallResult | None:
    """Return the result of a call; None if the client has not sent it.

    Args:
        call: the item of the call.
        output: the item of its output, if that is one of its own.
        schema: the JSON schema of the value that the output encodes; None for text.
    """
    if take := ITEM_KINDS[call["type"]].result:
        return take(call)
    if output is None:
        # The output of a hosted tool's call follows the call. The client's calls are complete.
        return failed(CUT_OFF) if call.get("status") == "incomplete" else None
    take = ITEM_KINDS[output["type"]].result
    assert take, f"programs cannot read items of the type {output['type']}"
    result = take(output)
    return replace(result, kind="json") if schema is not None and _is_json(result) else result


def _is_json(result: CallResult) -> bool:
    try:
        orjson.loads(result.value)
    except orjson.JSONDecodeError:
        return False
    return True


def _refused(call: ProgramCall, why: str) -> CallResult:
    return failed(f"The arguments of tools.{call.name} are not valid: {why}.")


def _is_same(read: _Read, item: Json) -> bool:
    try:
        return bool(_said(read.item) == _said(item))
    except (KeyError, ValueError):
        return False


def _said(item: Json) -> tuple[Any, ...]:
    """Return what a call says, without what clients leave out or write in another way when they send it back."""
    match item["type"]:
        case "function_call" | "mcp_call" as kind:
            where = item.get("namespace") or item.get("server_label")
            return kind, where, item["name"], orjson.loads(item["arguments"])
        case "custom_tool_call" as kind:
            return kind, item.get("namespace"), item["name"], item["input"]
        case "shell_call" as kind:
            return kind, item["action"]["commands"]
        case "apply_patch_call" as kind:
            return kind, item["operation"]
        case kind:
            return kind, item["code"]
