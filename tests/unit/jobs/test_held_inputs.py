"""A job whose input has no room waits, and holds nothing meanwhile."""

from __future__ import annotations

import asyncio

from llama_stack_responses.admission import Quota
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.inputs.history import Hold
from llama_stack_responses.jobs.held_inputs import HeldInputs
from tests.support.shares import as_user


async def test_input_without_room_is_read_again_only_when_there_is_room() -> None:
    held = HeldInputs(Quota("inputs", 10, 10))
    other, mine = held.reserve(ANONYMOUS).add(8), held.reserve(ANONYMOUS)
    reads = 0

    async def read(hold: Hold) -> str:
        nonlocal reads
        reads += 1
        hold(2)
        hold(3)
        return "input"

    reading = asyncio.create_task(held.read(mine, read, 0))
    for _ in range(20):
        await asyncio.sleep(0)
    assert (reads, mine.units) == (1, 0)
    other.release()
    assert (await reading, reads, mine.units) == ("input", 2, 5)


async def test_users_take_turns_to_read_their_inputs() -> None:
    held, order = HeldInputs(Quota("inputs", 10, 10)), list[str]()

    async def read(user: str) -> None:
        async def taken(_: Hold) -> None:
            await asyncio.sleep(0)
            order.append(user)

        await held.read(held.reserve(ANONYMOUS), taken, 0)

    await asyncio.gather(*(as_user("many", read("many")) for _ in range(20)), as_user("one", read("one")))
    assert order.index("one") <= 2
