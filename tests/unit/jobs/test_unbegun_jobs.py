"""Jobs that were never started are cancelled together: from then on none of them can begin."""

from __future__ import annotations

import pytest

from llama_stack_responses.jobs import unbegun_jobs
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.store import codec
from tests.support.records import WatchedRecords
from tests.unit.jobs.harness import ROUNDS, ProcessHarness, shared

IDS = [f"resp_{number:02}" for number in range(40)]


class Server(ProcessHarness):
    """A server whose worker is not started."""

    def __init__(self) -> None:
        self.commits = 0
        super().__init__(WatchedRecords(shared(), after=self._count), *ROUNDS)
        self.background: BackgroundJobs = self.background_jobs()

    async def _count(self, call: str) -> None:
        self.commits += call == "commit"

    async def queue(self, ids: list[str], **fields: object) -> None:
        for response_id in ids:
            await self.submit(self.background, response_id, **fields)  # type: ignore[arg-type]
        await self.background._jobs.hints_written()
        self.commits = 0


@pytest.fixture
def server() -> Server:
    return Server()


async def test_waiting_jobs_are_cancelled_in_few_commits(server: Server) -> None:
    await server.queue(IDS)
    await server.background.cancel_unbegun(IDS)
    assert server.commits == 2
    assert {(await server.result(each))["status"] for each in IDS} == {"cancelled"}
    assert sorted(ended.response["id"] for ended in server.ended) == IDS
    assert await server.jobs.claim("w1") is None


async def test_job_that_begins_meanwhile_runs_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    await server.queue(IDS[:4])
    end = server.archive.end_queued

    async def later(*given: object) -> bool:
        monkeypatch.undo()
        await server.claim()
        return await end(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(server.archive, "end_queued", later)
    await server.background.cancel_unbegun(IDS[:4])
    [left] = await server.jobs.find_many(IDS)
    assert [(await server.result(each))["status"] for each in IDS[:4] if each != left] == ["cancelled"] * 3
    assert await server.jobs.held_by("w1") == {left}
    await server.background.cancel_unbegun([left])
    assert left in await server.jobs.find_many(IDS)


async def test_job_that_was_begun_and_waits_again_is_left(server: Server) -> None:
    await server.queue(IDS[:1])
    await server.jobs.release(await server.claim())
    await server.background.cancel_unbegun(IDS[:1])
    assert await server.jobs.find(IDS[0])
    await server.background.cancel(IDS[0])
    assert (await server.result(IDS[0]))["status"] == "cancelled"


async def test_response_that_was_deleted_is_not_stored_again(server: Server) -> None:
    await server.queue(IDS[:2])
    await server.archive.delete(IDS[0])
    await server.background.cancel_unbegun(IDS[:2])
    assert (await server.archive.load(IDS[0]), [each.response["id"] for each in server.ended]) == (None, [IDS[1]])


async def test_large_responses_are_cancelled_a_few_at_a_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unbegun_jobs, "_TOGETHER_BYTES", 20_000)
    ids = IDS[:4]
    await server.queue(ids, instructions="Be brief. " * 1000)
    await server.background.cancel_unbegun(ids)
    assert server.commits > 1
    for each in ids:
        final = await server.result(each)
        assert (final["status"], len(final["instructions"])) == ("cancelled", 10_000)


async def test_what_is_stored_is_what_a_worker_would_have_stored(server: Server) -> None:
    await server.queue(IDS[:2], metadata={"of": "both"})
    job = await server.jobs.claim_to_end(IDS[0], "w1", "cancelled")
    assert job
    await server.runner(job).run()
    await server.background.cancel_unbegun(IDS[1:2])

    by_worker, together = [await server.result(each) for each in IDS[:2]]
    differing = {"id": "", "created_at": 0}
    assert by_worker | differing == together | differing
    rows = dict(await server.records.range("!", "~", limit=500))
    names = [{key.split("/")[0] for key in rows if each in key} for each in IDS[:2]]
    assert names[0] == names[1] >= {"r", "l", "e", "t", "s"}
    listed = [next(value for key, value in rows.items() if key.startswith("l/") and each in key) for each in IDS[:2]]
    fields = [codec.decode(each.value) | {"seconds": 0, "created_at": 0} for each in listed]
    assert fields[0] == fields[1]
    timings = [{**(each.timing or {}), "queue_ms": 0, "total_ms": 0, "events": 0} for each in server.ended]
    assert timings[0] == timings[1]
    assert all(each.timing and each.timing["events"] for each in server.ended)
