"""Examinations on a schedule, their reports in the store, and the card with them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from llama_stack_responses.chat.inference import ModelServer
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.types import Json
from llama_stack_responses.feature import Stack
from llama_stack_responses.features.doctor.feature import open_feature
from llama_stack_responses.features.doctor.report import Finding, Report
from llama_stack_responses.features.doctor.schedule import Schedule
from llama_stack_responses.features.doctor.settings import Doctor
from llama_stack_responses.features.doctor.stored_reports import Stored, StoredReports
from llama_stack_responses.model_server.client import Access, ModelServerClient
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.doctored_server import DoctoredServer, template
from tests.support.http_server import serving

HOUR = 3600.0


class Clocked(MemoryRecords):
    """A store whose time a test sets."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        super().__init__(clock=lambda: self.time)


class Stacked:
    """The models of a stack on one server over HTTP, as `Inference`."""

    def __init__(self, client: ModelServerClient) -> None:
        self.open_stream, self.to_api_error = client.open_stream, client.to_api_error

    async def server_of(self, model: str) -> ModelServer | None:
        return ModelServer("local")

    async def context_length(self, model: str) -> int | None:
        return 4096


class Fixture:
    """Servers of a store, each with a schedule."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.records = Clocked()
        self.reports = StoredReports(self.records)
        self.names: Sequence[str] = ("local/a", "local/b", "other/c")

    async def models(self) -> Sequence[str]:
        return self.names

    async def look(self, schedule: Schedule) -> list[str]:
        """Let a schedule look, and return the models that were examined."""
        before = {each.model: each.at async for each in self.reports.all()}
        await schedule.look()
        return sorted([each.model async for each in self.reports.all() if each.at != before.get(each.model)])

    def schedule(self, client: ModelServerClient, **settings: Any) -> Schedule:
        return Schedule(Doctor(**settings), cast("Any", Stacked(client)), self.models, self.reports)


async def test_models_are_examined_after_a_start_once_by_all_servers_of_the_store() -> None:
    fixture = Fixture(DoctoredServer())
    async with serving(fixture.handler) as running:
        client = ModelServerClient(Access(base_url=running.url), "")
        one = fixture.schedule(client, at_start=True, models=["local/*"])
        assert await fixture.look(one) == ["local/a", "local/b"]
        assert await fixture.look(one) == []
        fixture.records.time += HOUR / 2
        assert await fixture.look(fixture.schedule(client, at_start=True)) == ["other/c"]
        fixture.records.time += 2 * HOUR
        assert await fixture.look(one) == []
        fixture.names = ("local/a",)
        assert await fixture.look(fixture.schedule(client, at_start=True)) == ["local/a"]
        await client.close()


async def test_models_are_examined_again_after_the_interval() -> None:
    fixture = Fixture(DoctoredServer())
    fixture.names = ("local/a",)
    async with serving(fixture.handler) as running:
        client = ModelServerClient(Access(base_url=running.url), "")
        schedule = fixture.schedule(client, every_hours=6)
        found = []
        for _ in range(4):
            found.append(await fixture.look(schedule))
            fixture.records.time += 4 * HOUR
        assert found == [["local/a"], [], ["local/a"], []]
        await client.close()


async def test_model_that_another_server_examines_is_left_to_it() -> None:
    fixture = Fixture(DoctoredServer())
    assert await fixture.reports.claim("local/a", 1.0, 1.0)
    assert not await fixture.reports.claim("local/a", 1.0, 1.0)
    fixture.records.time += HOUR
    assert await fixture.reports.claim("local/a", 1.0, 1.0)


async def test_failure_keeps_the_last_report_and_is_tried_again_after_ten_minutes() -> None:
    server = DoctoredServer()
    fixture = Fixture(server)
    fixture.names = ("local/a",)
    async with serving(server) as running:
        client = ModelServerClient(Access(base_url=running.url), "check it")
        schedule = fixture.schedule(client, every_hours=1)
        await schedule.look()
        fixture.records.time += 2 * HOUR
        server.key = "another"
        assert await fixture.look(schedule) == ["local/a"]
        [stored] = [each async for each in fixture.reports.all()]
        assert "refuses the key (401): check it." in stored.trouble
        assert stored.report
        assert await fixture.look(schedule) == []
        fixture.records.time += 601
        server.key = ""
        assert await fixture.look(schedule) == ["local/a"]
        [stored] = [each async for each in fixture.reports.all()]
        assert stored.trouble == ""
        await client.close()


async def test_examination_that_a_shutdown_interrupts_can_begin_again_at_once() -> None:
    asked = asyncio.Event()

    async def deaf(peer: Any) -> None:
        await peer.request()
        asked.set()
        await peer.left()

    fixture = Fixture(deaf)
    fixture.names = ("local/a",)
    async with serving(deaf) as running:
        client = ModelServerClient(Access(base_url=running.url), "")
        schedule = fixture.schedule(client, at_start=True)
        schedule.start()
        await asked.wait()
        assert not await fixture.reports.claim("local/a", 1.0, 1.0)
        await schedule.stop()
        assert await fixture.reports.claim("local/a", 1.0, 1.0)
        await client.close()


def opened(records: MemoryRecords, models: Sequence[str], **settings: Any) -> Any:
    async def names() -> Sequence[str]:
        return models

    config = ResponsesConfig.model_validate({"doctor": settings})
    stack = SimpleNamespace(config=config, records=records, inference=None, models=names)
    return open_feature(cast("Stack", stack))


def test_without_a_schedule_there_is_no_card() -> None:
    assert opened(MemoryRecords(), []).cards == ()


async def test_card_has_the_models_that_the_user_may_use() -> None:
    records = MemoryRecords()
    reports = StoredReports(records)
    finding = Finding("images", "images", "lost", "none", ("no_images",))
    entry: Json = {"match": "b", "dialect": ["no_images"]}
    for name in ("b", "a", "secret"):
        await reports.write(Stored(name, 5.0, report=Report("here", name, (finding,), entry, at=5.0)))
    await reports.write(Stored("c", 6.0, trouble="Nothing answers."))
    await reports.claim("d", 1.0, 1.0)
    [card] = opened(records, ["a", "b", "c", "d"], at_start=True).cards
    sections = await card.sections()
    assert [each["title"] for each in sections] == ["a", "b", "c"]
    assert sections[1] == {
        "title": "b",
        "at": 5.0,
        "facts": ["1 lost"],
        "trouble": None,
        "columns": ["Check", "Result", "What happens"],
        "rows": [["images", "lost", "no_images: none"]],
        "entry": entry,
    }
    assert (sections[2]["rows"], sections[2]["trouble"], sections[2]["entry"]) == ([], "Nothing answers.", None)


async def test_models_are_examined_without_changes_that_were_learned_before() -> None:
    fixture = Fixture(DoctoredServer([template("system_first")]))
    fixture.names = ("local/a",)
    async with serving(fixture.handler) as running:
        client = ModelServerClient(Access(base_url=running.url), "")
        schedule = fixture.schedule(client, every_hours=1)
        for _ in range(2):
            await schedule.look()
            [stored] = [each async for each in fixture.reports.all()]
            assert stored.report
            assert stored.report.profile == {"match": "local/a", "dialect": ["system_first"]}
            fixture.records.time += 2 * HOUR
        await client.close()


async def test_store_that_does_not_answer_ends_the_look() -> None:
    class Gone(MemoryRecords):
        async def now(self) -> float:
            raise ApiError(503, "The store does not answer.")

    async def none() -> Sequence[str]:
        return []

    schedule = Schedule(Doctor(at_start=True), cast("Any", None), none, StoredReports(Gone()))
    with pytest.raises(ApiError, match="does not answer"):
        await schedule.look()
