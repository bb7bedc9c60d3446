"""Hostile programs: each bound, changed global objects, and a worker process that a program has taken over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from llama_stack_responses.features.programs import runtime
from llama_stack_responses.features.programs.runtime import ProgramCall, ProgramRuntime
from llama_stack_responses.items.call_result import CallResult
from llama_stack_responses.process_pool.pool import WorkerPool
from tests.unit.features.programs.program_harness import TOOLS, Programs, data, error, text

TIME = "Error: The program took more than 0.5 seconds of processor time."
MEMORY = ("InternalError: out of memory", "Error: The program used too much memory, or threw null.")
ENDED = "Error: The program's process was ended. It used too much memory or processor time."


@pytest.fixture(autouse=True)
def wall_time_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a second of processor time can take many."""
    monkeypatch.setattr(runtime, "STEP_SECONDS", 300.0)


@pytest.fixture
def cpu_time_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "CPU_SECONDS", 0.5)


@pytest.mark.usefixtures("cpu_time_is_short")
@pytest.mark.parametrize(
    "code",
    [
        "tools.ask(); for (;;);",
        "await null; for (;;);",
        *(
            pytest.param(code, marks=pytest.mark.extended)
            for code in (
                "queueMicrotask(() => { for (;;); })",
                "setTimeout(() => { for (;;); }, 1)",
                "for (;;) try { for (;;); } finally { continue }",
                "const again = () => setTimeout(again, 1); again()",
                "const again = () => queueMicrotask(again); again()",
                "/^(a+)+$/.test('a'.repeat(50) + 'b')",
                "tools.search({get a() { for (;;); }})",
                "return {toJSON() { for (;;); }}",
            )
        ),
    ],
)
async def test_time_of_program_is_bounded(programs: Programs, code: str) -> None:
    output = await programs.failure(f"text('a'); {code}")
    assert output.startswith(f"a\n{TIME}")


@pytest.mark.extended  # it computes for seconds
@pytest.mark.usefixtures("cpu_time_is_short")
async def test_time_of_uninterruptible_call_is_bounded(programs: Programs) -> None:
    assert await programs.failure("[].reverse.call({length: 1e15})") == ENDED


async def test_wall_time_of_step_is_bounded(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "STEP_SECONDS", 0.5)
    assert "seconds." in await programs.failure("for (;;);")


@pytest.mark.parametrize(
    "code",
    [
        "const a = []; for (;;) a.push(a.length)",
        "const a = []; for (;;) a.push(new Uint8Array(1e6))",
        "const a = []; for (;;) a.push('x'.repeat(1e6) + a.length)",
        "let a = {}; for (;;) a = new Proxy(a, {})",
        "for (;;) setTimeout(() => {}, 1)",
    ],
)
async def test_memory_of_program_is_bounded(programs: Programs, code: str) -> None:
    output = await programs.failure(f"text('a'); {code}")
    assert output.startswith(tuple(f"a\n{each}" for each in MEMORY))


async def test_program_that_keeps_all_memory_shows_its_output(programs: Programs) -> None:
    code = "text('é'.repeat(1e6)); globalThis.kept = []; try { for (;;) kept.push({}) } catch {}"
    fill = (
        "for (let size = 1e6; size >= 1; size /= 2) try { for (;;) kept.last = [kept.last, 'é'.repeat(size)] } catch {}"
    )
    assert len(await programs.output(f"{code} {fill}")) == 10**6


@pytest.mark.usefixtures("cpu_time_is_short")
async def test_storm_of_promises_is_bounded(programs: Programs) -> None:
    code = "const more = () => { Promise.resolve().then(more); Promise.resolve().then(more) }; more()"
    assert (await programs.failure(code)).startswith((TIME, *MEMORY))


async def test_program_that_catches_lack_of_memory_shows_its_output(programs: Programs) -> None:
    code = "const a = []; try { for (;;) a.push([a.length]) } catch { text('caught') }"
    assert await programs.output(code) == "caught"


@pytest.mark.parametrize(
    "code",
    [
        "const f = () => f() + 1; f()",
        "JSON.parse('['.repeat(1e6))",
        "eval('('.repeat(1e6))",
        "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; await tools.search(a)",
        "const a = {get b() { return this.b }}; a.b",
    ],
)
async def test_recursion_is_bounded(programs: Programs, code: str) -> None:
    assert (await programs.failure(code)).startswith("RangeError: Maximum call stack size exceeded")


@pytest.mark.parametrize(
    "code",
    [
        "const a = 'x'.repeat(2 ** 30)",
        "new ArrayBuffer(2 ** 40)",
        "7n ** 100000000n",
        "new RegExp('(?:'.repeat(1e5) + ')'.repeat(1e5))",
        "/(x+x+)+y/.exec('x'.repeat(5e6))",
        "new Array(1e9).fill(0)",
    ],
)
async def test_huge_value_is_error_in_program(programs: Programs, code: str) -> None:
    assert await programs.output(f"try {{ {code} }} catch {{ return 'caught' }}") == "caught"


