"""Programmatic tool calling: the model writes a program that calls tools, and sees only what the program writes.

A program runs until it has ended or waits for calls. The server runs those of hosted tools, and the program goes on.
When it waits only for the client, the response ends; the request that brings the outputs continues it. Each step runs
the program anew from its start with the results so far, so nothing but the items of the conversation keeps its state.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final

import orjson

from ...concurrency.offloading import in_thread_if_large
from ...core.program_names import PROGRAMS, RUN_PROGRAM
from ...core.shapes import object_of, string
from ...core.types import Json
from ...items.program_calls import ProgramRecord, fingerprint, opened_fingerprint, unfinished_programs
from ...stream.call_kinds import CallKind, ServerCall, by_call_id
from ...tools.tool import NeedsPreparation, RunsPrograms
from ...tools.tool_function import Function, Invocation, ItemReporter, Outcome, chat_function, validated_arguments
from ...tools.tool_history import ToolHistory
from .kinds import CODE_CHARACTERS, FORM, OUTPUT_FORM
from .program_run import Ending, Program, ProgramRun
from .runtime import ProgramRuntime

_DESCRIPTION: Final = """\
Runs a JavaScript program that calls tools, and returns what it writes. Use it for several calls of tools that depend \
on each other or can run at the same time, and to filter, join or count their results: they stay in the program.
The code is the body of an async function. `await tools.NAME(arguments)` calls a tool; `tools["NAME"]` where the name \
is no identifier. Start independent calls together, with `Promise.all`. A call that fails throws. `text(value)` writes \
a value, and so does `return value`. Await what you start: an error in a promise that is not awaited is lost. There is \
no network, no file system, no module, and no state from one program to the next."""

_PARAMETERS: Final[Json] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "The JavaScript code."}},
    "required": ["code"],
    "additionalProperties": False,
}
_ARGUMENTS: Final = object_of({"code": string(0, CODE_CHARACTERS)}, "code")

_FOREIGN: Final = "Error: This server did not make the fingerprint of this program. Write a new program."


class ProgramTool(NeedsPreparation, RunsPrograms):
    """A `{type: programmatic_tool_calling}` tool of a request.

    Args:
        runtime: runs the programs.
    """

    def __init__(self, runtime: ProgramRuntime) -> None:
        self._runtime = runtime
        self._records: Mapping[str, ProgramRecord] = {}
        self._description = _DESCRIPTION
        self.functions_of_programs: Mapping[str, Function] = {}
        self.unfinished: Collection[str] = ()

    async def prepare(self, history: ToolHistory, _: ItemReporter) -> None:
        """Restore the programs that wait for the client."""
        self._records = await in_thread_if_large(partial(unfinished_programs, history.items), history.items)
        self.unfinished = [call_id for call_id, record in self._records.items() if record.continues]

    async def describe(self) -> None:
        """Describe to the model what its programs can call."""
        functions = self.functions_of_programs
        of = [(function.chat, function.output_schema) for function in functions.values()]
        self._description = await in_thread_if_large(partial(_described, functions), of)

    def functions(self) -> Sequence[Function]:
        """Return the single function. It is repeatable: a program that runs again takes the results of its calls."""
        chat = chat_function(RUN_PROGRAM, self._description, _PARAMETERS)
        kind = CallKind(FORM, by_call_id, whole=_whole, hosted=True)
        return (Function(chat, kind, self._run, repeatable=True, composite=True),)

    def handles(self) -> Collection[str]:
        """Return the handle of its type."""
        return (PROGRAMS,)

    def chosen(self, choice: Json) -> Collection[str]:
        """Return the function if the choice names the tool's type."""
        return [RUN_PROGRAM] if choice["type"] == PROGRAMS else []

    async def _run(self, invocation: Invocation) -> Outcome | None:
        call = invocation.call
        before = self._before(call)
        item = before[0] if before else invocation.item
        began = opened_fingerprint(item["fingerprint"], item["code"])
        if began is None:
            return _ended(call.call_id, Ending(_FOREIGN, failed=True), invocation.reporter)
        program = Program(item["code"], began.started_ms, began.digest, self.functions_of_programs)
        run = ProgramRun(program, call.call_id, before, invocation.reporter, self._runtime)
        ending = await run.finish()
        return None if ending is None else _ended(call.call_id, ending, invocation.reporter)

    def _before(self, call: ServerCall) -> Sequence[Json]:
        """Return the items of a program that an earlier response began."""
        if call.index is not None:
            return ()
        record = self._records[call.call_id]
        return [record.item, *record.calls, *record.outputs.values()]


def _ended(call_id: str, ending: Ending, reporter: ItemReporter) -> Outcome:
    """Show a program's output to the client, and return it for the model."""
    # No await from here on: the client's view of the end and the end itself are stored in one commit.
    status = "incomplete" if ending.failed else "completed"
    reporter.show(OUTPUT_FORM, {"call_id": call_id, "result": ending.output, "status": status})
    return Outcome(ending.output or "(The program wrote nothing.)", failed=ending.failed)


def _whole(arguments: str) -> Json | None:
    value = validated_arguments(arguments, _ARGUMENTS)
    if value is None:
        return None
    return {"code": value["code"], "fingerprint": str(fingerprint(value["code"], time.time_ns() // 1_000_000))}


def _described(functions: Mapping[str, Function]) -> str:
    """Return the description for the model, with what programs can call."""
    listed = [_declared(name, function) for name, function in functions.items()]
    return "\n".join([_DESCRIPTION, "The tools:" if listed else "No tool can be called by a program now.", *listed])


def _declared(name: str, function: Function) -> str:
    """Return the declaration of a function: its name, its arguments, what it returns, and what it does."""
    form = function.chat[function.chat["type"]]
    takes = "a string" if function.chat["type"] == "custom" else _json(form["parameters"])
    returns = "a string" if function.output_schema is None else _json(function.output_schema)
    described = form.get("description")
    return "\n".join(filter(None, [f"- {name}", described, f"Takes: {takes}", f"Returns: {returns}"]))


def _json(schema: Json) -> str:
    return orjson.dumps(schema).decode()
