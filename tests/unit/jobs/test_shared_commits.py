"""Jobs store their events in shared commits, and each by itself if that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.generation.event_buffer import EventBuffer
from llama_stack_responses.generation.shared_events import SharedEvents
from llama_stack_responses.jobs.direct_delivery import DirectClient, Reader
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.job import Checkpoint, Job, JobState
from llama_stack_responses.jobs.job_writer import JobWriter
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.recorded_requests import RecordedRequests
from llama_stack_responses.jobs.shared_commits import SharedCommits
from llama_stack_responses.jobs.store_retry import StoreRetry
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.records import Condition, Conflict, Op, Put
from llama_stack_responses.stream.delta_forms import DeltaRun
from llama_stack_responses.stream.fragments import Fragments
from llama_stack_responses.stream.output import OpenText, Output
from llama_stack_responses.stream.transcript import Transcript
from tests.support.records import WatchedRecords
from tests.support.waiting import turns
from tests.unit.jobs.harness import PATIENCE

type Json = dict[str, Any]

ANNA, BEN = Owner("anna", {}), Owner("ben", {})
CURRENT_USER: Final = ContextVar("current_user", default="no user")


class Store(WatchedRecords):
    """Records that note which responses' events each commit stores.

    Attributes:
        commits: the response ids of the events of each commit that was made.
        users: the current user of each of these commits.
    """

    def __init__(self, **hooks: Any) -> None:
        super().__init__(MemoryRecords(), **hooks)
        self.commits: list[list[str]] = []
        self.users: list[str] = []

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        await super().commit(ops, conditions)
        if stored := [op.key.split("/")[1] for op in ops if isinstance(op, Put) and op.key.startswith("e/")]:
            self.commits.append(stored)
            self.users.append(CURRENT_USER.get())


def event(number: int = 0, delta: Any = "word ") -> Json:
    return {"type": "response.output_text.delta", "output_index": 0, "sequence_number": number, "delta": delta}


@dataclass
class Jobs:
    """The jobs of a process."""

    store: Store = field(default_factory=Store)

    def __post_init__(self) -> None:
        self.notifier = Notifier()
        self.event_log = EventLog(self.store, self.notifier)
        self.shared = SharedCommits(self.store, 0)
        self.buffers: dict[str, EventBuffer] = {}

    async def writer(self, response_id: str, owner: Owner = ANNA, events: Sequence[Json] = (event(),)) -> JobWriter:
        """Return the writer of a new job with these events."""
        await self.store.commit([Put(f"j/{response_id}", b"")])
        buffer = self.buffers[response_id] = EventBuffer(wanted=True)
        buffer.put(list(events))
        job = Job(response_id, JobState(owner, "1"), 1)
        requests = RecordedRequests(self.store, response_id)
        return JobWriter(job, self.store, self.event_log, buffer, requests, StoreRetry(0.001))

    async def writing(self, response_id: str, text: str = "more ") -> JobWriter:
        """Return the writer of a new job with a delta that extends an open text."""
        writer = await self.writer(response_id)
        buffer = self.buffers[response_id]
        [first] = buffer.ready()
        assert buffer.extend(OpenText(Output({"id": response_id, "output": []}), Fragments(), first), text)
        return writer

    async def join(self, *writers: JobWriter) -> list[bool]:
        """Let all of them share commits, and return which have to write by themselves in the end."""
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*(self.shared.join(each) for each in writers))

    async def stored(self, response_id: str) -> list[Json]:
        return await self.event_log.read_all(response_id, -1)


@pytest.fixture
async def jobs() -> Jobs:
    return Jobs()


async def test_jobs_of_one_owner_share_a_commit(jobs: Jobs) -> None:
    writers = [await jobs.writer(f"resp_{number}") for number in range(3)]
    assert await jobs.join(*writers) == [False] * 3
    assert jobs.store.commits == [["resp_0", "resp_1", "resp_2"]]
    assert await jobs.stored("resp_1") == [event()]


async def test_later_events_of_a_job_follow_in_later_commits(jobs: Jobs) -> None:
    writer = await jobs.writer("resp_1")

    async def more(_: str) -> None:
        if len(jobs.store.commits) < 2:
            jobs.buffers["resp_1"].put([event(len(jobs.store.commits) + 1)])

    jobs.store._before = more
    assert await jobs.join(writer) == [False]
    assert jobs.store.commits == [["resp_1"]] * 3
    assert await jobs.stored("resp_1") == [event(number) for number in range(3)]
    assert [mark[3] for mark in writer.transcript.marks()] == ["(" * 3]


async def test_tokens_are_stored_and_announced_as_their_events(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[Json] = []
    monkeypatch.setattr(jobs.event_log, "announce", lambda _, events: announced.extend(events.events))
    first = {**event(), "content_index": 0}
    writer = await jobs.writer("resp_1", events=[first])
    assert await jobs.join(writer) == [False]
    text = OpenText(Output({"id": "resp_1", "output": []}), Fragments(), first)
    text.output.numbered = 1
    jobs.buffers["resp_1"].put([first | {"sequence_number": text.output.next()}])
    await writer.write()
    for piece in ("a", "half \ud83d", "é"):
        text.event = jobs.buffers["resp_1"]._last or {}
        assert jobs.buffers["resp_1"].extend(text, piece)
    assert isinstance(jobs.buffers["resp_1"].waiting, DeltaRun)
    assert await jobs.join(writer) == [False]
    assert await jobs.stored("resp_1") == announced
    assert [(each["sequence_number"], each["delta"]) for each in announced[2:]] == [
        (2, "a"),
        (3, "half \ud83d"),
        (4, "é"),
    ]
    again = Transcript()
    again.note(announced)
    assert writer.transcript.marks() == again.marks()


@pytest.mark.parametrize("length", [1, 33_000])
async def test_large_run_is_not_encoded_in_the_event_loop(jobs: Jobs, length: int) -> None:
    writer = await jobs.writing("resp_1", "w" * length)
    assert await jobs.join(writer) == [length > 1]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds for which `asyncio.sleep` was called; it returns at once."""
    slept, sleep = list[float](), asyncio.sleep

    async def pause(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", pause)
    return slept


@pytest.mark.parametrize(
    ("count", "seconds"), [(1, [0.05]), (32, [0.05]), (48, [0.05, 0.022]), (64, [0.05, 0.046]), (96, [0.05, 0.05])]
)
async def test_deltas_of_many_jobs_are_stored_less_often(
    jobs: Jobs, pauses: list[float], count: int, seconds: list[float]
) -> None:
    jobs.shared = SharedCommits(jobs.store, 0.05)
    writers = [await jobs.writing(f"resp_{number}") for number in range(count)]
    assert await jobs.join(*writers) == [False] * count
    assert sum(map(len, jobs.store.commits)) == count
    groups = len(jobs.store.commits)
    assert pauses[: groups * len(seconds)] == pytest.approx([each for each in seconds for _ in range(groups)])


async def test_other_events_of_many_jobs_do_not_wait_longer(jobs: Jobs, pauses: list[float]) -> None:
    jobs.shared = SharedCommits(jobs.store, 0.05)
    writers = [await jobs.writing(f"resp_{number}") for number in range(63)]
    urgent = await jobs.writer("urgent", events=[{"type": "response.output_item.added", "sequence_number": 0}])
    assert await jobs.join(urgent, *writers) == [False] * 64
    assert jobs.store.commits[0] == ["urgent"]
    assert sorted(map(len, jobs.store.commits[1:])) == [31, 32]


async def test_each_owner_has_a_commit_without_current_user(jobs: Jobs) -> None:
    owners = {"resp_1": ANNA, "resp_2": BEN, "resp_3": ANNA}
    writers = [await jobs.writer(name, owner) for name, owner in owners.items()]
    CURRENT_USER.set("carla")
    assert await jobs.join(*writers) == [False] * 3
    assert sorted(jobs.store.commits) == [["resp_1", "resp_3"], ["resp_2"]]
    assert jobs.store.users == ["no user"] * 2


async def test_slow_commit_of_an_owner_does_not_delay_others(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, other = await jobs.writer("resp_1", ANNA), await jobs.writer("resp_2", BEN)
    commit, go_on = jobs.store.commit, asyncio.Event()

    async def commit_slowly(ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if slow.fence in conditions:
            await go_on.wait()
        elif not jobs.store.commits:
            jobs.buffers["resp_1"].put([event(1)])
            jobs.buffers["resp_2"].put([event(1)])
        await commit(ops, conditions)

    monkeypatch.setattr(jobs.store, "commit", commit_slowly)
    joined = asyncio.ensure_future(jobs.join(slow))
    assert await jobs.join(other) == [False]
    assert jobs.store.commits == [["resp_2"]] * 2
    go_on.set()
    assert await joined == [False]
    assert jobs.store.commits[2:] == [["resp_1"]] * 2
    assert await jobs.stored("resp_1") == [event(0), event(1)]


async def test_no_more_than_32_jobs_share_a_commit(jobs: Jobs) -> None:
    writers = [await jobs.writer(f"resp_{number}") for number in range(33)]
    assert await jobs.join(*writers) == [False] * 33
    assert [len(each) for each in jobs.store.commits] == [32, 1]


async def test_readers_are_notified_after_the_commit(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    announced: list[tuple[int, Sequence[Json]]] = []
    monkeypatch.setattr(
        jobs.event_log, "announce", lambda _, events: announced.append((len(jobs.store.commits), events.events))
    )
    assert await jobs.join(await jobs.writer("resp_1")) == [False]
    assert announced == [(1, [event()])]


async def test_lost_job_fails_alone(jobs: Jobs) -> None:
    lost, other = await jobs.writer("resp_1"), await jobs.writer("resp_2")
    await jobs.store.commit([Put("j/resp_1", b"taken over")])
    assert await jobs.join(lost, other) == [True, True]
    assert jobs.store.commits == []
    await other.write()
    with pytest.raises(Conflict):
        await lost.write()
    assert (await jobs.stored("resp_1"), await jobs.stored("resp_2")) == ([], [event()])


@pytest.mark.parametrize("error", [ApiError(503, "away"), ValueError("a defect")])
async def test_each_job_writes_by_itself_after_failed_commit(jobs: Jobs, error: Exception) -> None:
    writers = [await jobs.writer("resp_1"), await jobs.writer("resp_2")]

    async def fail(_: str) -> None:
        jobs.store._before = None
        raise error

    jobs.store._before = fail
    assert await jobs.join(*writers) == [True, True]
    await asyncio.gather(*(each.write() for each in writers))
    assert jobs.store.commits == [["resp_1"], ["resp_2"]]
    assert await jobs.stored("resp_1") == [event()]


@pytest.mark.parametrize(
    ("events", "due"),
    [([event()], True), ([event(delta="w" * 40_000)], False), ([event(delta=object())], False)],
    ids=["checkpoint", "large", "defect"],
)
async def test_job_that_needs_more_writes_by_itself(jobs: Jobs, events: list[Json], due: bool) -> None:
    special, other = await jobs.writer("resp_1", events=events), await jobs.writer("resp_2")
    special.due = Checkpoint({}) if due else None
    assert await jobs.join(special, other) == [True, False]
    assert jobs.store.commits == [["resp_2"]]
    assert jobs.buffers["resp_1"].waiting == events


@pytest.mark.parametrize("fails", [False, True])
async def test_nothing_of_a_job_is_written_during_its_shared_commit(jobs: Jobs, fails: bool) -> None:
    writer, numbers = await jobs.writer("resp_1"), list[list[int]]()

    async def store(events: list[Json], _: list[Op]) -> None:
        numbers.append([each["sequence_number"] for each in events])

    async def conclude(_: str) -> None:
        jobs.store._before = None
        concluding.append(asyncio.ensure_future(writer.conclude([event(1)], store)))
        await turns(3)
        assert numbers == []
        if fails:
            raise ApiError(503, "away")

    concluding: list[asyncio.Future[None]] = []
    jobs.store._before = conclude
    await jobs.join(writer)
    await asyncio.wait_for(concluding[0], PATIENCE)
    assert numbers == [[0, 1] if fails else [1]]


async def test_job_that_ends_does_not_end_the_commits_of_others(jobs: Jobs) -> None:
    ended, other = await jobs.writer("resp_1"), await jobs.writer("resp_2")

    async def end(_: str) -> None:
        jobs.store._before = None
        joined.cancel()
        await turns(3)

    joined = asyncio.ensure_future(jobs.join(ended))
    jobs.store._before = end
    assert await jobs.join(other) == [False]
    assert joined.cancelled()
    assert list(map(sorted, jobs.store.commits)) == [["resp_1", "resp_2"]]
    await asyncio.wait_for(ended.write(), PATIENCE)


async def test_job_that_writes_by_itself_does_not_delay_others(jobs: Jobs) -> None:
    slow, other = await jobs.writer("resp_1"), await jobs.writer("resp_2")
    go_on = asyncio.Event()

    async def store(*_: Any) -> None:
        await go_on.wait()

    concluding = asyncio.ensure_future(slow.conclude([], store))
    await turns(1)
    jobs.buffers["resp_1"].put([event(1)])
    assert await jobs.join(slow, other) == [True, False]
    go_on.set()
    await asyncio.wait_for(concluding, PATIENCE)
    assert jobs.store.commits == [["resp_2"]]


def test_jobs_of_closed_event_loop_are_not_joined() -> None:
    jobs, first = Jobs(), asyncio.new_event_loop()

    async def begin() -> None:
        first.create_task(jobs.shared.join(await jobs.writer("resp_1")))
        await turns(1)

    async def join() -> list[bool]:
        return await jobs.join(await jobs.writer("resp_2"))

    first.run_until_complete(begin())
    first.close()
    assert asyncio.run(join()) == [False]


async def test_jobs_write_by_themselves_after_an_unexpected_error(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    writers = [await jobs.writer(f"resp_{number}") for number in range(2)]

    def announce(*_: Any) -> None:
        monkeypatch.undo()
        raise RuntimeError("announce")

    monkeypatch.setattr(jobs.event_log, "announce", announce)
    assert await jobs.join(*writers) == [True] * 2
    async with asyncio.timeout(PATIENCE):
        for writer in writers:
            await writer.write()
    assert await jobs.stored("resp_1") == [event()]
    assert await jobs.join(*writers) == [False] * 2


@pytest.mark.parametrize("text", [None, "more "])
async def test_events_that_a_job_writes_by_itself_are_encoded_once_for_the_store_and_its_readers(
    jobs: Jobs, text: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = await jobs.writing("resp_0", text) if text else await jobs.writer("resp_0", events=[event(), event(2)])
    encoded: list[Sequence[bytes]] = []
    encode = SharedEvents._encoded

    def count(events: SharedEvents) -> Sequence[bytes]:
        encoded.append(encode(events))
        return encoded[-1]

    monkeypatch.setattr(SharedEvents, "_encoded", count)
    passed_on: list[SharedEvents] = []

    def write(events: SharedEvents) -> bool:
        passed_on.append(events)
        return bool(list(events.encoded()))

    client = DirectClient(lambda: write)
    client.connect()
    first = SharedEvents(jobs.buffers["resp_0"].waiting).first
    with jobs.notifier.subscribe("resp_0") as subscription:
        reader = Reader(subscription, first - 1, client)
        reader.waits = True
        with jobs.event_log.readers.joined("resp_0", reader):
            await writer.write()
    assert [list(each.events) for each in passed_on] == [await jobs.stored("resp_0")]
    assert len(encoded) == 1