async def test_calls_are_bounded(programs: Programs) -> None:
    code = "for (let i = 0; i < 300; i++) try { tools.search(i) } catch (e) { text(e); break }"
    step = await programs.step(code)
    assert (len(step.calls), len(step.waiting)) == (256, 256)
    assert step.output == "RangeError: A program makes at most 256 calls."


@pytest.mark.parametrize(
    "first", ["tools.ask({toJSON() { more(); return 1 }})", "Error.prepareStackTrace = more; tools.ask()"]
)
async def test_calls_within_call_are_bounded(programs: Programs, first: str) -> None:
    step = await programs.step(f"const more = () => {{ for (let i = 0; i < 300; i++) tools.ask(i) }}; {first}")
    assert (len(step.calls), step.ended) == (256, None)


async def test_arguments_are_bounded(programs: Programs) -> None:
    code = "tools.ask('x'.repeat(65534)); tools.ask('x'.repeat(65535))"
    step = await programs.step(f"try {{ {code} }} catch (e) {{ text(e.name) }}")
    assert [len(each.arguments) for each in step.calls] == [65_536]
    assert step.output == "RangeError"


async def test_arguments_of_all_calls_are_bounded(programs: Programs) -> None:
    step = await programs.step("try { for (;;) tools.ask('\"'.repeat(30000)) } catch (e) { text(e.name) }")
    assert [len(each.arguments) for each in step.calls] == [60_002] * 17
    assert step.output == "RangeError"


@pytest.mark.parametrize("piece", ["x", "é", "😀", "\\0"])
async def test_output_is_bounded(programs: Programs, piece: str) -> None:
    output = await programs.output(f"try {{ for (;;) text('{piece}'.repeat(1000)) }} catch {{}} text('end')")
    assert output.endswith("\nend")
    assert 2**20 - 4096 < len(output.encode("utf-16-le")) // 2 <= 2**20


async def test_results_are_bounded(programs: Programs) -> None:
    code = "return (await tools.search()).length + (await tools.ask()).length"
    half = text("é" * 2**22)
    assert await programs.output(code, half, half) == str(2**23)
    output = await programs.failure(code, half, text("x" * (2**22 + 1)))
    assert output == "Error: The results of the calls are longer than 8388608 characters."


async def test_result_that_becomes_too_much_memory_rejects(programs: Programs) -> None:
    code = "try { await tools.search() } catch { return 'caught' }"
    assert await programs.output(code, data("[" + "[],".join([""] * 2**20) + "0]")) == "caught"


async def test_code_is_bounded(programs: Programs) -> None:
    assert await programs.output("return 1".ljust(131_072)) == "1"
    output = await programs.failure("return 1".ljust(131_073))
    assert output == "Error: The program is longer than 131072 characters."


async def test_failure_is_bounded(programs: Programs) -> None:
    output = await programs.failure("text('x'.repeat(2 ** 20 - 1)); throw new Error('y'.repeat(1e6))")
    assert len(output) == 2**20 + 2048 + len(" (line 1)")


# Changed global objects


@pytest.mark.parametrize(
    "tampering",
    [
        "Array.prototype.push = Array.prototype.map = Array.prototype.join = broken",
        "Array.prototype[Symbol.iterator] = broken",
        "Object.defineProperty(Array.prototype, '0', {set: broken})",
        "JSON.stringify = JSON.parse = broken",
        "Object.prototype.toJSON = String.prototype.toJSON = Array.prototype.toJSON = broken",
        "Promise.prototype.then = Promise.resolve = broken",
        "Object.defineProperty(Promise, Symbol.species, {get: broken})",
        "Promise = Error = String = TypeError = RangeError = Math = Reflect = undefined",
        "Function.prototype.call = Function.prototype.apply = Function.prototype.bind = broken",
        "RegExp.prototype.exec = RegExp.prototype[Symbol.replace] = broken",
        "String.prototype.slice = String.prototype.toWellFormed = String.prototype.toString = broken",
        "Object.prototype.get = Object.prototype.set = broken",
        "Object.prototype.writable = Object.prototype.value = 'x'",
        "Object.defineProperty(Object.prototype, 'open', {set: broken, get: broken})",
        "Object.defineProperty(Object.prototype, 'resolve', {set: broken, get: broken})",
        "Object.defineProperty(Object.prototype, '0', {set: broken, get: broken})",
        "Object.prototype[Symbol.toPrimitive] = broken",
        "Reflect.apply = Reflect.construct = Reflect.defineProperty = broken",
        "Error.prepareStackTrace = () => 'mine'",
        "Error.prototype.toString = () => 'mine'; Error.stackTraceLimit = 0",
        "Date.now = Date.prototype.toString = broken; Date = undefined",
        "queueMicrotask = setTimeout = undefined",
        "Number.prototype.toString = String.prototype.valueOf = broken",
        "Object.freeze(Object.prototype); Object.freeze(Array.prototype); Object.freeze(Promise.prototype)",
        "globalThis.__proto__ = null",
        "const all = globalThis; for (const name of Object.getOwnPropertyNames(all)) if (!['text', 'tools'].includes(name)) delete all[name]",
    ],
)
async def test_changed_globals_do_not_reach_report(programs: Programs, tampering: str) -> None:
    code = f"""
    const broken = () => {{ throw 'broken' }}
    {tampering}
    text('a')
    text(await tools.search('b'))
    let caught
    try {{ await tools.ask('c') }} catch (error) {{ caught = error }}
    text(caught.message)
    return 'd'
    """
    step = await programs.step(code, {0: text("x"), 1: error("y")})
    assert list(step.calls) == [ProgramCall("search", '"b"'), ProgramCall("ask", '"c"')], step.output
    assert (step.output, step.ended) == ("a\nx\ny\nd", "completed")


