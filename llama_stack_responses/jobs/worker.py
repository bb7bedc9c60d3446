"""This process's part of the background work: it takes jobs that wait, and looks after those of the dead."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from math import inf
from typing import Any, Final

from ..admission import Admission, Lease, Quota
from ..config import BackgroundWork
from ..core.access import Access
from ..core.errors import ApiError, bad_request
from ..core.ids import new_id
from ..core.owner import Owner
from ..core.schema.request import CreateRequest
from ..core.stream.events import Event
from ..generation.factory import Workshop
from ..logs import about, get_logger
from ..sealing.sealer import Sealer
from ..store.archive import Archive
from ..store.outcome import certain
from ..store.records import AWAY, Condition, Conflict, Delete, Op, Put, Records, VersionIs
from ..store.vouched import Vouched
from .acceptance import Opening
from .event_log import Journal
from .foreground_leases import Vouchers
from .listener import Lookout
from .notifier import Bell
from .queue import LEASE, QUEUE, RETRY, Held, Jobs, name_of, taken_from
from .runner import Attempt
from .secrets import JobSecrets

Json = dict[str, Any]

logger = get_logger(__name__)

_BREATH: Final = LEASE / 4
"""Seconds between two signs of life."""

_SILENT: Final = LEASE - _BREATH
"""Seconds without one after which this worker must take itself for dead."""

_GAP: Final = 2 * _BREATH
"""Seconds between two signs of life of this worker that show an outage of the store: the leases of other living workers
may have run out in it.
"""

_GRACE: Final = 2 * _BREATH
"""Seconds after its start for which a worker takes none for dead: the store may just have come back from an outage."""

_LOOK: Final = 0.5
"""Seconds between two looks: for jobs that other processes queued, and whether ours were taken from us.

