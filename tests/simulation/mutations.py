"""Bugs that the simulation has to find, each put into the code for the time of a block.

Each is what such code gets wrong in practice: a fence that is forgotten, a wake-up that is lost, two writes that should
be one. No unit of the code notices it alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from secrets import token_hex
from typing import Any, Final

import pytest

from llama_stack_responses.features.webhooks.rows import Delivery
from llama_stack_responses.jobs import worker_leases
from llama_stack_responses.jobs.background import BackgroundJobs
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.job_writer import JobWriter
from llama_stack_responses.jobs.notifier import Subscription, _end
from llama_stack_responses.jobs.runner import JobRunner
from llama_stack_responses.jobs.served_partitions import ServedPartitions
from llama_stack_responses.service import response_writer
from llama_stack_responses.store import commit_outcome, garbage_collector, partitions
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.clock import StoreClock
from llama_stack_responses.store.conversation_store import ConversationAppend, ConversationStore
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.records import Delete, Op, Put
from llama_stack_responses.store.routing import owner_of_range
from tests.simulation import store
from tests.simulation.store import RemoteRecords

type Patch = pytest.MonkeyPatch


def _missing_fence(patch: Patch) -> None:
    """A worker writes without the fence of its job: one that lost its lease overwrites the work of the next."""

    async def commit(self: Any, ops: Sequence[Op], _: object) -> None:
        await self._records.commit(ops)

    patch.setattr(JobWriter, "_commit", commit)


def _lost_wake_up(patch: Patch) -> None:
    """A notification that comes while nothing waits is forgotten."""

    def notify(self: Any) -> None:
        if self._waiter:
            self._notified = True
            _end(self._waiter)

    patch.setattr(Subscription, "notify", notify)


def _commits_out_of_order(patch: Patch) -> None:
    """The job is deleted in a commit of its own, before the response is stored with its end."""
    save = Archive.save

    async def split(self: Archive, *given: Any, extra_ops: Sequence[Any] = (), **named: Any) -> int:
        first = [op for op in extra_ops if getattr(op, "key", "").startswith(("j/", "k/"))]
        if first and all(type(op).__name__ == "Delete" for op in first):
            await self._records.commit(first, named.pop("conditions"))
        return await save(self, *given, extra_ops=[op for op in extra_ops if op not in first], **named)

    # Only the end of a job has such ops.
    patch.setattr(Archive, "save", split)


def _events_from_the_checkpoint(patch: Patch) -> None:
    """A worker that takes a job over does not look which events are stored after the checkpoint."""

    async def cut(self: JobRunner, _: object) -> list[Any]:
        return []

    patch.setattr(JobRunner, "_cut", cut)


def _forgotten_key(patch: Patch) -> None:
    """The deletion of an event log leaves the row that says that it was read."""

    async def forget(self: Any, response_id: str) -> None:
        while rows := await self._records.range(f"e/{response_id}/", f"e/{response_id}0", limit=64, reverse=True):
            await self._records.commit([Delete(key) for key, _ in rows])

    patch.setattr(EventLog, "forget", forget)


def _key_after_response(patch: Patch) -> None:
    """An Idempotency-Key is stored in a second commit, after its response."""

    def after(create: Callable[..., Any]) -> Callable[..., Any]:
        async def split(self: Any, *given: Any, extra_ops: Sequence[Op], **named: Any) -> None:
            named.pop("conditions", None)
            await create(self, *given, extra_ops=(), **named)
            if extra_ops:
                await self._records.commit(extra_ops)

        return split

    for name in ("submit", "submit_and_run"):
        patch.setattr(BackgroundJobs, name, after(getattr(BackgroundJobs, name)))


def _new_message_id(patch: Patch) -> None:
    """A webhook gets a new id when it is queued again."""
    queued = Delivery.queued

    def renamed(self: Delivery, of: str, due: float) -> Any:
        return queued(replace(self, id=self.id[:-12] + token_hex(6)) if self.tried else self, of, due)

    patch.setattr(Delivery, "queued", renamed)


def _garbage_without_condition(patch: Patch) -> None:
    """Shared content is deleted although a response has begun to refer to it meanwhile."""
    patch.setattr(garbage_collector, "_unneeded", lambda _: [])


def _unsettled_repetition(patch: Patch) -> None:
    """A commit that was not answered is made again, although the first may still come."""

    async def settle(*_: object) -> bool:
        return False

    patch.setattr(RemoteRecords, "_settle", settle)


def _no_deadline(patch: Patch) -> None:
    """The store applies a commit whenever it comes."""
    patch.setattr(store, "APPLIED_SECONDS", float("inf"))


def _forgotten_outcome(patch: Patch) -> None:
    """A commit that was not answered is settled and made again, also if it was applied."""
    settle = RemoteRecords._settle

    async def forgets(self: RemoteRecords, commit_id: bytes) -> bool:
        await settle(self, commit_id)
        return False

    patch.setattr(RemoteRecords, "_settle", forgets)


def _repeated_join(patch: Patch) -> None:
    """A response that is not stored joins its conversation again if the answer was lost, also if it has joined it."""

    async def until_known(call: Callable[[bool], Any], *given: Any) -> Any:
        return await once(lambda _: call(False), *given)

    once = commit_outcome.until_known
    patch.setattr(response_writer, "until_known", until_known)


def _join_without_condition(patch: Patch) -> None:
    """A turn is added to a conversation that was changed since it was read."""
    plan = ConversationAppend.plan

    def unfenced(self: ConversationAppend, known: Any) -> Any:
        return plan(self, known)[0], []

    patch.setattr(ConversationAppend, "plan", unfenced)


def _turn_after_response(patch: Patch) -> None:
    """A response that has ended joins its conversation in a second commit."""
    save, prepared = Archive.save, Archive._prepared

    async def without_turn(self: Archive, *given: Any) -> tuple[None, Any]:
        _, base_items = await prepared(self, *given)
        return None, base_items

    async def split(self: Archive, response: Any, **named: Any) -> int:
        version = await save(self, response, **named)
        given = {name: named[name] for name in ("owner", "input_items")}
        await self.join(response, **given, exchanges=named.get("exchanges") or {})
        return version

    patch.setattr(Archive, "_prepared", without_turn)
    patch.setattr(Archive, "save", split)


def _deleted_item_shown(patch: Patch) -> None:
    """The deletion of an item leaves its row."""
    gone = ConversationStore._gone

    async def forgets(self: ConversationStore, *given: Any) -> Any:
        ops, found = await gone(self, *given)
        return [op for op in ops if not getattr(op, "key", "").startswith("m/") or len(given[1]) > 1], found

    patch.setattr(ConversationStore, "_gone", forgets)


def _unsettled_renewal(patch: Patch) -> None:
    """A worker renews its lease although an earlier renewal may still come."""

    async def once(call: Callable[[], Any]) -> Any:
        return await call()

    patch.setattr(worker_leases, "RepeatedCommit", lambda: once)


def _clock_of_the_machine(patch: Patch) -> None:
    """A server stores responses before it knows the time of the store."""

    async def ready(_: StoreClock) -> None:
        pass

    patch.setattr(StoreClock, "ready", ready)


def _claim_cuts_lease(patch: Patch) -> None:
    """A claim writes the lease of its tag, also one that comes after a renewal."""
    used = worker_leases._Lease.used

    async def written(self: Any, until: float) -> Put:
        made = await used(self, until)
        return Put(made.key, made.value, made.expires_at)

    patch.setattr(worker_leases._Lease, "used", written)


def _fence_of_one_partition(patch: Patch) -> None:
    """The conditions of a commit that writes in other partitions too are forgotten."""
    commit = PartitionedRecords._commit

    async def unfenced(self: Any, home: int, here: list[Op], conditions: Any, elsewhere: Any) -> None:
        await commit(self, home, here, () if elsewhere else conditions, elsewhere)

    patch.setattr(PartitionedRecords, "_commit", unfenced)


def _other_partition_first(patch: Patch) -> None:
    """What a commit writes in other partitions is written before its conditions are checked."""

    async def reversed_(self: Any, home: int, here: list[Op], conditions: Any, elsewhere: Any) -> None:
        for number, ops in elsewhere.items():
            await self._parts[number].commit(ops)
        await self._parts[home].commit(here, conditions)

    patch.setattr(PartitionedRecords, "_commit", reversed_)


def _other_partition_unnoted(patch: Patch) -> None:
    """What a commit writes in other partitions is written after it, without a note that outlives the server."""

    async def unnoted(self: Any, home: int, here: list[Op], conditions: Any, elsewhere: Any) -> None:
        if here or conditions:
            await self._parts[home].commit(here, conditions)
        for number, ops in elsewhere.items():
            await self._try_elsewhere(home, None, number, ops)

    patch.setattr(PartitionedRecords, "_commit", unnoted)


def _note_applied_twice(patch: Patch) -> None:
    """What was noted for another partition is applied without a look whether it was."""

    async def apply(self: Any, home: int, note: str, number: int, ops: Sequence[Op]) -> None:
        await self._parts[number].commit(ops)
        await self._parts[home].commit([Delete(note)])

    patch.setattr(PartitionedRecords, "_apply", apply)


def _unseen_partition(patch: Patch) -> None:
    """A server does not note that a job waits in a partition."""
    patch.setattr(ServedPartitions, "found", lambda *_: None)


def _forgotten_partition(patch: Patch) -> None:
    """A range over all partitions leaves the last one out."""
    parts_of_range = PartitionedRecords._parts_of_range

    async def forgets(self: Any, start: str, end: str) -> Sequence[int]:
        found = await parts_of_range(self, start, end)
        return found[:-1] if len(found) == self.partitions else found

    patch.setattr(PartitionedRecords, "_parts_of_range", forgets)


def _forgotten_tag(patch: Patch) -> None:
    """An owner's list leaves a partition out that the owner has used."""
    parts_of_range = PartitionedRecords._parts_of_range

    async def forgets(self: Any, start: str, end: str) -> Sequence[int]:
        found = await parts_of_range(self, start, end)
        return found[:-1] if len(found) > 1 and owner_of_range(start, end) else found

    patch.setattr(PartitionedRecords, "_parts_of_range", forgets)


