"""Programs: what they see, how they go on after calls, and how they end."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import pytest

from llama_stack_responses.features.programs import feature
from llama_stack_responses.features.programs.runtime import ProgramCall, ProgramTool
from llama_stack_responses.process_pool.time_budget import TimeBudget
from tests.unit.features.programs.program_harness import STARTED_MS, Programs, data, error, text

BOTH = "const [a, b] = await Promise.all([tools.ask(1), tools.search(2)]); return a + b"


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
        ("return 'nul \0 é 😀'", "nul \0 é 😀"),
        ("return '\\ud800'", "\ufffd"),
        ("return '\ud800'", "\ufffd"),
        ("return Object.keys(tools)", '["search","fetch","ask","name with-dash","__proto__"]'),
        (
            "return ['search' in tools, 'other' in tools, typeof tools.toString, typeof tools.then]",
            '[true,false,"function","undefined"]',
        ),
    ],
)
async def test_program_writes_output(programs: Programs, code: str, output: str) -> None:
    assert await programs.output(code) == output


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("await tools.search({q: 'x'})", 'search {"q":"x"}'),
        ("await tools['name with-dash'](['é'])", 'name with-dash ["é"]'),
        ("const { ask } = tools; await ask('x')", 'ask "x"'),
        ("await tools.__proto__(1)", "__proto__ 1"),
        ("await tools.search()", "search {}"),
        ("await tools.search(undefined, 1)", "search {}"),
        ("await tools.search(null)", "search null"),
        ("await tools.search({a: undefined, d: new Date(0)})", 'search {"d":"1970-01-01T00:00:00.000Z"}'),
        ("await tools.search('\\ud800')", 'search "\\ud800"'),
        ("tools.search()", "search {}"),
        ("tools.search(); throw new Error('x')", "search {}"),
        ("async function main() { await tools.search() }\nmain()", "search {}"),
    ],
)
async def test_program_waits_for_call(programs: Programs, code: str, call: str) -> None:
    assert await programs.waiting(code) == [call]


async def test_results_become_values(programs: Programs) -> None:
    code = "for (const name of ['search', 'ask', 'fetch']) try { text(await tools[name]()) } catch (e) { text(e) }"
    output = await programs.output(code, text("a\0é\n"), data('{"b": [1, "\\ud83d\\ude00"]}'), error("c"))
    assert output == 'a\0é\n\n{"b":[1,"😀"]}\nError: c'


async def test_result_of_broken_json_rejects(programs: Programs) -> None:
    assert await programs.output("try { await tools.ask() } catch (e) { return e.name }", data("{")) == "SyntaxError"


async def test_step_reports_all_calls_and_output_since_start(programs: Programs) -> None:
    code = "text('1'); text(await tools.search(1)); text(await tools.ask(2)); return '4'"
    step = await programs.step(code, {0: text("2")})
    assert list(step.calls) == [ProgramCall("search", "1"), ProgramCall("ask", "2")]
    assert (list(step.waiting), step.output, step.ended) == ([1], "1\n2", None)
    step = await programs.step(code, {0: text("2"), 1: text("3")})
    assert (len(step.calls), list(step.waiting), step.output, step.ended) == (2, [], "1\n2\n3\n4", "completed")


async def test_hosted_calls_get_results_before_client_calls(programs: Programs) -> None:
    step = await programs.step(BOTH)
    assert list(step.waiting) == [0, 1]
    # The result of the client's call alone changes nothing.
    assert list((await programs.step(BOTH, {0: text("a")})).waiting) == [1]
    assert list((await programs.step(BOTH, {1: text("b")})).waiting) == [0]
    assert (await programs.step(BOTH, {1: text("b"), 0: text("a")})).output == "ab"


@pytest.mark.parametrize("name", ["search", "ask"])
async def test_calls_get_results_together_in_their_order(programs: Programs, name: str) -> None:
    code = f"await Promise.all([1, 2, 3].map(async n => {{ text(await tools.{name}(n)) }}))"
    step = await programs.step(code, {1: text("b"), 2: text("c")})
    assert (list(step.waiting), step.output) == ([0], "")
    assert (await programs.step(code, {2: text("c"), 1: text("b"), 0: text("a")})).output == "a\nb\nc"


async def test_result_of_call_that_was_not_made_is_ignored(programs: Programs) -> None:
    step = await programs.step("return 1", {7: text("x")})
    assert (step.output, step.ended) == ("1", "completed")


async def test_program_ends_when_calls_that_it_does_not_wait_for_have_results(programs: Programs) -> None:
    code = "tools.search(1).then(text); tools.ask(2); return 'end'"
    assert await programs.output(code, text("late"), error("ignored")) == "end\nlate"
    assert (
        await programs.failure("tools.search().then(text); throw new Error('x')", text("a")) == "a\nError: x (line 1)"
    )


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("text('a')\nthrow new TypeError('b')", "a\nTypeError: b (line 2)"),
        ("\n\nlet x = ;", "SyntaxError: unexpected token in expression: ';' (line 3)"),
        ("throw 'text'", "Error: text"),
        ("throw {a: 1}", 'Error: {"a":1}'),
        ("throw undefined", "Error: undefined"),
        ("throw {get stack() { throw 1 }}", "Error: The program threw a value that cannot be shown."),
        ("await Promise.reject(new Error('a'))", "Error: a (line 1)"),
        ("await new Promise(() => {})", "Error: The program waits for a promise that nothing resolves."),
        ("\nqueueMicrotask(() => { throw new Error('a') }); await null; text('b')", "b\nError: a (line 2)"),
        ("\nsetTimeout(() => { throw new Error('a') }, 9); text('b')", "b\nError: a (line 2)"),
        ("require('fs')", "ReferenceError: require is not defined (line 1)"),
        ("await import('/etc/hostname')", "ReferenceError: could not load module '/etc/hostname'"),
        ("return {toJSON() { throw new Error('a') }}", "Error: a (line 1)"),
    ],
)
async def test_failure_is_last_line_of_output(programs: Programs, code: str, output: str) -> None:
    assert await programs.failure(code) == output


async def test_failed_call_that_program_does_not_catch_has_line_of_call(programs: Programs) -> None:
    assert await programs.failure("text('a')\nawait tools.ask()", error("no")) == "a\nError: no (line 2)"


@pytest.mark.parametrize(
    ("code", "output"),
    [
        ("tools.other({})", 'There is no tool "other". Tools: search, fetch, ask, name with-dash, __proto__'),
        ("const a = {}; a.a = a; tools.ask(a)", "circular reference"),
        ("tools.ask(1n)", "BigInt"),
        ("tools.ask(() => 1)", "The argument of a tool has to be a value of JSON."),
        ("tools.ask(Symbol())", "The argument of a tool has to be a value of JSON."),
        ("tools.ask({get a() { throw new Error('mine') }})", "mine"),
    ],
)
async def test_wrong_call_throws_at_call(programs: Programs, code: str, output: str) -> None:
    step = await programs.step(f"try {{ {code} }} catch (e) {{ return e.message }}")
    assert (list(step.calls), step.ended) == ([], "completed")
    assert output in step.output


async def test_unknown_tool_lists_some_names(programs: Programs) -> None:
    tools = [ProgramTool(f"t{n}", hosted=True) for n in range(60)]
    step = await programs.runtime.step("tools.x()", started_ms=0, seed="", tools=tools, results={})
    assert "t49, ..." in step.output
    assert "t50" not in step.output


# Time and chance


async def test_time_stands_still(programs: Programs) -> None:
    code = "return [Date.now(), +new Date(), Date(), new Date().constructor === Date, typeof performance]"
    assert await programs.output(code) == (
        f'[{STARTED_MS},{STARTED_MS},"Tue Nov 14 2023 22:13:20 GMT+0000",true,"undefined"]'
    )


async def test_dates_are_dates(programs: Programs) -> None:
    code = """
    class Mine extends Date {}
    return [new Date(2020, 1, 2), new Date('2020-01-01'), new Mine(5) instanceof Mine, Date.UTC(1970, 0, 2), Date.name]
    """
    output = '["2020-02-02T00:00:00.000Z","2020-01-01T00:00:00.000Z",true,86400000,"Date"]'
    assert await programs.output(code) == output


async def test_timers_run_in_order_of_their_times(programs: Programs) -> None:
    code = """
    const sleep = ms => new Promise(done => setTimeout(done, ms))
    setTimeout(() => text('b'), 5000); setTimeout(text, 1, 'a'); setTimeout(text, 5000, 'c')
    clearTimeout(setTimeout(text, 2, 'never'))
    await sleep(3.7)
    text(Date.now() - START)
    setTimeout(() => text(Date.now() - START), 10 ** 6)
    """
    assert await programs.output(code.replace("START", str(STARTED_MS))) == "a\n3\nb\nc\n1000003"


async def test_timer_waits_for_calls(programs: Programs) -> None:
    code = "const late = new Promise((_, no) => setTimeout(no, 1)); return await Promise.race([tools.ask(), late])"
    assert await programs.waiting(code) == ["ask {}"]
    assert await programs.output(code, text("in time")) == "in time"


async def test_random_numbers_depend_on_seed_alone(programs: Programs) -> None:
    code = "const a = []; for (let i = 0; i < 1000; i++) a.push(Math.random()); return a"
    first, again, other = [await programs.step(code, seed=seed) for seed in ("a", "a", "b")]
    assert first == again != other
    numbers = [float(each) for each in first.output.strip("[]").split(",")]
    assert all(0 <= each < 1 for each in numbers)
    assert 0.45 < sum(numbers) / len(numbers) < 0.55
    assert len(set(numbers)) == len(numbers)


async def test_nothing_tells_time_or_memory(programs: Programs) -> None:
    names = ["performance", "Atomics", "SharedArrayBuffer", "WeakRef", "FinalizationRegistry"]
    assert await programs.output(f"return {names}.filter(name => name in globalThis)") == "[]"


async def test_steps_share_budget(programs: Programs) -> None:
    budget = TimeBudget(0.0)
    step = await programs.step("return 1", budget=budget)
    assert (step.ended, step.output) == ("failed", "Error: The programs of this response took too much time.")


# Where programs cannot run


def test_programs_are_available_here() -> None:
    assert feature.unavailable() is None


def test_programs_without_filters_of_system_calls_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "seccomp" in (feature.unavailable() or "")


def test_programs_without_engine_are_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature, "find_spec", lambda name: None if name == "_quickjs" else find_spec(name))
    assert "quickjs-ng" in (feature.unavailable() or "")