async def test_end_of_program_does_not_depend_on_its_promises(programs: Programs) -> None:
    code = "Object.defineProperty(Promise.prototype, 'constructor', {get() { throw 'broken' }})"
    assert await programs.output(f"{code}; return 'a'") == "a"
    assert await programs.failure(f"{code}; await tools.ask()", text("x")) == "Error: broken"


async def test_program_cannot_change_its_tools(programs: Programs) -> None:
    changes = ["delete tools.search", "tools.search = 1", "Object.defineProperty(tools, 'search', {value: 1})"]
    code = "; ".join(f"try {{ {each} }} catch {{}}" for each in changes)
    assert await programs.waiting(f"{code}; await tools.search(1)") == ["search 1"]


async def test_code_that_closes_its_function_is_only_code(programs: Programs) -> None:
    assert await programs.output("text(1) }); text(2); (async function () {") == "2"


# A worker process that a program has taken over


class FakePool:
    """Gives the same answer to every task."""

    def __init__(self, answer: Mapping[str, str]) -> None:
        self._answer = answer

    async def run(self, *_: object) -> Mapping[str, str]:
        return self._answer


def report(text: str = "", **changes: Any) -> dict[str, str]:
    head = {"calls": [[0, 2]], "waiting": [0], "ended": None}
    return {"report": json.dumps(head | changes), "text": text or "{}out"}


async def read(answer: Mapping[str, str], results: Mapping[int, CallResult] | None = None) -> runtime.Step:
    pool = cast("WorkerPool", FakePool(answer))
    return await ProgramRuntime(pool).step("", started_ms=0, seed="", tools=TOOLS, results=results or {})


async def test_report_is_read() -> None:
    step = await read(report())
    assert (list(step.calls), list(step.waiting), step.output) == ([ProgramCall("search", "{}")], [0], "out")


@pytest.mark.parametrize(
    "answer",
    [
        {"text": ""},
        {"text": "", "report": "["},
        {"text": "", "report": "[]"},
        report(more=1),
        report(calls=[[5, 2]]),
        report(calls=[[-1, 2]]),
        report(calls=[[0, -1]]),
        report(calls=[[0, 65_537]], text="x" * 65_537),
        report(calls=[[0, 6]]),
        report(calls=[["0", 2]]),
        report(calls=[[0, 2, 3]]),
        report(calls=[[0, 0]] * 257),
        report(calls=[[0, 60_000]] * 20, text="x" * 1_200_000),
        report(waiting=[1]),
        report(waiting=[-1]),
        report(waiting=[0, 0]),
        report(waiting=["0"]),
        report(calls=[[0, 1], [0, 1]], waiting=[1, 0]),
        report(waiting=[]),
        report(ended="completed"),
        report(waiting=[], ended="broken"),
        report(waiting=[], ended=1),
        report(text="x" * (2**20 + 2 * 2048 + 3)),
        {"problem": "characters"},
        {"problem": "broken"},
        {"problem": "memory"},
    ],
)
async def test_report_of_other_shape_is_failed_step(answer: Mapping[str, str]) -> None:
    assert await read(answer) == runtime.Step(calls=(), waiting=(), output=ENDED, ended="failed")


async def test_report_that_waits_for_call_with_result_is_failed_step() -> None:
    assert (await read(report(), {0: text("x")})).output == ENDED


async def test_process_that_cannot_be_confined_is_failed_step() -> None:
    assert (await read({"problem": "unconfined"})).output == "Error: This server cannot run programs."