On a store that says so they are longer.
"""

_OPENED: Final = "responses with an Idempotency-Key"

_GLANCE: Final = 0.05
"""Seconds between two looks at what is about to happen, on a store that does not say so."""


@dataclass(frozen=True, slots=True)
class CrewBounds:
    """How many background responses there may be.

    Attributes:
        at_once: made by this process at a time.
        at_once_per_owner: of them, one authenticated owner's.
        waiting: that wait, over all servers; and those with an Idempotency-Key that this process makes at a time.
        per_owner: one authenticated owner's that wait or are made, over all servers; and likewise.
    """

    at_once: int
    at_once_per_owner: int
    waiting: int
    per_owner: int

    @staticmethod
    def of(config: BackgroundWork) -> CrewBounds:
        """Those of a configuration; by default, an owner has three quarters of the work and a quarter of the queue."""
        return CrewBounds(
            config.at_once,
            config.at_once_per_owner or max(1, config.at_once * 3 // 4),
            config.waiting,
            config.per_owner or max(1, config.waiting // 4),
        )


class Crew:
    """Runs background responses, at most so many at a time; none, on a store that cannot hand out work.

    Args:
        records: what all servers share.
        bounds: how many responses may wait and be made.
        keep_journal: seconds for which events stay readable after the end.
        parse: makes a request of its body.
        sealer: seals the keys that users bring.
    """

    def __init__(
        self,
        records: Records,
        archive: Archive,
        access: Access,
        workshop: Workshop,
        *,
        bounds: CrewBounds,
        keep_journal: float,
        parse: Callable[[Json], CreateRequest],
        sealer: Sealer,
    ) -> None:
        self._records = records
        self._archive = archive
        self._access = access
        self._workshop = workshop
        self._bounds = bounds
        self._opened = Admission(Quota(_OPENED, bounds.waiting, bounds.per_owner))
        self._opened_by_all = Admission(Quota(_OPENED, bounds.waiting, bounds.waiting))
        self._keep_journal = keep_journal
        self._parse = parse
        self._secrets = JobSecrets(sealer)
        self._bell = Bell()
        self._jobs = Jobs(records, bounds.waiting, bounds.per_owner)
        self._journal = Journal(records, self._bell)
        self._lookout = Lookout(records, self._bell)
        self._worker = new_id("worker")
        self._vouchers = Vouchers(records, archive, self._worker)
        self._alive = False
        self._idle: set[str] = set()
        self._broken: set[str] = set()
        self._attempts: dict[asyncio.Task[None], Attempt] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._hanging_up = False

    def start(self) -> None:
        """Begins in the running event loop."""
        if not self._records.transactional:
            return
        duties = (self._live(), self._claim(), self._watch(), self._lookout.run())
        self._tasks = [asyncio.create_task(each) for each in duties]

    async def check(self) -> None:
        """Does nothing while background responses are made and looked after here.

        Raises:
            ApiError: 503, if they are not.
        """
        if not self._tasks:
            return
        await self._come_alive()
        # One that has ended by itself had nothing to do: not every store can be listened to.
        if any(task.done() and (task.cancelled() or task.exception()) for task in self._tasks):
            raise ApiError(503, "Background responses are not made by this server any more. Restart it.")

    def hang_up(self) -> None:
        """Lets go of those who follow a response here, because the server ends: they can go on elsewhere."""
        self._hanging_up = True
        self._bell.ring_all()

    async def stop(self) -> None:
        """Takes no more jobs and hands over those that run."""
        for task in self._tasks:
            task.cancel()
        for attempt in self._attempts.values():
            attempt.hand_over()
        if tasks := [*self._tasks, *self._attempts]:
            await asyncio.wait(tasks)
            await self._jobs.noted()
            try:
                await self._jobs.retire(self._worker)
            except ApiError as error:
                logger.warning("other servers learn late that this one ended: %s", error)

    async def submit(
        self,
        response: Json,
        body: Json,
        events: Sequence[Event],
        *,
        owner: Owner,
        keys: Mapping[str, Any],
        beside: Sequence[Op] = (),
        **history: Any,
    ) -> None:
        """Stores a queued response and its job in one step.

        Args:
            response: the response object, `queued`.
            body: the request's JSON, its input left out.
            events: its first events.
            owner: whose it is.
            keys: keys of the owner's own for providers.
            beside: what else the commit does.
            history: what it stands on, as `Archive.save` takes it.

        Raises:
            ApiError: 429, if too many are waiting, or the owner has too many; 400, if the store cannot hand out work,
                or there are keys that cannot be sealed.
        """
        self._check_store()
        response_id = response["id"]
        body, sealed = self._secrets.seal(body, keys, response_id, owner)
        async with self._jobs.enqueued(response_id, owner, body, sealed) as queued:
            ops = [*beside, *queued, *self._journal.batch(response_id, events)]
            await self._store(response, owner=owner, beside=ops, **history)
        self._bell.ring(QUEUE)

    async def open(
        self,
        response: Json,
        body: Json,
        *,
        owner: Owner,
        keys: Mapping[str, Any],
        beside: Sequence[Put],
        patience: float | None,
        **history: Any,
    ) -> None:
        """Stores a response and begins it at once, for a client that waits; returns when it counts as begun.

        From then on it is made like any other here, whether its client waits or not.

        Args:
            response: the response object, in progress.
            body: the request's JSON, its input left out.
            owner: whose it is.
            keys: keys of the owner's own for providers.
            beside: what else is put in the same commit; it goes again if the response is refused.
            patience: seconds after which it counts as begun although the provider has not accepted it; None waits on.
            history: what it stands on, as `Archive.save` takes it.

        Raises:
            ApiError: the provider refused it in that time; 429 or 503, too many are made here; 400, if the store cannot
                hand out work, or there are keys that cannot be sealed. Nothing is stored.
        """
        self._check_store()
        await self._come_alive()
        body, sealed = self._secrets.seal(body, keys, response["id"], owner)
        with ExitStack() as unless_begun:
            place = unless_begun.enter_context(self._place(owner))
            held, ops = await self._jobs.open(response["id"], owner, body, self._worker, sealed)
            await self._store(response, owner=owner, beside=[*beside, *ops], **history)
            opening = Opening([Delete(op.key) for op in beside], patience)
            self._begin(held, opening).add_done_callback(lambda _: place.release())
            unless_begun.pop_all()
        await opening.verdict()

    def _place(self, owner: Owner) -> Lease:
        """A place for a response that goes on when its client has left.

        Raises:
            ApiError: 429 or 503, there is none.
        """
        return (self._opened_by_all if owner.is_anonymous else self._opened).lease(owner).take(1)

    async def _store(self, response: Json, *, conditions: Sequence[Condition] = (), **more: Any) -> None:
        """Stores a new response with its job, once.

        Raises:
            Conflict: one of `conditions` does not hold.
            OutcomeUnknown: the store did not say whether it did.
        """
        response_id = response["id"]

        async def save(again: bool) -> None:
            fresh = [VersionIs(f"r/{response_id}", None)] if again else []
            try:
                await self._archive.save(response, conditions=[*conditions, *fresh], **more)
            except Conflict:
                if not (again and await self._archive.entry(response_id)):
                    raise

        await certain(
            save,
            f"The response store did not say whether it took the response. Retrieve response '{response_id}' before "
            "you send the request again: a 404 says that it was not taken.",
        )

    def _check_store(self) -> None:
        if not self._records.transactional:
            raise bad_request(
                "Background responses and requests with an Idempotency-Key need a store that can hand out work: "
                "'sqlite', 'redis' or 'postgres', as the `store` of the responses provider in the stack's "
                "configuration.",
                "background",
                "unsupported_value",
            )

    async def begun(self, response_id: str) -> None:
        """Waits until a response has begun, wherever that is, or has ended, or this server ends."""
        with self._bell.listen(response_id) as ear:
            while not self._hanging_up:
                if await self._journal.has(response_id) or await self._jobs.find(response_id) is None:
                    return
                await ear.wait(_LOOK)

    async def ended(self, response_id: str) -> None:
        """Waits until a response has ended, wherever that is, or this server ends."""
        with self._bell.listen(response_id) as ear:
            while not self._hanging_up:
                if await self._jobs.find(response_id) is None:
                    return
                await ear.wait(_LOOK)

    async def forget(self, response_id: str) -> None:
        """Drops what is left of a response that is deleted."""
        if not self._records.transactional:
            return
        try:
            await self._journal.forget(response_id)
        except ApiError as error:
            # The response is deleted, and the journal of one that has ended goes by itself.
            logger.warning("the events of a deleted response are dropped later: %s", error)

    async def follow(self, response_id: str, after: int, silence: float) -> AsyncIterator[list[Event]]:
        """A response's events behind number `after`, as they come; an empty list for so many seconds of silence.

        It ends with the terminal event, when the response has ended and its journal is gone, or when this server ends.
        A store that is away is waited for, as it is by whoever makes the response: each try is an empty list.
        """

        async def lasts() -> bool:
            return not self._hanging_up and await self._jobs.find(response_id) is not None

        async def fence() -> Condition | None:
            held = await self._jobs.find(response_id)
            return held.fence if held else None

        while not self._hanging_up:
            try:
                async for events in self._journal.follow(response_id, after, silence, lasts, fence):
                    yield events
                    after = events[-1]["sequence_number"] if events else after
                return
            except ApiError as error:
                if error.status != AWAY:
                    raise
            yield []
            await asyncio.sleep(RETRY)

    async def find(self, response_id: str) -> Held | None:
        """The response's job; None if it has ended, or never was one."""
        return await self._jobs.find(response_id)

    async def cancel(self, response_id: str) -> None:
        """Ends a response wherever it is made; what was said until then is kept. Does nothing if it has ended."""
        held = await certain(
            lambda again: self._seize(response_id, again),
            f"The response store did not say whether response '{response_id}' is cancelled: cancel it again.",
        )
        if held is not None:
            for attempt in self._attempts.values():
                if attempt.held.response_id == response_id:
                    attempt.lose()
            # Not in this task: should the client leave, it is ended all the same.
            await asyncio.wait([self._begin(held)])
        await self._gone(response_id)

    async def _seize(self, response_id: str, again: bool) -> Held | None:
        """Takes the job over to cancel it; with `again`, an earlier call may have done so."""
        held = await self._jobs.seize(response_id, self._worker, "cancelled")
        if held is None and again:
            found = await self._jobs.find(response_id)
            at_work = [attempt.held for attempt in self._attempts.values()]
            if found and found.job.worker == self._worker and found not in at_work:
                return found
        return held

    async def _gone(self, response_id: str) -> None:
        """Waits until the job has ended, wherever that is; should its server die meanwhile, others end it later."""
        with suppress(TimeoutError), self._bell.listen(response_id) as ear:
            async with asyncio.timeout(LEASE):
                while await self._jobs.find(response_id):
                    await ear.wait(_GLANCE)

    async def vouch(self, response: Json, **history: Any) -> None:
        """Says that this process makes a foreground response, so that others end it should this process die.

        On a store that cannot hand out work, there is nobody who would.

        Args:
            history: what it stands on, and whose it is, as `Archive.save` takes it.
        """
        if self._records.transactional:
            await self._come_alive()
            await self._vouchers.vouch(response, **history)

    async def delete_under_way(self, vouched: Vouched) -> bool:
        """Deletes a foreground response that is under way; False if it has ended meanwhile."""

        async def delete(again: bool) -> bool:
            return await self._vouchers.delete(vouched) or again

        return await certain(
            delete,
            f"The response store did not say whether it deleted response '{vouched.response['id']}': delete it again. "
            "A 404 says that it was deleted.",
        )

    def settled(self, response_id: str) -> tuple[list[Op], list[Condition]]:
        """What says, in the commit that stores a foreground response, that it is made, and what that depends on.

        The condition fails if this process was taken for dead meanwhile: the response has failed then.
        """
        if not self._records.transactional:
            return [], []
        ops, unburied = self._vouchers.settled(response_id)
        return ops, [unburied]

    def ended_here(self, response_id: str) -> None:
        """Says that a foreground response is no longer made here, whatever came of it."""
        self._vouchers.ended_here(response_id)

    def give_up(self, response_id: str, error: ApiError) -> None:
        """Has a foreground response that the store did not take stored as failed as soon as that can be done."""
        if self._records.transactional:
            self._vouchers.give_up(response_id, error)

    async def withdraw(self, response_id: str) -> None:
        """Vouches no longer for a foreground response of which nothing is to be stored."""
        if self._records.transactional:
            await self._vouchers.withdraw(response_id)

    async def sweep(self) -> None:
        """Drops the journals of responses that ended long ago."""
        while await self._journal.sweep():
            pass

    async def _come_alive(self) -> None:
        """Says, before anything is this worker's, that it lives: others would take it for a dead one's."""
        if not self._alive:
            await self._breathe()

    async def _breathe(self) -> None:
        await self._jobs.breathe(self._worker)
        self._alive = True

    async def _live(self) -> None:
        """Says that this worker lives. One that cannot say so for too long must take itself for dead."""
        loop = asyncio.get_running_loop()
        said, patient = loop.time(), loop.time() + _GRACE
        while True:
            pause = _LOOK
            try:
                await self._breathe()
                if loop.time() - said > _GAP:
                    # Nor may the others have been able to say so: who lives gets the time to.
                    patient = loop.time() + LEASE
                said, pause = loop.time(), _BREATH
                await self._look_after(others=said >= patient)
            except ApiError as error:
                logger.warning("background work stands still: %s", error)
            except Exception:
                logger.exception("background work is not looked after")
            if loop.time() - said > _SILENT:
                self._alive = False
                for attempt in self._attempts.values():
                    attempt.lose()
            await asyncio.sleep(pause)

    async def _look_after(self, *, others: bool) -> None:
        """Sees to what was left behind, here and, if they are to be taken for dead, by others."""
        rescued = await self._jobs.rescue() if others else 0
        if rescued + await self._recover():
            self._bell.ring(QUEUE)
        await self._vouchers.own_up()
        if others:
            await self._vouchers.bury()
        await self.sweep()

    async def _recover(self) -> int:
        """Lets jobs wait again that this worker has and does not do, at the second look: a claim may be under way.

        It may have claimed one without hearing so, it ended its attempts if it once took itself for dead, and an
        attempt may have ended with a defect.

        Returns:
            How many they were.
        """
        held = await self._jobs.held_by(self._worker)
        idle = held - {attempt.held.response_id for attempt in self._attempts.values()}
        lost = idle & self._idle
        for response_id in lost:
            await self._jobs.recover(self._worker, response_id, counts=response_id in self._broken)
        self._broken &= idle - lost
        self._idle = idle
        return len(lost)

    async def _claim(self) -> None:
        """Takes what waits, for as long as there is room, and calls the others if there is none for some of it.

        They are not called before: all would reach for what the one that it was given to takes anyway.
        """
        with self._bell.listen(QUEUE) as ear:
            rung = True
            while True:
                patience = inf
                try:
                    await self._come_alive()
                    has_room, at_limit = self._room()
                    if has_room and (held := await self._jobs.claim(self._worker, at_limit)):
                        self._begin(held)
                        continue
                    if rung and (at_limit or not has_room):
                        await self._jobs.call_others()
                except ApiError as error:
                    logger.warning("no background work is taken: %s", error)
                    patience = _LOOK
                except Exception:
                    logger.exception("no background work is taken")
                rung = await ear.wait(_LOOK, patience)

    def _room(self) -> tuple[bool, set[str]]:
        """Whether another job can be taken, and the names of owners of whom none can be.

        Jobs that clients wait for do not count: they never waited here.
        """
        owners = [attempt.held.job.owner for attempt in self._attempts.values() if attempt.opening is None]
        counts = Counter(name_of(owner) for owner in owners if not owner.is_anonymous)
        at_limit = {of for of, count in counts.items() if count >= self._bounds.at_once_per_owner}
        return len(owners) < self._bounds.at_once, at_limit

    async def _watch(self) -> None:
        """Ends the attempts whose job was taken over: they would else go on until they next write."""
        with self._bell.listen(taken_from(self._worker)) as ear:
            while True:
                await ear.wait(_LOOK)
                attempts = list(self._attempts.values())
                if not attempts:
                    continue
                try:
                    mine = await self._jobs.still_held([attempt.held for attempt in attempts])
                except ApiError:
                    continue
                except Exception:
                    logger.exception("nobody looks whether background work was taken over")
                    continue
                for attempt in attempts:
                    # The last commit of one that concludes has ended the job, or fails.
                    if attempt.held.response_id not in mine and not attempt.concluding:
                        attempt.lose()

    def _begin(self, held: Held, opening: Opening | None = None) -> asyncio.Task[None]:
        attempt = self._attempt(held, opening)
        with about(response_id=held.response_id):
            task = asyncio.create_task(attempt.run())
        self._attempts[task] = attempt
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        attempt = self._attempts.pop(task)
        if attempt.broken:
            self._broken.add(attempt.held.response_id)
        self._bell.ring(QUEUE)

    def _attempt(self, held: Held, opening: Opening | None) -> Attempt:
        return Attempt(
            held,
            records=self._records,
            jobs=self._jobs,
            journal=self._journal,
            bell=self._bell,
            archive=self._archive,
            access=self._access,
            workshop=self._workshop,
            parse=self._parse,
            keep_journal=self._keep_journal,
            secrets=self._secrets,
            opening=opening,
        )
