"""Grammars are checked in a bounded number of threads, and for a bounded time."""

import asyncio
import threading

import pytest

from llama_stack_gpt_oss.engine.errors import QueueFullError
from llama_stack_gpt_oss.errors import InvalidRequest
from llama_stack_gpt_oss.grammar import TurnGrammar
from llama_stack_gpt_oss.grammar_checks import GrammarChecks
from tests.support.clock import LoopClock

GOOD = TurnGrammar("start: TEXT\nTEXT: /.*/", "tools")
WRONG = TurnGrammar("start: nothing", "tools")


def slow_until(released: threading.Event) -> TurnGrammar:
    class SlowGrammar(TurnGrammar):
        def check(self) -> None:
            assert released.wait(60)

    return SlowGrammar("", "response_format")


def checking() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "grammar-check"]


async def test_check_that_takes_too_long_is_refused_and_keeps_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LoopClock(monkeypatch)
    checks, released = GrammarChecks(places=2, seconds=60), threading.Event()
    late = [asyncio.create_task(checks.check(slow_until(released))) for _ in range(2)]
    for check in late:
        await clock.passes_until(check.done)
        with pytest.raises(InvalidRequest, match="The schema was not checked within 60 seconds: use a simpler one"):
            await check
    refused = asyncio.create_task(checks.check(GOOD))
    await clock.passes_until(refused.done)
    with pytest.raises(QueueFullError, match="The schemas of other requests are still being checked"):
        await refused
    stuck = checking()
    assert len(stuck) == 2
    released.set()
    for each in stuck:
        await asyncio.to_thread(each.join)
    await asyncio.gather(*(checks.check(GOOD) for _ in range(5)))


async def test_check_of_ended_request_keeps_its_place_until_it_ends() -> None:
    checks, released = GrammarChecks(places=1, seconds=60), threading.Event()
    first = asyncio.create_task(checks.check(slow_until(released)))
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.create_task(checks.check(WRONG))
    await asyncio.wait([second], timeout=0.2)
    assert not second.done()
    released.set()
    with pytest.raises(InvalidRequest, match="The schema cannot be enforced") as refusal:
        await second
    assert refusal.value.param == "tools"
    assert first.cancelled()
