"""Users see what any server of the store runs for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.activity import Activity, Running
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.live_responses import LiveResponses
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.records import Records
from tests.contract.conversations import Json, assistant, response, user
from tests.support.waiting import until_found

pytestmark = pytest.mark.needs("transactions")

ALICE, BOB = Owner("alice"), Owner("bob")
QUICK = replace(DEFAULT, watcher_poll_seconds=0.02, watch_seconds=0.02)


class Assembler:
    """A response with some output."""

    numbered = 7

    def __init__(self, created: Json) -> None:
        self.response = created

    def tail(self, characters: int) -> tuple[str | None, str]:
        return "message", "so far"[-characters:]


@pytest.fixture
async def live_on(records: Records) -> AsyncIterator[Callable[[str], LiveResponses]]:
    started: list[LiveResponses] = []

    def make(server: str) -> LiveResponses:
        started.append(LiveResponses(records, Decoder(), Activity(), server, QUICK))
        started[-1].start()
        return started[-1]

    yield make
    for each in started:
        await each.stop()


def running(*, stored: bool = True) -> Running:
    assembler: Any = Assembler(response(assistant("x"), id="resp_1", status="in_progress"))
    return Running(assembler, [user("Why?")], stored=stored, streamed=True, owner=ALICE, end=lambda _: None)


async def test_running_response_of_another_server_is_seen_while_watched(live_on: Any) -> None:
    here, there = live_on("here"), live_on("there")
    with there._activity.runs(ALICE, running()):
        assert await here.elsewhere(ALICE) == {}
        await here.watch(ALICE)
        await until_found(lambda: here.elsewhere(ALICE), 30)
        [(server, shown)] = (await here.elsewhere(ALICE)).items()
        one = shown["resp_1"]
        assert server == "there"
        assert (one["words"], one["tail"], one["doing"], one["events"]) == ("Why?", "so far", "message", 7)
        assert await here.elsewhere(BOB) == {}
        assert there.here(ALICE).keys() == {"resp_1"}
        assert there.here(BOB) == {}

    async def has_ended() -> bool:
        return not any((await here.elsewhere(ALICE)).values())

    await until_found(has_ended, 30)


async def test_response_that_is_looked_at_is_shown_in_detail_to_its_owner_only(live_on: Any, records: Records) -> None:
    here, there = live_on("here"), live_on("there")
    with there._activity.runs(ALICE, running()):
        await here.watch(BOB, "resp_1")
        await here.watch(ALICE)
        await until_found(lambda: here.elsewhere(ALICE), 30)
        assert "text" not in (await here.elsewhere(ALICE))["there"]["resp_1"]
        await here.watch(ALICE, "resp_1")

        async def detailed() -> bool:
            return "text" in (await here.elsewhere(ALICE))["there"]["resp_1"]

        await until_found(detailed, 30)
        one = (await here.elsewhere(ALICE))["there"]["resp_1"]
        assert (one["text"], one["output"][0]["type"]) == ("so far", "message")
        assert await here.elsewhere(BOB) == {}
        assert there.here(ALICE, "resp_1")["resp_1"]["text"] == "so far"


async def test_response_that_is_not_stored_is_not_written(live_on: Any, records: Records) -> None:
    here, there = live_on("here"), live_on("there")
    with there._activity.runs(ALICE, running(stored=False)), there._activity.runs(BOB, running()):
        await here.watch(ALICE)
        await here.watch(BOB)
        await until_found(lambda: here.elsewhere(BOB), 30)
        assert await here.elsewhere(ALICE) == {}
        assert await records.range("ul/", "ul0", limit=9)


async def test_nothing_is_written_without_a_watching_owner(live_on: Any, records: Records) -> None:
    there = live_on("there")
    with there._activity.runs(ALICE, running()):
        await there._write()
        assert await records.range("u", "v", limit=9) == []
