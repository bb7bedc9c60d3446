"""The worker of one process: it claims jobs, runs them, renews its lease, and requeues the jobs of dead workers."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from math import inf

from ..concurrency.share import ShareOf, working_for
from ..config.limits import BackgroundWork
from ..core.errors import ApiError
from ..intervals import Intervals
from ..logs import Outage, about, get_logger
from .acceptance import Acceptance
from .event_log import EventLog
from .foreground_leases import ForegroundLeases
from .heartbeat import Heartbeat
from .job import Job, name_of
from .notification_listener import NotificationListener
from .notifier import Notifier
from .queue import QUEUE, JobQueue, PassedOver, takeover_channel
from .runner import JobRunner
from .served_partitions import EXPIRING
from .work_class import WorkClass

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerLimits:
    """Limits on the number of detached responses.

    Attributes:
        concurrency: background responses that this process runs at a time.
        concurrency_per_user: of these, the responses of one authenticated owner.
        concurrency_deferred: of these, the responses that can wait: those with a completion window, of the tier `flex`
            and of batches.
        waiting: background responses that wait, over all servers; also the responses with an Idempotency-Key that this
            process runs at a time.
        per_user: background responses of one authenticated owner that wait or run, over all servers; also the owner's
            responses with an Idempotency-Key that this process runs at a time.
        at_once: of those that this process runs, the responses of each model that matches a pattern.
    """

    concurrency: int
    concurrency_per_user: int
    concurrency_deferred: int
    waiting: int
    per_user: int
    at_once: Mapping[str, int] = field(default_factory=dict)

    def of_model(self, model: str) -> int | None:
        """Return how many background responses of a model this process runs at a time; None for no limit."""
        return next((limit for pattern, limit in self.at_once.items() if fnmatchcase(model, pattern)), None)

    @staticmethod
    def of(config: BackgroundWork) -> WorkerLimits:
        """Return the limits of a configuration.

        By default, one owner may have three quarters of `concurrency` and a quarter of `waiting`, and responses that
        can wait three quarters of `concurrency`.
        """
        most = max(1, config.concurrency * 3 // 4)
        return WorkerLimits(
            config.concurrency,
            config.concurrency_per_user or most,
            config.concurrency_deferred or most,
            config.waiting,
            config.per_user or max(1, config.waiting // 4),
            config.at_once,
        )


class Worker:
    """Runs jobs of the queue, up to a limit of concurrent ones.

    Args:
        worker_id: the name of its lease.
        foreground: the leases of foreground responses, which the worker maintains.
        limits: how many jobs it may run at a time.
        runner: creates the runner of one job.
        share_of: returns the share of a user.
    """

    def __init__(
        self,
        worker_id: str,
        *,
        jobs: JobQueue,
        event_log: EventLog,
        notifier: Notifier,
        listener: NotificationListener,
        heartbeat: Heartbeat,
        foreground: ForegroundLeases,
        limits: WorkerLimits,
        runner: Callable[[Job, Acceptance | None], JobRunner],
        intervals: Intervals,
        share_of: ShareOf,
    ) -> None:
        self._id, self._share_of = worker_id, share_of
        self._jobs = jobs
        self._event_log = event_log
        self._notifier = notifier
        self._listener = listener
        self._heartbeat = heartbeat
        self._foreground = foreground
        self._limits = limits
        self._runner = runner
        self._intervals = intervals
        self._retired = self._handing_over = False
        self._idle: set[str] = set()
        self._broken: set[str] = set()
        self._runners: dict[asyncio.Task[None], JobRunner] = {}
        self._renewed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        heartbeat.holding.append(lambda: [runner.job.response_id for runner in self._runners.values()])

    def start(self) -> None:
        """Start the worker's tasks in the running event loop."""
        duties = {
            "heartbeat": self._heartbeat_loop(),
            "stalled": self._requeue_loop(),
            "claim": self._claim_loop(),
            "event logs": self._sweep_loop(),
            "takeovers": self._watch_jobs(),
            "notifications": self._listener.run(),
        }
        self._tasks = [asyncio.create_task(duty, name=f"worker {name}") for name, duty in duties.items()]

    @property
    def running(self) -> int:
        """Number of jobs that run here."""
        return len(self._runners)

    async def check(self) -> None:
        """Return if the worker runs and holds its lease, or was not started.

        Raises:
            ApiError: 503, one of the worker's tasks has failed, or the store is unavailable.
        """
        if not self._tasks:
            return
        await self._heartbeat.ensure()
        # A task may end without an error: the listener does on a store without notifications.
        if any(task.done() and (task.cancelled() or task.exception()) for task in self._tasks):
            raise ApiError(503, "This server's background worker has stopped. Restart the server.")

    async def stop(self) -> None:
        """Stop claiming jobs, hand over those that run, and end the lease."""
        for task in self._tasks:
            task.cancel()
        self.hand_over()
        if tasks := [*self._tasks, *self._runners]:
            await asyncio.wait(tasks)
            await self._jobs.served.stop()
            await self._jobs.hints_written()
            try:
                await self._heartbeat.end()
            except ApiError as error:
                logger.warning("could not end the worker's lease; it will expire: %s", error)

    def retire(self) -> None:
        """Claim no further job; the jobs that are held go on."""
        self._retired = True

    def hand_over(self) -> None:
        """Claim no further job, and begin to release those that run for another worker.

        A job whose claim is in progress is released too, without being started.
        """
        self.retire()
        self._handing_over = True
        for runner in self._runners.values():
            runner.hand_over()

    def run(self, job: Job, acceptance: Acceptance | None = None) -> asyncio.Task[None]:
        """Run a job that this worker holds, in a task. An earlier claim of it here is lost, or has been overtaken."""
        self.drop(job.response_id)
        runner = self._runner(job, acceptance)
        with about(response_id=job.response_id), working_for(self._share_of(job.state.owner)):
            task = asyncio.create_task(runner.run(), name=f"job {job.response_id}")
        self._runners[task] = runner
        task.add_done_callback(self._ended)
        if self._handing_over:
            runner.hand_over()
        return task

    def drop(self, response_id: str) -> None:
        """End the runner of the response's job in this process: the job was taken over."""
        for runner in self._runners.values():
            if runner.job.response_id == response_id:
                runner.on_job_lost()

    async def claim_to_cancel(self, response_id: str, again: bool) -> Job | None:
        """Claim the job, even from another worker, to cancel it; return None if it has ended or is being cancelled.

        Args:
            again: whether the answer to an earlier call was lost, so that this worker may hold the job already.
        """
        job = await self._jobs.claim_to_end(response_id, self._id, "cancelled")
        if job is None and again:
            held = await self._jobs.find(response_id)
            at_work = [runner.job for runner in self._runners.values()]
            if held and held.state.worker == self._id and held not in at_work:
                return held
        return job

    async def sweep(self) -> None:
        """Delete the event logs that have expired."""
        for number in await self._jobs.served.having(EXPIRING):
            while await self._event_log.sweep(number):
                pass

    async def _heartbeat_loop(self) -> None:
        """Renew the lease. If it cannot be renewed in time, drop all jobs: another worker may have taken them."""
        loop, outage = asyncio.get_running_loop(), Outage()
        renewed = loop.time()
        while True:
            intervals = self._intervals
            pause = intervals.poll_seconds
            try:
                await self._heartbeat.renew()
                renewed, pause = loop.time(), intervals.heartbeat_seconds
                self._renewed.set()
                outage.over()
            except ApiError as error:
                if outage.should_log(error):
                    logger.warning("could not renew the worker's lease: %s", error)
            except Exception:
                logger.exception("could not renew the worker's lease")
            if loop.time() - renewed > intervals.lease_lost_seconds:
                self._heartbeat.expire()
                for runner in self._runners.values():
                    runner.on_lease_expired()
            await asyncio.sleep(pause)

    async def _requeue_loop(self) -> None:
        """Look for stalled work after each renewal of the lease, apart from it.

        That takes many calls of a store with several partitions. A renewal that waited for them would come late, and
        other workers, whose renewals come late too, would take that for an outage of the store.
        """
        outage = Outage()
        while True:
            await self._renewed.wait()
            self._renewed.clear()
            try:
                await self._requeue(others=self._heartbeat.others_are_dead)
                outage.over()
            except ApiError as error:
                if outage.should_log(error):
                    logger.warning("could not look for the work of dead workers: %s", error)
                await asyncio.sleep(self._intervals.poll_seconds)
                self._renewed.set()
            except Exception:
                logger.exception("could not look for the work of dead workers")

    async def _sweep_loop(self) -> None:
        """Delete expired event logs, apart from the heartbeat: those of thousands of responses take minutes."""
        while True:
            try:
                await self.sweep()
            except ApiError as error:
                logger.debug("could not delete expired event logs: %s", error)
            except Exception:
                logger.exception("could not delete expired event logs")
            await asyncio.sleep(self._intervals.heartbeat_seconds)

    async def _requeue(self, *, others: bool) -> None:
        """Requeue the stalled jobs of this worker and, if `others`, those of dead ones; fail abandoned responses."""
        steps = [self._requeue_own, self._foreground.flush_unstored]
        if others:
            steps = [self._requeue_stalled, *steps, self._foreground.fail_abandoned, self._jobs.apply_noted]
        failure: ApiError | None = None
        for step in steps:
            try:
                await step()
            except ApiError as error:
                failure = error  # of a partition: there is more to do in others
        if failure:
            raise failure

    async def _requeue_stalled(self) -> None:
        try:
            requeued = await self._jobs.requeue_stalled(self._id)
        except ApiError:
            self._notifier.notify(QUEUE)  # some of them may be requeued
            raise
        if requeued:
            self._notifier.notify(QUEUE)

    async def _requeue_own(self) -> None:
        """Requeue the jobs that this worker holds and does not run.

        The reason may be a lost answer to a claim, an expired lease, or a runner that ended with a defect. A job is
        requeued when it is found so for the second time in a row: at the first time, its claim may be in progress.
        """
        held = await self._jobs.held_by(self._id)
        idle = held - {runner.job.response_id for runner in self._runners.values()}
        lost = idle & self._idle
        for response_id in sorted(lost):
            if await self._jobs.requeue_own(self._id, response_id, counts=response_id in self._broken):
                logger.info("requeued a job that this worker did not run: %s", response_id)
        self._broken &= idle - lost
        self._idle = idle
        if lost:
            self._notifier.notify(QUEUE)

    async def _claim_loop(self) -> None:
        """Claim jobs while there is room, and notify the other workers of waiting jobs when there is none.

        They are not notified earlier: all of them would try to claim a job that this worker claims anyway.
        """
        with self._notifier.subscribe(QUEUE) as subscription:
            notified, outage = True, Outage()
            while True:
                max_wait = inf
                try:
                    await self._heartbeat.ensure()
                    has_room, at_limit = self._room()
                    can_wait = self._deferred() < self._limits.concurrency_deferred
                    if has_room and (job := await self._jobs.claim(self._id, at_limit, can_wait=can_wait)):
                        self.run(job)
                        continue
                    outage.over()
                    if (notified or self._jobs.served.count > 1) and (at_limit.any or not has_room or not can_wait):
                        await self._jobs.notify_workers()
                except ApiError as error:
                    if outage.should_log(error):
                        logger.warning("could not claim a job: %s", error)
                    max_wait = self._intervals.poll_seconds
                except Exception:
                    logger.exception("could not claim a job")
                notified = await subscription.wait(self._intervals.poll_seconds, max_wait)

    def _room(self) -> tuple[bool, PassedOver]:
        """Return whether another job can be claimed, and the owners and models that are at their limit.

        Jobs that were begun at once, for a client that waits, do not count: they never wait in the queue.
        """
        states = [runner.job.state for runner in self._runners.values() if runner.acceptance is None]
        counts = Counter(name_of(state.owner) for state in states if not state.owner.is_anonymous)
        owners = {of for of, count in counts.items() if count >= self._limits.concurrency_per_user}
        models = {
            model for model, count in Counter(state.model for state in states).items() if self._is_full(model, count)
        }
        return len(states) < self._limits.concurrency and not self._retired, PassedOver(owners, models)

    def _is_full(self, model: str, count: int) -> bool:
        limit = self._limits.of_model(model)
        return limit is not None and count >= limit

    def _deferred(self) -> int:
        """Return how many of the jobs that run could have waited."""
        orders = [runner.job.state.order for runner in self._runners.values() if runner.acceptance is None]
        return sum(WorkClass.of(order).can_wait for order in orders)

    async def _watch_jobs(self) -> None:
        """Drop the jobs that another worker took over: their runners would continue until their next write."""
        with self._notifier.subscribe(takeover_channel(self._id)) as subscription:
            while True:
                await subscription.wait(self._intervals.poll_seconds)
                await self._drop_taken_over()

    async def _drop_taken_over(self) -> None:
        # Not in the loop above, whose variables would hold runners that have ended.
        runners = list(self._runners.values())
        if not runners:
            return
        try:
            mine = await self._jobs.unchanged([runner.job for runner in runners])
        except ApiError:
            return
        except Exception:
            logger.exception("could not check the leases of running jobs")
            return
        for runner in runners:
            # A concluding runner needs no check: its last commit has ended the job, or is fenced.
            if runner.job.response_id not in mine and not runner.concluding:
                runner.on_taken_over()

    def _ended(self, task: asyncio.Task[None]) -> None:
        runner = self._runners.pop(task)
        if runner.broken:
            self._broken.add(runner.job.response_id)
        self._notifier.notify(QUEUE)