def _note_of_a_primary(patch: Patch) -> None:
    """A note of a commit is applied in another partition before replicas have it."""

    async def unreplicated(_: object, of: int, read: Callable[[], Awaitable[Any]], needs: object) -> Any:
        return await read()

    patch.setattr(partitions, "read_replicated", unreplicated)


MUTATIONS: Final[dict[str, Callable[[Patch], None]]] = {
    "missing fence": _missing_fence,
    "lost wake-up": _lost_wake_up,
    "commits out of order": _commits_out_of_order,
    "events from the checkpoint": _events_from_the_checkpoint,
    "forgotten key": _forgotten_key,
    "key after response": _key_after_response,
    "new message id": _new_message_id,
    "garbage without condition": _garbage_without_condition,
    "unsettled repetition": _unsettled_repetition,
    "no deadline": _no_deadline,
    "forgotten outcome": _forgotten_outcome,
    "repeated join": _repeated_join,
    "join without condition": _join_without_condition,
    "turn after response": _turn_after_response,
    "deleted item shown": _deleted_item_shown,
    "unsettled renewal": _unsettled_renewal,
    "clock of the machine": _clock_of_the_machine,
    "claim cuts lease": _claim_cuts_lease,
    "fence of one partition": _fence_of_one_partition,
    "other partition first": _other_partition_first,
    "other partition unnoted": _other_partition_unnoted,
    "note applied twice": _note_applied_twice,
    "unseen partition": _unseen_partition,
    "forgotten partition": _forgotten_partition,
    "forgotten tag": _forgotten_tag,
    "note of a primary": _note_of_a_primary,
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Have the bug of this name in the code within the block."""
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name](patch)
        yield
