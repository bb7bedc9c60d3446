"""One worker's try at one background response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, astuple, replace
from typing import Any, Final

from ..core.access import Access
from ..core.errors import ApiError
from ..core.schema.request import CreateRequest
from ..core.stream.calls import ServerCall
from ..core.stream.deltas import Usage
from ..core.stream.events import Event
from ..core.stream.recovery import close_cut
from ..core.stream.transcript import Transcript
from ..generation.event_buffer import Outbox
from ..generation.factory import Bench, Workshop
from ..generation.loop import Progress, Turn
from ..inputs.history import for_model
from ..logs import get_logger
from ..store.archive import Archive, StoredResponse
from ..store.records import AWAY, Conflict, Op, Put, Records, committed
from ..telemetry.trace_context import within
from .acceptance import Opening
from .event_log import Journal
from .notifier import Bell
from .queue import BEGUN, RETRY, Held, Jobs, Work
from .secrets import JobSecrets

Json = dict[str, Any]

logger = get_logger(__name__)

_PAUSE: Final = 0.05
"""Seconds between two batches of a journal: what comes meanwhile goes into one."""


class Attempt:
    """Takes a response from where its journal and its finished rounds left it to its end.

    Nothing that it writes is kept once somebody else has taken the job over; it ends then.

    Args:
        held: the job.
        keep_journal: seconds for which the events stay readable after the end.
        parse: makes a request of its body.
        keys: opens the keys that the user brought.
        opening: until when the response can be refused; None if it has begun.

    Attributes:
        broken: whether it ended with a defect of this software, so that the next try may end in the same way.
    """

    def __init__(
        self,
        held: Held,
        *,
        records: Records,
        jobs: Jobs,
        journal: Journal,
        bell: Bell,
        archive: Archive,
        access: Access,
        workshop: Workshop,
        parse: Callable[[Json], CreateRequest],
        keep_journal: float,
        secrets: JobSecrets,
        opening: Opening | None = None,
    ) -> None:
        self.held = held
        self.opening = opening
        self._records = records
        self._jobs = jobs
        self._journal = journal
        self._bell = bell
        self._archive = archive
        self._access = access
        self._workshop = workshop
        self._parse = parse
        self._keep_journal = keep_journal
        self._secrets = secrets
        self._outbox = Outbox(wanted=True)
        self._waiting: list[Event] = []
        self._due: list[Op] = []
        self._turn: Turn | None = None
        self._writing = asyncio.Lock()
        self._lost = False
        self._handing_over = False
        self._concluding = held.job.verdict is not None
        self._making: asyncio.Task[None] | None = None
        self.broken = False

    async def run(self) -> None:
        """Does the work; returns when the response is finished, given back, or somebody else's."""
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
            if self.opening:
                self.opening.end()
        if self._handing_over:
            await self._hand_over()
        for task in (pump, self._making):
            self.broken |= _is_broken(self.held.response_id, task)

    @property
    def concluding(self) -> bool:
        """Whether it is about to end the job, or has ended it by now and cleans up."""
        return self._concluding

    def lose(self) -> None:
        """Ends the attempt without another word: the job is somebody else's."""
        self._lost = True
        if self._making:
            self._making.cancel()

    def hand_over(self) -> None:
        """Ends the attempt, and lets the job wait for another worker; but what is at its end is brought there."""
        self._handing_over = True
        if not self._concluding:
            self.lose()

    async def _make(self) -> None:
        response_id = self.held.response_id
        found = await self._insist(lambda: self._archive.load(response_id))
        work = await self._insist(lambda: self._jobs.work(response_id))
        if found is None or work is None:
            await self._insist(self._forget)
            return
        bench = await self._take_up(found, work)
        error = await self._error(bench, found, work)
        if error and self.opening and not self.opening.over:
            await self._refuse(self.opening, error)
            return
        if error:
            self._outbox.put(bench.assembler.close("incomplete"))
            bench.assembler.settle("failed", error=error)
        await self._conclude(bench, found)

    async def _error(self, bench: Bench, found: StoredResponse, work: Work) -> ApiError | None:
        """Brings the response to its end; what went wrong, if anything did."""
        try:
            await self._end(bench, found, work)
        except Conflict:
            raise
        except ApiError as error:
            return error
        except Exception as error:
            logger.exception("%s failed", self.held.response_id)
            return ApiError(500, f"The server failed while it made the response ({type(error).__name__}).")
        return None

    async def _refuse(self, opening: Opening, error: ApiError) -> None:
        """Removes the response, of which nobody has heard yet, and tells its client why."""
        opening.refuse(error)
        self._concluding = True
        ops = [*self.held.gone(), *self._journal.unread(self.held.response_id), *opening.taken]
        await self._insist(
            lambda: self._archive.delete(self.held.response_id, beside=ops, conditions=[self.held.fence])
        )
        opening.end()

    async def _forget(self) -> None:
        """Removes what is left of a response that is gone."""
        expiry = await self._records.now()
        ops = [*self._journal.expire(self.held.response_id, expiry), *self.held.gone()]
        await self._records.commit(ops, [self.held.fence])

    async def _take_up(self, found: StoredResponse, work: Work) -> Bench:
        """The response as its readers know it, with what was cut off in it closed."""
        cut = await self._cut(work)
        output = list(work.output)
        number = cut[-1]["sequence_number"] + 1 if cut else work.numbered
        closing = close_cut(self.held.response_id, output, cut, number)
        response = found.response | {"status": "in_progress", "output": output}
        # What is only to be ended needs nothing of its request, which may be what could not be done.
        body = {"model": response["model"], "input": "..."}
        if self.held.job.verdict is None:
            # What cannot be opened is ended too: `_end` says why.
            with suppress(ApiError):
                body, _ = self._opened(work)
        bench = self._workshop.bench(self._parse(body), response, self.held.job.owner)
        response_id = self.held.response_id
        told = await self._insist(lambda: self._journal.read_all(response_id, -1)) if work.waiting else []
        bench.assembler.resume(number + len(closing), Usage(*work.usage), work.said, _waiting(work), told)
        self._outbox.put(closing)
        if number == 0:
            self._outbox.put(bench.assembler.start())
        elif not any(event["type"] == "response.in_progress" for event in cut) and work.numbered == BEGUN:
            self._outbox.put(bench.assembler.proceed())
        return bench

    def _opened(self, work: Work) -> tuple[Json, Json]:
        """The request's JSON, and its user's own keys."""
        return self._secrets.open(work.body, work.sealed, self.held.response_id, self.held.job.owner)

    async def _cut(self, work: Work) -> list[Event]:
        """What a dead worker wrote of a round that it did not finish; if nobody has read it, it is taken back."""
        response_id = self.held.response_id
        cut = await self._insist(lambda: self._journal.read_all(response_id, work.numbered - 1))
        if not cut or self.held.job.verdict:
            return cut
        ops, unread = self._journal.cut_back(response_id, cut)
        if await self._insist(lambda: committed(self._records, ops, [self.held.fence, *unread])):
            return []
        return await self._insist(lambda: self._journal.read_all(response_id, work.numbered - 1))

    async def _end(self, bench: Bench, found: StoredResponse, work: Work) -> None:
        """Brings the response to its end; its last fields are settled then."""
        assembler, owner = bench.assembler, self.held.job.owner
        match self.held.job.verdict:
            case "cancelled":
                self._outbox.put(assembler.close("incomplete"))
                assembler.settle("cancelled")
            case "failed":
                self._outbox.put(assembler.close("incomplete"))
                message = "The server ended several times while it made this response; it was given up."
                assembler.settle("failed", error=ApiError(500, message))
            case None:
                items = for_model(await self._insist(lambda: self._archive.history(found.input)))

                async def after_step(progress: Progress) -> None:
                    await self._checkpoint(bench, work, progress)

                progress = Progress(work.rounds, work.said, _waiting(work), work.ends)
                _, keys = self._opened(work)
                self._tell_wait(work)
                with self._access.acting_for(owner, keys), within(work.trace):
                    turn = await bench.turn(items, self._outbox, progress=progress, after_step=after_step)
                    self._turn = turn
                    if self.opening:
                        self.opening.end_with(turn.accepted)
                    ending = await turn.run()
                completed_at = int(time.time()) if ending.status == "completed" else None
                assembler.settle(ending.status, completed_at=completed_at, incomplete_reason=ending.incomplete_reason)

    def _tell_wait(self, work: Work) -> None:
        # The clock of this server, which costs no look at the store's.
        if work.queued_at is not None and self.held.job.tries == 1:
            self._workshop.telemetry.waited(time.time() - work.queued_at)

    async def _checkpoint(self, bench: Bench, work: Work, progress: Progress) -> None:
        """Writes down what is finished: whoever takes the job over begins behind it."""
        assembler = bench.assembler
        done = replace(
            work,
            said=progress.said,
            output=assembler.response["output"],
            usage=astuple(assembler.used),
            rounds=progress.rounds,
            waiting=[asdict(call) for call in progress.waiting],
            ends=progress.ends,
            numbered=assembler.numbered,
            tries=self.held.job.tries,
        )
        self._due = [Put(f"k/{self.held.response_id}", done.encode())]
        await self._write()

    async def _conclude(self, bench: Bench, found: StoredResponse) -> None:
        """Stores the response, its last events and the job's end in one step."""
        self._concluding = True
        async with self._writing:
            last = [*self._waiting, *self._outbox.ready(), *bench.assembler.end()]
            self._waiting = []
            try:
                await self._insist(lambda: self._store(bench.assembler.response, found, last))
            finally:
                # Also after a conflict: an earlier try may have been made whose answer was lost.
                self._bell.ring(self.held.response_id)

    async def _store(self, response: Json, found: StoredResponse, last: list[Event]) -> None:
        transcript = Transcript()
        transcript.note(await self._journal.read_all(self.held.response_id, -1))
        transcript.note(last)
        expiry = await self._records.now() + self._keep_journal
        await self._archive.save(
            response,
            owner=found.owner,
            base=found.input,
            input_items=[],
            # A response that was deleted or has expired meanwhile stays away; its job goes with the next attempt.
            version=found.version,
            transcript=transcript.marks(),
            exchanges=self._turn.exchanges if self._turn else {},
            beside=[
                *self._journal.batch(self.held.response_id, last),
                *self._journal.expire(self.held.response_id, expiry),
                *self.held.gone(),
            ],
            conditions=[self.held.fence],
        )

    async def _pump(self) -> None:
        """Writes events in batches; ends, and the attempt with it, when the job is somebody else's."""
        if self.opening:
            await self.opening.ended()
        while await self._outbox.filled():
            await self._write()
            await asyncio.sleep(_PAUSE)

    async def _write(self) -> None:
        """Writes down the events that there are, and with them how far the work is: none goes without the other."""
        async with self._writing:
            self._waiting += self._outbox.ready()
            due, self._due = self._due, []
            if not (due or self._waiting):
                return
            batch = self._journal.batch(self.held.response_id, self._waiting)
            await self._insist(lambda: self._records.commit([*batch, *due], [self.held.fence]))
            self._waiting = []
        self._bell.ring(self.held.response_id)

    async def _hand_over(self) -> None:
        try:
            await self._write()
            await self._jobs.give_back(self.held)
        except (ApiError, Conflict) as error:
            logger.warning("%s could not be handed over: %s", self.held.response_id, error)

    async def _insist[Result](self, call: Callable[[], Awaitable[Result]]) -> Result:
        """Makes a call until the store takes it: what a worker has must not be lost while it lives."""
        while True:
            try:
                return await call()
            except ApiError as error:
                if error.status != AWAY or self._handing_over:
                    raise
                logger.warning("the response store does not answer; trying again: %s", error)
                await asyncio.sleep(RETRY)


def _waiting(work: Work) -> list[ServerCall]:
    return [ServerCall(**call) for call in work.waiting]


def _is_broken(response_id: str, task: asyncio.Task[None]) -> bool:
    """Whether the task ended with a defect, which is logged."""
    error = None if task.cancelled() else task.exception()
    if error is None:
        return False
    if isinstance(error, Conflict):
        logger.info("%s is somebody else's by now", response_id)
        return False
    logger.error("%s failed in the background", response_id, exc_info=error)
    return not (isinstance(error, ApiError) and error.status == AWAY)
