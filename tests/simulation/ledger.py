"""What must hold at every moment: it is checked with each commit, model round, tool call, message and batch of events.

A violation is a sentence. The first one decides: what follows it may be its consequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Final

from llama_stack_responses.core.statuses import UNFINISHED
from llama_stack_responses.features.usage.rows import PENDING
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.jobs.job import Checkpoint, JobState
from llama_stack_responses.store import codec
from llama_stack_responses.store.records import Delete, Ensure, Op, Put, Record
from llama_stack_responses.stream.events import TERMINAL
from tests.simulation.part import Undo
from tests.simulation.store import SharedStore
from tests.simulation.undoable import Changes, UndoableDict
from tests.simulation.world import World

type Json = dict[str, Any]

_TEXT: Final = re.compile(r"job (\d+):")
"""The number of the job in a text of a user."""
_CLOCK_SECONDS: Final = 7_200.0
"""A response that is stored is not older. Clocks of machines that are wrong differ by more, or by less than matters."""
_CALL: Final = re.compile(r"call_\d+_(\d+)")
"""The id of a call of the simulated model: the job, and the round that made it."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job was when a worker claimed it: what is finished, that worker must not run again.

    Attributes:
        rounds: finished rounds of the model.
        waiting: the calls of the last of them that had no answer yet.
    """

    rounds: int = 0
    waiting: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model has to see of the conversation of a response.

    Attributes:
        seen: the ids of the items that were in the conversation when the response was sent, by the number of their text.
        deleting: the ids of the items whose deletion has begun by now.
        gone: the numbers of the texts that were deleted before the response was sent.
    """

    seen: Mapping[int, str]
    deleting: Set[str]
    gone: Set[int]


