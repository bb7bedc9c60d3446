"""Sends the deliveries that are due, on any server of the store.

A server that sends to an endpoint holds its lease, a row that names its worker, and sends a few messages at a time. So
no message is sent by two servers at a time. What a server held is free once its worker has no lease, since it is dead.
The owners of endpoints share the slots of a server: while endpoints wait, one gives its slot back after each round of
messages, and the next one is that of the owner who holds least. So the slow or dead receivers of an owner delay the
messages of others by one attempt at most. A message whose server dies before it has stored the answer is sent again
with the same id. A response has one end, and so one event: the events of different responses are not ordered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import orjson

from ...concurrency.fair_budget import FairBudget
from ...concurrency.share import Share, working_for
from ...concurrency.tasks import LoopTask, end_all
from ...core.backoff import pause_after
from ...core.errors import ApiError
from ...core.ids import tag_of
from ...feature import Ended
from ...jobs.served_partitions import WatchedRows
from ...lifecycle.periodic import Periodic
from ...logs import Outage, get_logger
from ...store.records import UNAVAILABLE, Delete, Op, Put, Records, VersionIs, committed
from ...telemetry.instrumentation import Telemetry
from ...telemetry.metrics import Metric
from .deliveries import Deliveries, Settled
from .endpoints import Endpoints
from .rows import DAY_SECONDS, EVENTS, QUEUE, Attempt, Delivery, Queued, State, lease_key, state_key
from .sending import Answer, Sender
from .signing import signed_headers

logger = get_logger(__name__)

ATTEMPTS: Final = Metric(
    "llama_stack_responses.webhook.attempts", "{attempt}", "Attempts to deliver webhooks, by their result"
)
DELAY: Final = Metric(
    "llama_stack_responses.webhook.delay",
    "s",
    "Time from the end of a response until its webhook is delivered",
    (0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0, 14_400.0, 86_400.0, 259_200.0),
)
WAITING: Final = Metric("llama_stack_responses.webhook.waiting", "s", "Time that the oldest webhook has waited")

_MEASURE_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 2.0
"""Interval in which a server looks for what others have left."""
_LEASE_SECONDS: Final = 60.0
"""Time after which a lease is free although its server lives, longer than a round of messages takes."""
_AT_ONCE: Final = 4
"""Messages that are sent to one endpoint at the same time."""
_ENDPOINTS: Final = 200
"""Endpoints to which a server sends at the same time."""
_ENDPOINTS_OF_OWNER: Final = 50
"""Those of one owner, so that a few owners with slow receivers leave slots free."""
_KNOWN: Final = 4_000
"""Endpoints to which a server sends, or for which something is due and that wait for a slot."""
_MAX_RETRY_SECONDS: Final = 4 * 3_600.0
_GONE: Final = 410


@dataclass(frozen=True, slots=True)
class Target:
    """Where messages are sent.

    Attributes:
        secrets: those that sign.
        failure: why nothing can be sent there; empty if it can.
    """

    url: str
    secrets: Sequence[str]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Retries:
    """When a message is sent again.

    Attributes:
        first: seconds before the second attempt.
        longest: seconds after which a delivery fails.
    """

    first: float
    longest: float

    def pause(self, tried: int) -> float:
        """Return the seconds before the next attempt, with jitter."""
        return pause_after(tried, self.first, _MAX_RETRY_SECONDS)


class Workers(Protocol):
    """The worker of this server, and those of all servers, and where there is work for them.

    Attributes:
        worker_id: the name of the one of this server.
    """

    worker_id: str

    async def leases(self, workers: Iterable[str]) -> Mapping[str, float]:
        """Return when the leases of workers expire, by the names of those that live."""
        ...

    def watched(self, prefix: str) -> WatchedRows:
        """Return in which partitions of the store rows of a prefix may be."""
        ...


class Dispatcher:
    """Makes deliveries of events, and sends those that are due.

    Args:
        records: the store.
        endpoints: the endpoints of users.
        deliveries: the deliveries.
        configured: the endpoints of the configuration, by their ids.
        sender: sends messages.
        retries: when they are sent again.
        telemetry: records metrics.
        poll_seconds: interval in which it looks for what is due.
    """

    def __init__(
        self,
        records: Records,
        endpoints: Endpoints,
        deliveries: Deliveries,
        configured: Mapping[str, Target],
        sender: Sender,
        retries: Retries,
        telemetry: Telemetry,
        poll_seconds: float = _POLL_SECONDS,
    ) -> None:
        self._records, self._endpoints, self._deliveries = records, endpoints, deliveries
        self._configured, self._sender, self._retries, self._telemetry = configured, sender, retries, telemetry
        self._poll_seconds = poll_seconds
        self._workers: Workers | None = None
        self._task = LoopTask(self._repeat)
        self._wake = asyncio.Event()
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._slots = FairBudget(_ENDPOINTS, _ENDPOINTS_OF_OWNER)
        self._due_again: set[str] = set()  # endpoints for which something was due while their task went on
        self._positions: dict[int, str] = {}
        self._oldest: float | None = None
        self._measuring = Periodic(self._measure, "could not measure how long webhooks wait", logger, _MEASURE_SECONDS)

    def work_with(self, workers: Workers) -> None:
        """Work with these workers from the start on."""
        self._workers = workers
        self._events, self._queue = workers.watched(EVENTS), workers.watched(QUEUE)

    def start(self) -> None:
        """Start in the running event loop."""
        self._telemetry.show_value(WAITING, lambda: self._oldest)
        self._task.start()
        self._measuring.start()

    async def stop(self) -> None:
        """Stop. What was being sent is sent again by another server."""
        await self._measuring.stop()
        await self._task.stop()
        await end_all(list(self._sending.values()))

    def ended(self, ended: Ended) -> None:
        """Look at once for what is due, after the end of a background response."""
        if ended.response.get("background"):
            self.happened(ended.response["id"])

    def happened(self, object_id: str) -> None:
        """Look at once for what is due, after an event of an object."""
        if self._workers:
            self._events.found(tag_of(object_id))
        self._wake.set()

    def look(self, endpoint: str = "") -> None:
        """Look at once for what is due, also of an endpoint."""
        if self._workers:
            self._queue.found(tag_of(endpoint))
        self._wake.set()

    async def _repeat(self) -> None:
        outage = Outage()
        while True:
            self._wake.clear()
            try:
                # A partition of the store that does not answer holds up no other one.
                if failures := [*await self._make(), *(await self._queue.read(self._send_due))[1]]:
                    raise failures[0]
                outage.over()
            except ApiError as error:
                if outage.should_log(error):
                    logger.warning("could not look for webhooks that are due: %s", error)
            except Exception:
                logger.exception("could not look for webhooks that are due")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), self._poll_seconds)

    async def _make(self) -> list[ApiError]:
        """Make the deliveries of all events; return why partitions of the store did not answer."""
        while True:
            endpoints, failures = await self._events.read(self._deliveries.make)
            for each in endpoints:
                self._queue.found(tag_of(each))
            if not endpoints:
                return failures

    async def _measure(self) -> None:
        """Look how long the oldest delivery has waited."""
        oldest, _ = await self._queue.read(self._deliveries.oldest)
        self._oldest = max(await self._records.now() - min(oldest), 0.0) if oldest else 0.0

    async def _send_due(self, number: int) -> list[str]:
        """Begin to send to each endpoint in a partition for which something is due, as far as there is room.

        Return those for which something waits, and an empty one as the last if there was no room.
        """
        now, waiting = await self._records.now(), list[str]()
        start, wrapped = self._positions.get(number, ""), False
        while len(self._sending) < _KNOWN:
            first = await self._deliveries.first(number, self._positions.get(number, ""))
            if first is None or (wrapped and first.endpoint > start):
                self._positions.pop(number, None)
                if wrapped or not start:
                    return waiting
                wrapped = True
                continue
            self._positions[number] = first.endpoint
            waiting.append(first.endpoint)
            if first.due > now:
                continue
            if first.endpoint in self._sending:
                self._due_again.add(first.endpoint)
                continue
            with working_for(Share(first.endpoint_of or None)):
                self._sending[first.endpoint] = asyncio.create_task(self._send_all(first.endpoint))
        return [*waiting, ""]

    async def _send_all(self, endpoint: str) -> None:
        """Send what is due to an endpoint, in the turns of its owner, unless another server does."""
        try:
            more = True
            while more:
                async with self._slots.hold(1):
                    more = await self._with_lease(endpoint)
        except ApiError as error:
            # The rows stay, so it is done again.
            logger.warning("could not deliver to webhook endpoint %s: %s", endpoint, error)
        except Exception:
            logger.exception("could not deliver to webhook endpoint %s", endpoint)
        finally:
            self._sending.pop(endpoint, None)
            if endpoint in self._due_again:
                self._due_again.discard(endpoint)
                self.look(endpoint)

    async def _with_lease(self, endpoint: str) -> bool:
        """Send what is due until other endpoints wait for a slot; return whether more may be due."""
        key, version = lease_key(endpoint), None
        try:
            while True:
                now = await self._records.now()
                version = await self._taken(key, version, now)
                self._due_again.discard(endpoint)  # without the lease, that is for the server that has it
                if version is None or not (rows := await self._deliveries.due(endpoint, now, _AT_ONCE)):
                    return False
                await self._send(rows, now)
                if self._slots.waiting:
                    return True
        finally:
            if version:
                await committed(self._records, [Delete(key)], [VersionIs(key, version)])

    async def _taken(self, key: str, version: int | None, now: float) -> int | None:
        """Take a lease, or renew the one with this version; return its version, None if another server has it.

        A failover may lose the lease, so that another server takes it, perhaps with the same version. Then both send,
        the same messages with the same ids, until one of them renews it and so tells the other. Each attempt is settled
        once, by its row of the queue.
        """
        assert self._workers, "it is not connected"
        put = Put(key, self._workers.worker_id.encode(), now + _LEASE_SECONDS)
        if await committed(self._records, [put], [VersionIs(key, version)]):
            return (version or 0) + 1
        found = (await self._records.get_many([key])).get(key)
        if found is None or await self._is_held(self._workers, found.value.decode()):
            return None
        free = VersionIs(key, found.version)
        return found.version + 1 if await committed(self._records, [put], [free]) else None

    async def _is_held(self, workers: Workers, holder: str) -> bool:
        """Return whether the worker that a lease names sends: one that lives, and not that of this server."""
        return holder != workers.worker_id and holder in await workers.leases([holder])

    async def _send(self, rows: Sequence[Queued], now: float) -> None:
        endpoint = rows[0].endpoint
        target = await self._target(rows[0], now)
        if target is None:
            await self._deliveries.drop(rows)
            return
        state = await self._endpoints.state(endpoint)
        found = await self._deliveries.load(rows)
        await self._deliveries.drop(row for row in rows if row.delivery not in found)
        waiting = [(row, found[row.delivery]) for row in rows if row.delivery in found]
        if state and state.disabled_at:
            for row, delivery in waiting:
                attempt = Attempt(int(now), None, "The endpoint is disabled.")
                await self._deliveries.settle(Settled(row, delivery.after(attempt, "failed"), None))
            return
        answers = await asyncio.gather(*(self._post(target, each, now) for _, each in waiting))
        for (row, delivery), answer in zip(waiting, answers, strict=True):
            state = await self._settle(row, delivery, answer, state)

    async def _target(self, row: Queued, now: float) -> Target | None:
        if not row.endpoint_of:
            return self._configured.get(row.endpoint)
        if (endpoint := await self._endpoints.find(row.endpoint_of, row.endpoint)) is None:
            return None
        try:
            return Target(endpoint.url, await self._endpoints.secrets_of(endpoint, now))
        except ApiError as error:
            if error.status == UNAVAILABLE:
                raise
            return Target(endpoint.url, (), str(error))

    async def _post(self, target: Target, delivery: Delivery, now: float) -> Answer:
        if target.failure:
            return Answer(None, target.failure)
        body = orjson.dumps(delivery.body)
        return await self._sender.post(target.url, signed_headers(delivery.id, int(now), body, target.secrets), body)

    async def _settle(self, row: Queued, delivery: Delivery, answer: Answer, state: State | None) -> State | None:
        """Store what became of a message; return the state of the endpoint after it."""
        now = await self._records.now()
        attempt, retries, due = Attempt(int(now), answer.status, answer.text), self._retries, None
        if answer.accepted:
            status, new = "delivered", None
        else:
            new = _failed(state, answer, now, retries.longest)
            status = "failed" if new.disabled_at or now - delivery.created_at >= retries.longest else "waiting"
            due = now + retries.pause(delivery.tried + 1) if status == "waiting" else None
        settled = Settled(row, delivery.after(attempt, status), due)
        if await self._deliveries.settle(settled, _change(row, state, new, now)):
            self._telemetry.record(ATTEMPTS, 1, {"result": {"waiting": "retried"}.get(status, status)})
            if answer.accepted:
                self._telemetry.record(DELAY, max(now - delivery.event_at, 0.0))
            elif new and new.disabled_at and not (state and state.disabled_at):
                logger.warning("disabled webhook endpoint %s: %s", row.endpoint, new.reason)
            elif status == "failed":
                logger.warning("gave up webhook %s for endpoint %s", delivery.id, row.endpoint)
        return new


def _failed(state: State | None, answer: Answer, now: float, longest: float) -> State:
    """Return the state of an endpoint after a failure."""
    if state and state.disabled_at:
        return state
    since = state.failing_since if state else now
    if answer.status == _GONE:
        return State(since, now, "it answered 410 (gone)")
    if now - since >= longest:
        return State(since, now, f"it has accepted nothing for {longest / 3600:g} hours")
    return State(since)


def _change(row: Queued, old: State | None, new: State | None, now: float) -> list[Op]:
    """Return the ops that store the new state of an endpoint."""
    if new == old:
        return []
    if new is None:
        return [Delete(state_key(row.endpoint))]
    # No route enables an endpoint of the configuration: it is tried again a day later.
    expires_at = now + DAY_SECONDS if new.disabled_at and not row.endpoint_of else None
    return [new.put(row.endpoint, expires_at)]
