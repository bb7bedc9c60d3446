"""On every backend, jobs are claimed by class: background, completion windows by deadline, flex, batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.jobs.job import JobState, name_of, owner_prefix
from llama_stack_responses.jobs.queue import JobQueue, PassedOver
from llama_stack_responses.jobs.work_class import BACKGROUND, Work, WorkClass
from llama_stack_responses.store.records import Put, Records, after_prefix
from tests.contract.backends import Clock

pytestmark = [pytest.mark.needs("transactions"), pytest.mark.every_store]

ANNA, BERT = Owner("anna"), Owner("bert")
SOON, LATE = Work(WorkClass.WINDOW, 7_200.0), Work(WorkClass.WINDOW, 28_800.0)
FLEX, BATCH = Work(WorkClass.FLEX), Work(WorkClass.BATCH)


@dataclass
class Queue:
    """A queue, and what waits in it."""

    records: Records
    jobs: JobQueue
    submitted: Counter[str] = field(default_factory=Counter)

    async def submit(self, name: str, work: Work, count: int = 1, owner: Owner = ANNA) -> None:
        for _ in range(count):
            self.submitted[name] += 1
            response_id = f"resp_{name}-{self.submitted[name]}"
            async with self.jobs.enqueued(response_id, owner, {"model": "m", "input": "..."}, None, work) as ops:
                await self.records.commit(ops)

    async def taken(self, count: int, *, can_wait: bool = True) -> list[str]:
        """Claim so many jobs, and return their names."""
        names = []
        for _ in range(count):
            job = await self.jobs.claim("w1", can_wait=can_wait)
            names.append(job.response_id.removeprefix("resp_").partition("-")[0] if job else "none")
        return names


@pytest.fixture
async def queue(records: Records, clock: Clock) -> AsyncIterator[Queue]:
    queue = Queue(records, JobQueue(records, limit=100, clock=lambda: clock.now))
    yield queue
    await queue.jobs.hints_written()


async def test_classes_are_claimed_in_their_order(queue: Queue, clock: Clock) -> None:
    for name, work in {"batch": BATCH, "flex": FLEX, "late": LATE, "soon": SOON, "background": BACKGROUND}.items():
        await queue.submit(name, work, 2)
        clock.now += 1
    taken = await queue.taken(11)
    assert taken == [name for name in ("background", "soon", "late", "flex", "batch") for _ in range(2)] + ["none"]


async def test_priority_goes_first_and_does_not_hold_others(queue: Queue) -> None:
    await queue.submit("background", BACKGROUND, 3)
    await queue.submit("priority", Work(WorkClass.PRIORITY), 9, owner=BERT)
    taken = await queue.taken(13, can_wait=False)
    assert taken == [*(["priority"] * 3 + ["background"]) * 3, "none"]


async def test_jobs_of_a_model_at_its_limit_are_passed_over(queue: Queue) -> None:
    for name, model in (("slow", "local/slow"), ("fast", "local/fast")):
        for number in range(3):
            response_id = f"resp_{name}-{number}"
            async with queue.jobs.enqueued(response_id, ANNA, {"model": model, "input": "..."}, None, BATCH) as ops:
                await queue.records.commit(ops)
    over = PassedOver(models=frozenset({"local/slow"}))
    jobs = [await queue.jobs.claim("w1", over) for _ in range(4)]
    assert [job and (job.response_id[5:9], job.state.model) for job in jobs] == [("fast", "local/fast")] * 3 + [None]
    slow = await queue.jobs.claim("w1")
    assert slow is not None
    await queue.jobs.release(slow)
    assert await queue.jobs.claim("w1", over) is None
    assert await queue.jobs.claim("w1")


async def test_windows_are_claimed_by_their_deadlines(queue: Queue, clock: Clock) -> None:
    await queue.submit("first", LATE)
    clock.now += 3 * 3600
    await queue.submit("second", SOON)
    clock.now += 3 * 3600
    await queue.submit("third", SOON, owner=BERT)
    assert await queue.taken(3) == ["second", "first", "third"]


async def test_follow_up_of_a_window_is_claimed_as_its_first_job(queue: Queue, clock: Clock) -> None:
    related = replace(LATE, continues="8h m case-7")
    await queue.submit("first", related)
    assert await queue.taken(1) == ["first"]
    clock.now += 3600
    await queue.submit("others", LATE, 2)
    await queue.submit("theirs", related, owner=BERT)
    clock.now += 3600
    await queue.submit("next", related)
    await queue.submit("unrelated", replace(LATE, continues="8h m case-8"))
    assert await queue.taken(5) == ["next", "others", "others", "theirs", "unrelated"]


async def test_window_goes_before_background_an_hour_before_its_deadline(queue: Queue, clock: Clock) -> None:
    await queue.submit("window", SOON)
    await queue.submit("background", BACKGROUND, 6)
    assert await queue.taken(2) == ["background"] * 2
    clock.now += 3590
    assert await queue.taken(2) == ["background"] * 2
    clock.now += 20
    assert await queue.taken(3, can_wait=False) == ["window", "background", "background"]
    await queue.submit("missed", SOON)
    await queue.submit("background", BACKGROUND)
    clock.now += 2 * 7_200
    assert await queue.taken(3) == ["missed", "background", "none"]


async def test_each_class_takes_its_turn_behind_others(queue: Queue) -> None:
    for name, work in {"batch": BATCH, "flex": FLEX, "window": LATE}.items():
        await queue.submit(name, work)
    await queue.submit("background", BACKGROUND, 48)
    assert Counter(await queue.taken(48)) == {"background": 45, "window": 1, "flex": 1, "batch": 1}


async def test_worker_full_of_deferred_jobs_claims_background_jobs_only(queue: Queue) -> None:
    for name, work in {"batch": BATCH, "flex": FLEX, "window": LATE}.items():
        await queue.submit(name, work)
    assert await queue.taken(1, can_wait=False) == ["none"]
    await queue.submit("background", BACKGROUND)
    assert await queue.taken(2, can_wait=False) == ["background", "none"]


@pytest.mark.parametrize("work", [FLEX, BATCH], ids=["flex", "batch"])
async def test_owners_take_turns_within_a_class(queue: Queue, clock: Clock, work: Work) -> None:
    await queue.submit("anna", work, 10)
    clock.now += 1
    await queue.submit("bert", work, owner=BERT)
    assert (await queue.taken(11)).index("bert") == 1


async def test_claim_of_one_class_does_not_move_the_turns_of_others(queue: Queue, clock: Clock) -> None:
    await queue.submit("batch", BATCH, 40)
    await queue.taken(40)
    await queue.submit("anna", BACKGROUND, 2)
    clock.now += 1
    await queue.submit("bert", BACKGROUND, owner=BERT)
    assert await queue.taken(3) == ["anna", "bert", "anna"]


async def test_full_class_refuses_jobs_and_other_classes_accept_them(records: Records) -> None:
    queue = Queue(records, JobQueue(records, limit=2, per_user=100))
    await queue.submit("window", SOON, 2)
    with pytest.raises(ApiError, match="Too many background responses are queued"):
        await queue.submit("window", LATE)
    for work in (BACKGROUND, FLEX):
        await queue.submit("other", work, 2)
        with pytest.raises(ApiError, match="Too many background responses are queued"):
            await queue.submit("other", work)
    await queue.submit("batch", BATCH, 5)


async def test_jobs_of_batches_do_not_count_for_their_owner(records: Records) -> None:
    queue = Queue(records, JobQueue(records, limit=100, per_user=1))
    await queue.submit("batch", BATCH, 3)
    await queue.submit("background", BACKGROUND)
    with pytest.raises(ApiError, match="You have 1 background responses"):
        await queue.submit("window", SOON)
    assert len(await records.range(owner_prefix(ANNA), after_prefix(owner_prefix(ANNA)), limit=9)) == 1


async def test_released_job_keeps_its_class(queue: Queue) -> None:
    await queue.submit("batch", BATCH)
    job = await queue.jobs.claim("w1")
    assert job is not None
    await queue.jobs.release(job)
    await queue.submit("flex", FLEX)
    assert await queue.taken(3) == ["flex", "batch", "none"]


async def test_cancelled_job_of_a_class_leaves_the_queue(queue: Queue, records: Records) -> None:
    await queue.submit("window", SOON)
    assert await queue.jobs.claim_to_end("resp_window-1", "w1", "cancelled")
    assert not await records.range("q/", "q0", limit=1)


async def test_backlog_has_the_count_and_the_oldest_of_each_class(queue: Queue, clock: Clock) -> None:
    await queue.submit("batch", BATCH)
    clock.now += 50
    await queue.submit("window", LATE)
    found = {kind.name: (each.length, round(each.age)) for kind, each in (await queue.jobs.backlog()).items()}
    assert found == {"PRIORITY": (0, 0), "BACKGROUND": (0, 0), "WINDOW": (1, 0), "FLEX": (0, 0), "BATCH": (1, 50)}


async def test_jobs_of_an_earlier_version_are_background_work(queue: Queue, records: Records) -> None:
    await queue.submit("flex", FLEX)
    order = "0000000f42400000000f4240"
    state = JobState(ANNA, order)
    await queue.submit("old", BACKGROUND)
    stored = await queue.jobs.find("resp_old-1")
    assert stored is not None
    ops = [Put(f"q/{order}/resp_old-1", name_of(ANNA).encode()), Put("j/resp_old-1", replace(state).encode())]
    await records.commit(ops)
    assert (await queue.taken(1)) == ["old"]
    claimed = await queue.jobs.find("resp_old-1")
    assert claimed is not None
    assert claimed.state.order == order