@dataclass(slots=True)
class Ledger:
    """All that has happened, as far as something must hold of it.

    Attributes:
        world: has the time and the trace.
        workers: the names of the servers, by the ids of their workers.
        created: the responses that were stored.
        outcomes: the statuses with which responses ended.
        keyed: the response that each Idempotency-Key got.
        seen: the events that clients have seen of each response, by their numbers.
        used: how often what each response has used was counted.
        lines: how often each line of a batch has ended.
        deliveries: the event and endpoint that each message was for.
        received: the messages that receivers have accepted, by response or batch.
        items: the positions of all items that were ever added to each conversation, by their ids.
        inputs: the ids of those with a text, by the conversation and the number of the text.
        deleting: the ids of items whose deletion was begun.
        prompts: what the models have to see, by the number of the job.
        prompt_seconds: within this time a job is claimed that servers have room for, and an event reaches a reader;
            None if nothing is promised, since things go wrong.
    """

    world: World
    workers: dict[str, str] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    seen: dict[str, dict[int, Json]] = field(default_factory=dict)
    deliveries: dict[str, tuple[str, str]] = field(default_factory=dict)
    received: dict[str, list[str]] = field(default_factory=dict)
    deleting: set[str] = field(default_factory=set)
    prompts: dict[int, Prompt] = field(default_factory=dict)
    prompt_seconds: float | None = None
    _queued_at: dict[str, float] = field(default_factory=dict)
    _stored_at: dict[tuple[str, int], float] = field(default_factory=dict)
    _taken: set[str] = field(default_factory=set)
    _changes: Changes = field(default_factory=Changes)
    created: UndoableDict[str, None] = field(init=False)
    outcomes: UndoableDict[str, str] = field(init=False)
    keyed: UndoableDict[str, str] = field(init=False)
    used: UndoableDict[str, int] = field(init=False)
    lines: UndoableDict[str, int] = field(init=False)
    ends: UndoableDict[str, int] = field(init=False)
    items: UndoableDict[str, UndoableDict[str, int]] = field(init=False)
    inputs: UndoableDict[tuple[str, int], str] = field(init=False)
    _gone: UndoableDict[str, None] = field(init=False)
    _ended: UndoableDict[str, float] = field(init=False)
    _logs: UndoableDict[str, UndoableDict[int, Json]] = field(init=False)
    _progress: UndoableDict[str, Progress] = field(init=False)
    _claimed: UndoableDict[tuple[str, str], Progress] = field(init=False)

    def __post_init__(self) -> None:
        # What commits have changed that a server has lost is taken back: the store has never had it.
        self.created = UndoableDict(self._changes)
        self.outcomes = UndoableDict(self._changes)
        self.keyed = UndoableDict(self._changes)
        self.used = UndoableDict(self._changes)
        self.lines = UndoableDict(self._changes)
        self.ends = UndoableDict(self._changes)
        self.items = UndoableDict(self._changes)
        self.inputs = UndoableDict(self._changes)
        self._gone = UndoableDict(self._changes)
        self._ended = UndoableDict(self._changes)
        self._logs = UndoableDict(self._changes)
        self._progress = UndoableDict(self._changes)
        self._claimed = UndoableDict(self._changes)

    def fail(self, what: str) -> None:
        """Note a violation."""
        self.violations.append(what)
        self.world.log("LEDGER", f"VIOLATION {what}")

    # Commits.

    def on_commit(self, who: str, ops: Sequence[Op], store: SharedStore) -> Undo | None:
        """Check a commit before it is applied; return what takes back what is noted of it."""
        keys = [op.key for op in ops if isinstance(op, Delete) and op.key.startswith("q/")]
        self._taken = {key.rpartition("/")[2] for key in keys}
        for op in ops:
            if isinstance(op, Put | Ensure | Delete) and (check := self._checks.get(op.key.partition("/")[0])):
                check(self, who, op, store)
        return self._changes.taken()

    def _on_job(self, who: str, op: Op, store: SharedStore) -> None:
        """The row of a job: it is created, claimed, requeued, or deleted with the outcome."""
        assert isinstance(op, Put | Ensure | Delete)
        response_id = op.key.removeprefix("j/")
        if "/" in response_id:
            return  # a pointer to an item, not a job
        if isinstance(op, Delete):
            self._may_write(who, response_id, store, "ends")
            self._gone[response_id] = None
            return
        state = JobState.decode(Record(op.value, 0))
        before = store.get(op.key)
        if response_id in self._gone:
            self.fail(f"the job of {response_id} is stored again after its end")
        if state.worker is None:
            self._queued_at[response_id] = self.world.now
        else:
            self._check_prompt(self._queued_at.pop(response_id, self.world.now), f"{response_id} is claimed")
        if state.worker and (before is None or JobState.decode(before).worker != state.worker):
            self._claimed[response_id, self.workers.get(state.worker, state.worker)] = self._progress.get(
                response_id, Progress()
            )

    def _check_prompt(self, since: float, what: str) -> None:
        late = self.world.now - since
        if self.prompt_seconds is not None and late > self.prompt_seconds:
            self.fail(f"{what} only after {late:.1f} s, although nothing goes wrong: a wake-up is lost")

    def _on_checkpoint(self, who: str, op: Op, store: SharedStore) -> None:
        if isinstance(op, Delete):
            return
        assert isinstance(op, Put)
        response_id = op.key.removeprefix("k/")
        self._may_write(who, response_id, store, "writes the checkpoint of")
        checkpoint = Checkpoint(**codec.known(Checkpoint, codec.decode(op.value)))
        waiting = frozenset(call["call_id"] for call in checkpoint.waiting)
        before, now = self._progress.get(response_id, Progress()), Progress(checkpoint.rounds, waiting)
        if now.rounds < before.rounds or (
            now.rounds == before.rounds and not waiting <= before.waiting and before.rounds
        ):
            self.fail(f"the checkpoint of {response_id} goes back from {before} to {now}")
        self._progress[response_id] = now

    def _may_write(self, who: str, response_id: str, store: SharedStore, does: str) -> None:
        """Check that the writer holds the job, or takes it out of the queue before it has begun.

        Of two that hold its lease, one at most commits.
        """
        job = store.get(f"j/{response_id}")
        if job is None:
            return
        state = JobState.decode(job)
        if state.unbegun and response_id in self._taken:
            return
        worker = state.worker
        if worker is None or self.workers.get(worker) != who:
            holder = self.workers.get(worker or "", "no server")
            self.fail(f"{who} {does} {response_id}, whose job {holder} holds")

    def _on_event(self, who: str, op: Op, store: SharedStore) -> None:
        assert isinstance(op, Put | Ensure | Delete)
        _, response_id, number = op.key.split("/")
        log = self._logs.setdefault(response_id, UndoableDict(self._changes))
        if isinstance(op, Delete):
            row = store.get(op.key)
            for event in codec.decode(row.value) if row else ():
                log.pop(event["sequence_number"], None)
            return
        self._may_write(who, response_id, store, "writes events of")
        events: list[Json] = codec.decode(op.value)
        if events[0]["sequence_number"] > max(log, default=-1) + 1:
            self.fail(f"events of {response_id} are missing before {events[0]['sequence_number']}")
        for event in events:
            self._stored_at.setdefault((response_id, event["sequence_number"]), self.world.now)
            known = log.setdefault(event["sequence_number"], event)
            if known != event:
                self.fail(f"event {event['sequence_number']} of {response_id} is stored twice, as two events")
        if int(number) != events[-1]["sequence_number"]:
            self.fail(f"a row of events of {response_id} has the number {number} of another event")

    def _on_response(self, who: str, op: Op, store: SharedStore) -> None:
        assert isinstance(op, Put | Ensure | Delete)
        response_id = op.key.removeprefix("r/")
        if isinstance(op, Delete):
            return
        response = codec.decode(op.value)["response"]
        status = response["status"]
        if abs(response["created_at"] - self.world.now) > _CLOCK_SECONDS:
            self.fail(f"{response_id} has the time of a machine whose clock is wrong")
        before = store.get(op.key)
        if before is None and response_id in self.created:
            self.fail(f"{response_id} is stored again after it was deleted")
        self.created[response_id] = None
        if status in UNFINISHED:
            if response_id in self.outcomes:
                self.fail(f"{response_id} goes on after its end")
        elif response_id in self.outcomes:
            self.fail(f"{response_id} ends a second time: {self.outcomes[response_id]}, then {status}")
        else:
            self.outcomes[response_id] = status

    def _on_key(self, who: str, op: Op, store: SharedStore) -> None:
        """An Idempotency-Key: it is stored with its response."""
        if isinstance(op, Delete):
            self.keyed.pop(op.key)  # its response was refused
            return
        if not isinstance(op, Put) or op.key.count("/") > 1:
            return
        response_id = codec.decode(op.value)["response"]
        if self.keyed.setdefault(op.key, response_id) != response_id and self.keyed[op.key] in self.created:
            self.fail(f"an Idempotency-Key has two responses: {self.keyed[op.key]} and {response_id}")

    def _on_webhook(self, who: str, op: Op, store: SharedStore) -> None:
        if isinstance(op, Put) and op.key.startswith("wh/e/"):
            of = op.key.rpartition("/")[2]
            self.ends[of] = self.ends.get(of, 0) + 1
            if self.ends[of] > 1:
                self.fail(f"the end of {of} is recorded twice")

    def _on_batch(self, who: str, op: Op, store: SharedStore) -> None:
        if isinstance(op, Put) and op.key.startswith("bt/d/"):
            self.lines[op.key] = self.lines.get(op.key, 0) + 1
            if self.lines[op.key] > 1:
                self.fail(f"line {op.key.removeprefix('bt/d/')} ends twice")

    def _on_usage(self, who: str, op: Op, store: SharedStore) -> None:
        """What a response has used: it is counted once, in another partition."""
        if isinstance(op, Ensure) and op.key.startswith(PENDING) and store.get(op.key) is None:
            of = op.key.removeprefix(PENDING).split("/")[1].partition(".")[0]
            self.used[of] = self.used.get(of, 0) + 1
            if self.used[of] > 1:
                self.fail(f"what {of} has used is counted twice")

    def _on_item(self, who: str, op: Op, store: SharedStore) -> None:
        """An item of a conversation: each is added once, behind all others, and stays until it is deleted."""
        assert isinstance(op, Put | Ensure | Delete)
        _, conversation_id, position = op.key.split("/")
        if isinstance(op, Delete):
            row = store.get(op.key)
            if row and store.get(f"c/{conversation_id}") and codec.decode(row.value)["id"] not in self.deleting:
                self.fail(f"{who} deletes an item of {conversation_id} that nobody wants deleted: {op.key}")
            return
        item, added = codec.decode(op.value), self.items.setdefault(conversation_id, UndoableDict(self._changes))
        if item["id"] in added:
            self.fail(f"{item['id']} is added to {conversation_id} twice")
        elif int(position, 16) != len(added):
            self.fail(f"an item is added to {conversation_id} at {int(position, 16)}, behind {len(added)} others")
        added[item["id"]] = int(position, 16)
        for number in _TEXT.findall(str(item.get("content")) if item.get("role") == "user" else ""):
            self.inputs[conversation_id, int(number)] = item["id"]

    def _on_lease(self, who: str, op: Op, store: SharedStore) -> None:
        """The lease of a worker: a renewal ends later than the one before, and none comes after its end.

        A write of the lease of a tag that was given up may come then: it does not last longer than the one that ended.
        """
        assert isinstance(op, Put | Ensure | Delete)
        worker, _, tag = op.key.removeprefix("p/").partition(".")
        if isinstance(op, Delete):
            if not tag:
                self._ended[worker] = self.world.now
            return
        before, until = store.get(op.key), float(op.value)
        if before and isinstance(op, Ensure):
            return
        if worker in self._ended and (not tag or until > self._ended[worker] + DEFAULT.lease_seconds):
            self.fail(f"a lease of {who} is written after its end")
        if before and until < float(before.value):
            self.fail(f"a lease of {who} is cut short: from {float(before.value):.1f} to {until:.1f}")

    _checks: Mapping[str, Callable[..., None]] = field(
        default_factory=lambda: {
            "j": Ledger._on_job,
            "k": Ledger._on_checkpoint,
            "e": Ledger._on_event,
            "r": Ledger._on_response,
            "y": Ledger._on_key,
            "wh": Ledger._on_webhook,
            "bt": Ledger._on_batch,
            "us": Ledger._on_usage,
            "m": Ledger._on_item,
            "p": Ledger._on_lease,
        }
    )

    # What servers do beside commits.

    def on_prompt(self, number: int, numbers: Sequence[int]) -> None:
        """Check that the model of a job sees what its conversation has: the texts with these numbers."""
        if (prompt := self.prompts.get(number)) is None:
            return
        missing = [each for each, of in prompt.seen.items() if each not in numbers and of not in prompt.deleting]
        if missing:
            self.fail(f"the model of job {number} does not see what has joined its conversation: {missing}")
        if deleted := prompt.gone & set(numbers):
            self.fail(f"the model of job {number} sees what was deleted from its conversation: {sorted(deleted)}")

    def on_round(self, who: str, response_id: str, number: int) -> None:
        """Check that a round of the model, from 1, is not one that was finished when its worker claimed the job."""
        claimed = self._claimed.get((response_id, who))
        if claimed and number <= claimed.rounds:
            self.fail(f"{who} runs round {number} of {response_id} again, which was finished before it took the job")

    def on_call(self, who: str, response_id: str, call_id: str) -> None:
        """Check that a call of a tool is not one that was finished when its worker claimed the job."""
        claimed, made = self._claimed.get((response_id, who)), _CALL.fullmatch(call_id)
        if claimed and made and int(made[1]) <= claimed.rounds and call_id not in claimed.waiting:
            self.fail(f"{who} runs {call_id} of {response_id} again, which was finished before it took the job")

    # What clients and receivers see.

    def on_events(self, reader: str, response_id: str, after: int, events: Sequence[Json], since: float) -> int:
        """Check a batch of events that a client gets after the event `after`; return the number of the last.

        Args:
            since: the time from which it has read.
        """
        seen = self.seen.setdefault(response_id, {})
        stored_at = self._stored_at.get((response_id, events[-1]["sequence_number"]), since)
        self._check_prompt(max(since, stored_at), f"{reader} gets event {events[-1]['sequence_number']}")
        for event in events:
            number = event["sequence_number"]
            if number != after + 1:
                self.fail(f"{reader} gets event {number} of {response_id} after event {after}")
            if seen.setdefault(number, event) != event:
                self.fail(f"event {number} of {response_id} is not the same for every reader: {seen[number]}, {event}")
            after = number
        return after

    def on_message(self, endpoint: str, message_id: str, event: Json, *, accepted: bool) -> None:
        """Check a message of a webhook: its id is that of its event for this endpoint, at each attempt."""
        if self.deliveries.setdefault(message_id, (event["id"], endpoint)) != (event["id"], endpoint):
            self.fail(f"message {message_id} is used for two events")
        others = [each for each, of in self.deliveries.items() if of == (event["id"], endpoint) and each != message_id]
        if others:
            self.fail(f"event {event['id']} has two ids at one endpoint: {message_id}, {others[0]}")
        if accepted:
            self.received.setdefault(event["data"]["id"], []).append(event["type"])


def is_last(events: Sequence[Json]) -> bool:
    """Return whether a batch of events has the last one of its response."""
    return bool(events) and events[-1]["type"] in TERMINAL
