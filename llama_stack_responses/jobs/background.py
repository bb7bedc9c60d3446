"""Background responses for the service: submit, open, cancel and follow them, on any server that shares the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from ..admission import Admission, Quota
from ..concurrency.offloading import in_thread_if_large
from ..concurrency.share import ShareOf, equal_share
from ..concurrency.turns import Turns
from ..core.access import Access
from ..core.errors import bad_request
from ..core.ids import new_id
from ..core.owner import Owner
from ..core.types import Json
from ..generation.factory import GenerationFactory
from ..intervals import DEFAULT, Intervals
from ..requests.request import CreateRequest
from ..sealing.sealer import Sealer
from ..store.archive import Archive, save_once
from ..store.commit_outcome import until_known
from ..store.records import Delete, Op, Put, Records
from ..stream.events import Event
from .acceptance import Acceptance
from .event_follower import EventFollower
from .event_log import EventLog
from .foreground_leases import ForegroundLeases
from .heartbeat import Heartbeat
from .held_inputs import HeldInputs
from .job import Job
from .job_secrets import JobSecrets
from .live_responses import LiveResponses
from .notification_listener import NotificationListener
from .notifier import Notifier
from .overview import Overview, leases_of, overview_of, stalled_of
from .queue import QUEUE, Backlog, JobQueue
from .runner import JobRunner
from .served_partitions import WatchedRows
from .shared_commits import SharedCommits
from .unbegun_jobs import UnbegunJobs
from .work_class import BACKGROUND, Work, WorkClass
from .worker import Worker, WorkerLimits

_OPENED: Final = "responses with an Idempotency-Key"


class BackgroundJobs:
    """The detached responses of one process: its queue, worker, event log and leases.

    Args:
        records: the store that all servers share.
        limits: how many responses may wait and run.
        event_log_seconds: how long an event log stays readable after the end of its response.
        parse: parses the body of a request.
        sealer: seals the credentials of users.
        beginnings: the turns of responses that begin.
        share_of: returns the share of a user.

    Attributes:
        worker_id: the name of the worker.
        events: follows detached responses.
        foreground: the leases of foreground responses.
        worker: runs the jobs.
        live_responses: shows the running responses of all servers.
    """

    def __init__(
        self,
        records: Records,
        archive: Archive,
        access: Access,
        factory: GenerationFactory,
        *,
        limits: WorkerLimits,
        input_quota: Quota,
        event_log_seconds: float,
        parse: Callable[[Json], CreateRequest],
        sealer: Sealer,
        beginnings: Turns,
        intervals: Intervals = DEFAULT,
        share_of: ShareOf = equal_share,
    ) -> None:
        self._records = records
        self._archive = archive
        self._access = access
        self._factory = factory
        self._event_log_seconds = event_log_seconds
        self._parse, self._beginnings = parse, beginnings
        self._intervals, self._share_of = intervals, share_of
        self._opened = Admission(Quota(_OPENED, limits.waiting, limits.per_user, authenticated_only=True))
        self._secrets = JobSecrets(sealer)
        self._held_inputs = HeldInputs(input_quota)
        self._shared_commits = SharedCommits(records, intervals.event_batch_seconds)
        self._notifier = notifier = Notifier(intervals.fallback_poll_seconds)
        self._jobs = jobs = self._queue(limits)
        self._event_log = event_log = EventLog(records, notifier, intervals.event_poll_seconds, decoder=archive.decoder)
        self.worker_id = new_id("worker")
        self._heartbeat = Heartbeat(jobs, self.worker_id, intervals)
        self.live_responses = LiveResponses(records, archive.decoder, factory.activity, self.worker_id, intervals)
        self.events = EventFollower(notifier, jobs, event_log, intervals)
        self.foreground = ForegroundLeases(records, archive, self.worker_id, self._heartbeat, intervals)
        self._unbegun = UnbegunJobs(jobs, archive, event_log, factory.activity, event_log_seconds, intervals)
        self.worker = self._make_worker(limits)

    def _queue(self, limits: WorkerLimits) -> JobQueue:
        return JobQueue(
            self._records,
            limits.waiting,
            limits.per_user,
            self._intervals.lease_seconds,
            decoder=self._archive.decoder,
            clock=self._archive.clock,
            look_seconds=self._intervals.partition_look_seconds,
        )

    def watched(self, prefix: str) -> WatchedRows:
        """Return where rows of a prefix are, which any server may work on; to be called before `start`."""
        return self._jobs.served.watched(prefix)

    def start(self) -> None:
        """Start the worker in the running event loop, if the store is transactional."""
        if self._records.transactional:
            self.worker.start()
            self.live_responses.start()

    async def submit(
        self,
        response: Json,
        body: Json,
        events: Sequence[Event],
        *,
        owner: Owner,
        keys: Mapping[str, Any],
        extra_ops: Sequence[Op] = (),
        work: Work = BACKGROUND,
        **history: Any,
    ) -> None:
        """Store a queued response and its job in one commit.

        Args:
            response: the response object, with the status `queued`.
            body: the request's JSON without its input.
            events: the response's first events.
            owner: the owner of the response.
            keys: the owner's own credentials for providers.
            extra_ops: further ops of the same commit.
            work: what the job is queued as.
            history: the history and input, and further arguments of `Archive.save`.

        Raises:
            ApiError: 429, too many responses wait, or the owner has too many; 400, the store is not transactional, or
                there are keys that cannot be sealed.
        """
        self._check_store()
        response_id = response["id"]
        body, sealed = await self._sealed(body, keys, response_id, owner)
        async with self._jobs.enqueued(response_id, owner, body, sealed, work) as queued:
            ops = [*extra_ops, *queued, *await self._event_log.batch(response_id, events)]
            await self._store(response, owner=owner, extra_ops=ops, **history)
        self._notifier.notify(QUEUE)

    async def submit_and_run(
        self,
        response: Json,
        body: Json,
        *,
        owner: Owner,
        keys: Mapping[str, Any],
        extra_ops: Sequence[Put],
        acceptance_seconds: float | None,
        **history: Any,
    ) -> None:
        """Store a response, run its job here at once, and return when the response counts as begun.

        From then on the response continues even if its client disconnects.

        Args:
            response: the response object, with the status `in_progress`.
            body: the request's JSON without its input.
            owner: the owner of the response.
            keys: the owner's own credentials for providers.
            extra_ops: further puts of the same commit; their keys are deleted if the response is refused.
            acceptance_seconds: time after which the response counts as begun although the model server has not accepted
                it; None for no such bound.
            history: the history and input, and further arguments of `Archive.save`.

        Raises:
            ApiError: the response was refused before it had begun; 429 or 503, too many such responses run here; 400,
                the store is not transactional, or there are keys that cannot be sealed. Nothing is stored.
        """
        self._check_store()
        await self._heartbeat.ensure()
        body, sealed = await self._sealed(body, keys, response["id"], owner)
        with ExitStack() as unless_begun:
            slot = unless_begun.enter_context(self._opened.reserve(owner).add(1))
            job, ops = await self._jobs.create_claimed(response["id"], owner, body, self.worker_id, sealed)
            await self._store(response, owner=owner, extra_ops=[*extra_ops, *ops], **history)
            acceptance = Acceptance([Delete(op.key) for op in extra_ops], acceptance_seconds)
            self.worker.run(job, acceptance).add_done_callback(lambda _: slot.release())
            unless_begun.pop_all()
        await acceptance.verdict()

    async def forget(self, response_id: str) -> None:
        """Delete the event log of a deleted response."""
        if self._records.transactional:
            await self.events.forget(response_id)

    async def find(self, response_id: str) -> Job | None:
        """Return the response's job; None if the job has ended or the response never had one."""
        return await self._jobs.find(response_id)

    async def backlog(self) -> dict[WorkClass, Backlog]:
        """Return what waits in each class for a worker of any server."""
        return await self._jobs.backlog()

    async def overview(self, owner: Owner) -> Overview:
        """Return the jobs of a user on all servers."""
        return await overview_of(self._records, owner)

    async def stalled(self) -> dict[str, str]:
        """Return the workers of the jobs of all users that are held by one without a lease, by response id."""
        return await stalled_of(self._records)

    async def leases(self, workers: Iterable[str]) -> dict[str, float]:
        """Return when the leases of workers expire, on the store's clock, without those that have expired."""
        return await leases_of(self._records, workers)

    async def find_many(self, response_ids: Sequence[str]) -> dict[str, Job]:
        """Return the jobs of these responses that have not ended, by response id."""
        return await self._jobs.find_many(response_ids)

    async def cancel(self, response_id: str) -> None:
        """Cancel a response, whichever server runs it, and keep its output so far. Do nothing if it has ended."""
        await self._unbegun.cancel([response_id])
        job = await until_known(
            lambda again: self.worker.claim_to_cancel(response_id, again),
            f"The response store did not confirm whether response '{response_id}' is cancelled: cancel it again.",
            self._intervals,
        )
        if job is not None:
            # In a separate task: the cancellation continues if the client disconnects.
            await asyncio.wait([self.worker.run(job)])
        await self.events.cancelled(response_id)

    async def cancel_unbegun(self, response_ids: Sequence[str]) -> None:
        """Cancel those of the responses, of one owner with one tag, that wait and were never started.

        Raises:
            ApiError: 503, the store does not answer.
        """
        await self._unbegun.cancel(response_ids)

    async def _sealed(
        self, body: Json, keys: Mapping[str, Any], response_id: str, owner: Owner
    ) -> tuple[Json, str | None]:
        """Return the request's JSON without its secrets, and the sealed secrets; None if it has none."""
        call = partial(self._secrets.seal, body, keys, response_id, owner)
        return await in_thread_if_large(call, body.get("tools"))

    async def _store(self, response: Json, **more: Any) -> None:
        """Store a new response with its job, exactly once; the arguments are those of `save_once`."""
        unknown = (
            f"The response store did not confirm whether it stored the response. Retrieve response '{response['id']}' "
            "before you send the request again: a 404 means that it is not stored."
        )
        await save_once(self._archive, response, unknown, self._intervals, **more)

    def _check_store(self) -> None:
        if not self._records.transactional:
            raise bad_request(
                "Background responses and requests with an Idempotency-Key need a transactional store: set `store` of "
                "the responses provider, in the stack's configuration, to 'sqlite', 'redis', 'cluster' or 'postgres'.",
                "background",
                "unsupported_value",
            )

    def _make_worker(self, limits: WorkerLimits) -> Worker:
        return Worker(
            self.worker_id,
            jobs=self._jobs,
            event_log=self._event_log,
            notifier=self._notifier,
            listener=NotificationListener(self._records, self._notifier, self._intervals),
            heartbeat=self._heartbeat,
            foreground=self.foreground,
            limits=limits,
            runner=self._runner,
            intervals=self._intervals,
            share_of=self._share_of,
        )

    def _runner(self, job: Job, acceptance: Acceptance | None) -> JobRunner:
        return JobRunner(
            job,
            records=self._records,
            jobs=self._jobs,
            event_log=self._event_log,
            archive=self._archive,
            access=self._access,
            factory=self._factory,
            parse=self._parse,
            event_log_seconds=self._event_log_seconds,
            secrets=self._secrets,
            held_inputs=self._held_inputs,
            shared_commits=self._shared_commits,
            beginnings=self._beginnings,
            acceptance=acceptance,
            intervals=self._intervals,
        )
