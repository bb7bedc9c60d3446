"""One try of one worker at one job: the run of a response that outlives its request and its server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from functools import partial
from time import perf_counter
from typing import Final

from ..concurrency.offloading import in_thread_if_large
from ..concurrency.turns import Turn, Turns
from ..concurrency.waiting_work import Precedence
from ..core.access import Access
from ..core.errors import ApiError
from ..core.types import Json
from ..generation.driver import GenerationDriver
from ..generation.event_buffer import EventBuffer
from ..generation.factory import GenerationContext, GenerationFactory
from ..generation.loop import Ending, Generation, GenerationProgress
from ..generation.response_log import log_ended
from ..generation.timeline import Earlier
from ..inputs.history import Hold, for_model
from ..intervals import DEFAULT, Intervals
from ..items.tool_usage import ImageUsage
from ..logs import about, get_logger
from ..requests.request import CreateRequest
from ..store import codec
from ..store.archive import Archive
from ..store.loaded_response import StoredResponse
from ..store.records import UNAVAILABLE, Conflict, Op, Records, committed
from ..store.saving import Recording
from ..stream.assembler import Assembler
from ..stream.call_kinds import ServerCall
from ..stream.events import Event
from ..stream.recovery import asks_client, close_cut, repeated
from ..stream.transcript import Transcript
from ..stream.usage import Usage
from ..telemetry.metrics import Metric
from ..telemetry.trace_context import within
from .acceptance import Acceptance
from .event_log import EventLog
from .held_inputs import HeldInputs
from .job import QUEUED_EVENTS, Checkpoint, Job
from .job_secrets import JobSecrets
from .job_writer import JobWriter
from .queue import JobQueue
from .recorded_requests import RecordedRequests
from .shared_commits import SharedCommits
from .store_retry import StoreRetry

logger = get_logger(__name__)

WAITED: Final = Metric(
    "llama_stack_responses.queue.duration",
    "s",
    "Time that a background response waited",
    (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0),
)


class JobRunner:
    """Runs a response to its end, from its last checkpoint and the stored events after it.

    All its writes are fenced: once another worker has taken the job over, they fail and the runner ends.

    Args:
        job: the job.
        event_log_seconds: how long the event log stays readable after the end of the response.
        parse: parses the body of the request.
        secrets: opens the sealed secrets of the request.
        held_inputs: counts what the inputs of all jobs hold.
        shared_commits: the commits that the jobs of this process share.
        beginnings: the turns of responses that begin.
        acceptance: the phase in which the response may be refused, and in which its request has the turn; None if the
            response can no longer be refused.

    Attributes:
        broken: whether the try ended with a defect of this software, so that the next one may end in the same way.
    """

    def __init__(
        self,
        job: Job,
        *,
        records: Records,
        jobs: JobQueue,
        event_log: EventLog,
        archive: Archive,
        access: Access,
        factory: GenerationFactory,
        parse: Callable[[Json], CreateRequest],
        event_log_seconds: float,
        secrets: JobSecrets,
        held_inputs: HeldInputs,
        shared_commits: SharedCommits,
        beginnings: Turns,
        intervals: Intervals = DEFAULT,
        acceptance: Acceptance | None = None,
    ) -> None:
        self._intervals = intervals
        self.job, self.acceptance = job, acceptance
        self._records, self._jobs = records, jobs
        self._event_log = event_log
        self._archive, self._access = archive, access
        self._factory = factory
        self._parse = parse
        self._event_log_seconds = event_log_seconds
        self._secrets = secrets
        self._held_inputs, self._held = held_inputs, held_inputs.reserve(job.state.owner)
        self._retry = StoreRetry(intervals.store_retry_seconds)
        self._shared_commits, self._event_buffer = shared_commits, EventBuffer(wanted=True)
        self._requests = RecordedRequests(records, job.response_id)
        self._writer = JobWriter(job, records, event_log, self._event_buffer, self._requests, self._retry)
        self._generation: Generation | None = None
        self._beginnings = beginnings
        self._turn: Turn | None = None
        self._lost = self._handing_over = self._client_acts = False
        self._concluding = job.state.verdict is not None
        self._making: asyncio.Task[None] | None = None
        self.broken = False

    async def run(self) -> None:
        """Run the job; return when the response has ended, the job is released, or the lease is lost."""
        self._making = asyncio.create_task(self._make())
        pump = asyncio.create_task(self._pump())
        if self._lost:
            self._making.cancel()
        try:
            await asyncio.wait([self._making, pump], return_when=asyncio.FIRST_COMPLETED)
        finally:
            pump.cancel()
            self._making.cancel()
            await asyncio.wait([pump, self._making])
            self._held.release()
            if self.acceptance:
                self.acceptance.end()
        if self._handing_over:
            await self._hand_over()
        for task in (pump, self._making):
            self.broken |= self._is_broken(task)
        # Each of them refers to this runner: such a cycle would hold the response's input after its end.
        self._making = self._generation = None

    @property
    def concluding(self) -> bool:
        """Whether the runner is about to commit the job's end, or has done so."""
        return self._concluding

    def on_lease_expired(self) -> None:
        """End the try: this worker could not renew its lease in time."""
        if not self._lost:
            response_id = self.job.response_id
            logger.warning(
                "dropped a job because the lease of this worker expired: %s",
                response_id,
                extra={"response_id": response_id},
            )
            self.on_job_lost()

    def on_taken_over(self) -> None:
        """End the try: another worker holds the job."""
        if not self._lost:
            response_id = self.job.response_id
            logger.info(
                "dropped a job that another worker has taken over: %s", response_id, extra={"response_id": response_id}
            )
            self.on_job_lost()

    def on_job_lost(self) -> None:
        """End the try and write nothing more: another worker may hold the job."""
        self._lost = True
        if self._making:
            self._making.cancel()

    def hand_over(self) -> None:
        """End the try and release the job for another worker, unless the job is about to end here."""
        self._handing_over = self._retry.given_up = True
        if not self._concluding:
            self.on_job_lost()

    async def _make(self) -> None:
        if self.acceptance:
            await self._begin()
            return
        with await self._beginnings.take(Precedence.LATER) as self._turn:
            await self._begin()

    async def _begin(self) -> None:
        response_id = self.job.response_id
        poll_seconds = self._intervals.poll_seconds
        await self._retry(self._secrets.load)
        read = await self._retry(lambda: self._held_inputs.read(self._held, self._read, poll_seconds))
        checkpoint = await self._retry(lambda: self._jobs.checkpoint(response_id))
        if read is None or checkpoint is None:
            await self._retry(self._forget)
            return
        names = {"x_request_id": checkpoint.request_id} if checkpoint.request_id else {}
        with about(**names, **self._factory.name_owner(self.job.state.owner)):
            await self._answer(*read, checkpoint)

    async def _read(self, hold: Hold) -> tuple[StoredResponse, list[Json] | ApiError] | None:
        """Return the response and the input for the model, or why that cannot be read; None if there is no response.

        Both count as held until the try ends. Before there is room for them, nothing of them is in memory. A response
        that has expired is finished all the same: whether it is deleted is decided elsewhere, and the clock that says
        so may be wrong.
        """
        if self.job.state.verdict is not None:
            # It only ends, and does not wait for room.
            ended = await self._archive.load(self.job.response_id, expired=True)
            return (ended, []) if ended else None
        stored = await self._archive.load(self.job.response_id, hold, expired=True)
        if stored is None:
            return None
        recent = stored.response.get("truncation") == "auto"
        try:
            items = await (self._archive.recent if recent else self._archive.history)(stored.input, hold=hold)
        except ApiError as error:
            if error.status == UNAVAILABLE:
                raise
            return stored, error
        return stored, await in_thread_if_large(partial(for_model, items), items)

    async def _answer(self, stored: StoredResponse, items: list[Json] | ApiError, checkpoint: Checkpoint) -> None:
        """Run the response, and store how it ended."""
        began = perf_counter()
        state = self.job.state
        if state.starts > 1 and state.verdict is None:
            logger.info(
                "resumed a job: %s (start %d, round %d)", self.job.response_id, state.starts, checkpoint.rounds + 1
            )
        context = await self._take_up(stored, checkpoint)
        driver = GenerationDriver(context.assembler, self._event_buffer, self._factory.clock, context.timeline.counts)
        match state.verdict:
            case "cancelled":
                await driver.cancel()
            case "failed":
                message = "The server ended several times while it generated this response; it will not be retried."
                await driver.fail(ApiError(500, message))
            case None:
                generate = partial(self._generate, context, items, checkpoint)
                if not await driver.run(generate, self._refused) or self._lost:
                    return
        await self._conclude(context, stored, driver.error)
        log_ended(context.assembler.response, perf_counter() - began, driver.error)

    async def _refused(self, error: ApiError) -> bool:
        """Return whether the error of the generation refuses the response, or is not the response's."""
        if self._lost:
            # A provider may turn the cancellation into an error of its own.
            return True
        if self.acceptance is None or self.acceptance.is_over:
            return False
        await self._refuse(self.acceptance, error)
        return True

    async def _refuse(self, acceptance: Acceptance, error: ApiError) -> None:
        """Delete the response, which no client has seen yet, and pass the error to its client."""
        acceptance.refuse(error)
        self._concluding = True
        ops = [*self.job.delete_ops(), *self._event_log.unread(self.job.response_id), *acceptance.taken]
        await self._retry(
            lambda: self._archive.delete(self.job.response_id, extra_ops=ops, conditions=[self.job.fence])
        )
        acceptance.end()

    async def _forget(self) -> None:
        """Delete the job and the event log of a response that is no longer stored."""
        expiry = await self._records.now()
        recorded = await self._requests.delete_ops()
        ops = [
            *self._event_log.expire(self.job.response_id, expiry),
            *self.job.delete_ops(),
            *recorded,
        ]
        await self._records.commit(ops, [self.job.fence])

    async def _take_up(self, stored: StoredResponse, checkpoint: Checkpoint) -> GenerationContext:
        """Return the response in the state that its readers have seen, with its open items closed."""
        cut = await self._cut(checkpoint)
        output = list(checkpoint.output)
        number = cut[-1]["sequence_number"] + 1 if cut else checkpoint.numbered
        closing = close_cut(self.job.response_id, output, cut, number)
        self._client_acts = checkpoint.ends or asks_client(cut)
        response = stored.response | {"status": "in_progress", "output": output}
        # A job with a verdict does not need its request, which may be the reason why it failed.
        body = {"model": response["model"], "input": "..."}
        if self.job.state.verdict is None:
            # If the secrets cannot be opened, `_generate` raises the error.
            with suppress(ApiError):
                body, _ = await self._opened(checkpoint)
        request = await in_thread_if_large(partial(self._parse, body), body)
        context = self._factory.context(request, response, self.job.state.owner)
        since = stored.response["created_at"] if checkpoint.queued_at is None else checkpoint.queued_at
        earlier = await self._retry(lambda: self._earlier(since, number))
        context.timeline.resume(max(0.0, self._factory.clock() - since), checkpoint.timing, earlier)
        self._requests.timeline = context.timeline
        self._event_buffer.event_times = context.timeline.event_times
        emitted: list[Event] = []
        if number:
            self._writer.transcript, emitted = await self._retry(lambda: self._stored_events(checkpoint))
        shown = number + len(closing)
        context.assembler.resume(
            shown + len(checkpoint.held_events),
            Usage(*checkpoint.usage, is_partial=checkpoint.usage_is_partial),
            checkpoint.said,
            _waiting(checkpoint),
            [*emitted, *checkpoint.held_events],
            ImageUsage(*checkpoint.image_usage),
            {*checkpoint.repeated, *(() if checkpoint.waiting else repeated(cut))},
        )
        self._event_buffer.put(closing)
        self._event_buffer.order.resume(_still_open(checkpoint), checkpoint.held_events, shown)
        if number == 0:
            self._event_buffer.put(context.assembler.start())
        elif not any(event["type"] == "response.in_progress" for event in cut) and checkpoint.numbered == QUEUED_EVENTS:
            self._event_buffer.put(context.assembler.proceed())
        return context

    async def _earlier(self, since: float, events: int) -> Earlier | None:
        """Return what is known of earlier tries, which left `events` events; None if there was none.

        Args:
            since: the response's creation, in seconds since the epoch.
        """
        state = self.job.state
        if state.began is None or (state.starts < 2 and state.verdict is None):
            return None
        return Earlier(max(0.0, state.began - since), state.starts, await self._requests.stored(), events)

    async def _stored_events(self, checkpoint: Checkpoint) -> tuple[Transcript, list[Event]]:
        """Return the transcript of the events that are stored now, and those about calls that are not answered yet."""
        indices = {call.open_index for call in _waiting(checkpoint)} - {None}
        transcript = Transcript()
        emitted: list[Event] = []
        async for events in self._event_log.pages(self.job.response_id, -1):
            transcript.note(events)
            emitted += [event for event in events if event.get("output_index") in indices]
        return transcript, emitted

    async def _opened(self, checkpoint: Checkpoint) -> tuple[Json, Json]:
        """Return the request's JSON and the user's own credentials."""
        sealed, owner = checkpoint.sealed, self.job.state.owner
        call = partial(self._secrets.open, checkpoint.body, sealed, self.job.response_id, owner)
        return await in_thread_if_large(call, sealed)

    async def _cut(self, checkpoint: Checkpoint) -> list[Event]:
        """Return the events that a dead worker stored of an unfinished round.

        If they have not been read, delete them instead and return none, unless the job has a verdict.
        """
        response_id = self.job.response_id
        cut = await self._retry(lambda: self._event_log.read_all(response_id, checkpoint.numbered - 1))
        if not cut or self.job.state.verdict:
            return cut
        ops, unread = self._event_log.cut_back(response_id, cut)
        if await self._retry(lambda: committed(self._records, ops, [self.job.fence, *unread])):
            return []
        return await self._retry(lambda: self._event_log.read_all(response_id, checkpoint.numbered - 1))

    async def _generate(
        self, context: GenerationContext, items: list[Json] | ApiError, checkpoint: Checkpoint
    ) -> Ending:
        """Run the generation from its checkpoint to its end."""
        if isinstance(items, ApiError):
            raise items

        async def after_step(progress: GenerationProgress) -> None:
            await self._checkpoint(context, checkpoint, progress)

        progress = GenerationProgress(checkpoint.rounds, checkpoint.said, _waiting(checkpoint), self._client_acts)
        _, keys = await self._opened(checkpoint)
        self._record_wait(checkpoint)
        with self._access.acting_for(self.job.state.owner, keys), within(checkpoint.trace):
            generation = await context.generation(items, self._event_buffer, progress=progress, after_step=after_step)
            self._generation = generation
            if self.acceptance:
                self.acceptance.end_with(generation.accepted)
            if self._turn:
                generation.accepted.add_done_callback(self._turn.end)
            return await generation.run()

    def _record_wait(self, checkpoint: Checkpoint) -> None:
        if checkpoint.queued_at is not None and self.job.state.tries == 1:
            waited = self._factory.clock() - checkpoint.queued_at
            self._factory.telemetry.record(WAITED, max(0.0, waited))

    async def _checkpoint(
        self, context: GenerationContext, checkpoint: Checkpoint, progress: GenerationProgress
    ) -> None:
        """Store a checkpoint, from which the next worker continues."""
        assembler, buffered = context.assembler, self._event_buffer.order.buffered
        # Copies: they are encoded after this call, and the response may change in the meantime.
        self._writer.due = replace(
            checkpoint,
            said=list(progress.new_items),
            output=list(assembler.response["output"]),
            repeated=sorted(assembler.repeated),
            usage=astuple(assembler.used)[:-1],
            usage_is_partial=assembler.used.is_partial,
            image_usage=astuple(assembler.image_usage),
            rounds=progress.rounds,
            waiting=[asdict(call) for call in progress.waiting],
            ends=progress.ends,
            numbered=assembler.numbered - self._event_buffer.order.joined - len(buffered),
            held_events=buffered,
            tries=self.job.state.tries,
            timing=context.timeline.progress(),
        )
        await self._writer.write()

    async def _conclude(self, context: GenerationContext, stored: StoredResponse, error: ApiError | None) -> None:
        """Store the response, its last events and why it failed, and delete the job, in one commit."""
        self._concluding = True
        recording = context.timeline.recording
        await self._writer.conclude(
            self._event_buffer.order.feed(context.assembler.end()),
            lambda last, requests: self._store(
                context.assembler, stored, last, replace(recording(), error=error), requests
            ),
        )

    async def _store(
        self, assembler: Assembler, stored: StoredResponse, last: list[Event], recording: Recording, requests: list[Op]
    ) -> None:
        expiry = await self._records.now() + self._event_log_seconds
        await self._archive.save(
            assembler.response,
            owner=stored.owner,
            base=stored.input,
            input_items=[],
            # A response that was deleted or expired meanwhile is not stored again; the next try deletes its job.
            version=stored.version,
            transcript=self._writer.transcript.marks(assembler.left_out),
            exchanges=self._generation.exchanges if self._generation else {},
            recording=recording,
            extra_ops=[
                *await self._event_log.batch(self.job.response_id, last),
                *requests,
                *self._event_log.expire(self.job.response_id, expiry),
                *self.job.delete_ops(),
            ],
            conditions=[self.job.fence],
        )

    async def _pump(self) -> None:
        """Store events in batches. When the lease is lost, it fails with `Conflict`, which ends the try."""
        if self.acceptance:
            await self.acceptance.ended()
        while await self._event_buffer.filled():
            await self._writer.write()
            while await self._shared_commits.join(self._writer):
                await self._writer.write()

    async def _hand_over(self) -> None:
        try:
            await self._writer.write()
            await self._jobs.release(self.job)
        except (ApiError, Conflict) as error:
            logger.warning("could not hand over a job: %s: %s", self.job.response_id, error)

    def _is_broken(self, task: asyncio.Task[None]) -> bool:
        """Return whether the task ended with a defect, and log it."""
        error = None if task.cancelled() else task.exception()
        if error is None:
            return False
        if isinstance(error, Conflict):
            self.on_taken_over()
            return False
        logger.error("job failed: %s", self.job.response_id, exc_info=error)
        return not (isinstance(error, ApiError) and error.status == UNAVAILABLE)


def _waiting(checkpoint: Checkpoint) -> list[ServerCall]:
    return [ServerCall(**codec.known(ServerCall, call)) for call in checkpoint.waiting]


def _still_open(checkpoint: Checkpoint) -> int | None:
    """Return the output index of the open call: the first unanswered one whose events are not held."""
    held = {event["output_index"] for event in checkpoint.held_events}
    return min(
        (index for call in _waiting(checkpoint) if (index := call.open_index) is not None and index not in held),
        default=None,
    )
