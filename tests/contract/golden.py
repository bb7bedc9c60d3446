"""Stores that hold a row of every kind, and the values that the product reads from them.

Each file `tests/golden/<version>/<name>.json` holds the rows as that version wrote them, in base64, and the values read
back. Every later version must read the same from these bytes. `STORES` says how the rows of each file are written and
read. `make golden` writes the files of this version.
"""

from __future__ import annotations

import os
import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from itertools import count
from typing import Any, Final, cast
from unittest.mock import patch

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.evidence import Case, Evidence
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.feature import Refused
from llama_stack_responses.features.batches.rows import Batch, Counted, Line, Named, Result
from llama_stack_responses.features.batches.stored_batches import StoredBatches
from llama_stack_responses.features.code.skills import store as skill_store
from llama_stack_responses.features.code.skills.store import PART_BYTES, NewVersion, SkillQuota, SkillStore
from llama_stack_responses.features.cold import conversations, units
from llama_stack_responses.features.cold.bringing import Bringing
from llama_stack_responses.features.cold.objects import Objects
from llama_stack_responses.features.cold.packing import Packing
from llama_stack_responses.features.cold.prefixes import FOLDER
from llama_stack_responses.features.cold.rows import Release
from llama_stack_responses.features.cold.unpacking_records import UnpackingRecords
from llama_stack_responses.features.page.refused.fields import put_of
from llama_stack_responses.features.page.refused.rows import RefusedRequests
from llama_stack_responses.features.page.shared_links.links import Links
from llama_stack_responses.features.usage import sums
from llama_stack_responses.features.usage.counting import count as count_usage
from llama_stack_responses.features.usage.limits.meters import Meter
from llama_stack_responses.features.usage.limits.windows import MONTH
from llama_stack_responses.features.usage.naming import Bounds
from llama_stack_responses.features.usage.reading import Reading, Span
from llama_stack_responses.features.usage.rows import DAYS
from llama_stack_responses.features.usage.tables import Tables
from llama_stack_responses.features.webhooks.deliveries import Deliveries, Settled
from llama_stack_responses.features.webhooks.endpoints import Endpoints
from llama_stack_responses.features.webhooks.opened import recorded
from llama_stack_responses.features.webhooks.rows import Attempt, State
from llama_stack_responses.intervals import DEFAULT
from llama_stack_responses.items.compaction import Summary
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.jobs.event_log import EventLog
from llama_stack_responses.jobs.foreground_leases import ForegroundLeases
from llama_stack_responses.jobs.heartbeat import Heartbeat
from llama_stack_responses.jobs.job import Job
from llama_stack_responses.jobs.job_secrets import JobSecrets
from llama_stack_responses.jobs.notifier import Notifier
from llama_stack_responses.jobs.queue import JobQueue
from llama_stack_responses.lifecycle.secret_check import SecretCheck
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries
from llama_stack_responses.service.idempotency import IdempotencyClaim, IdempotencyKeys
from llama_stack_responses.store.access_keys import AccessKeys, NewKey
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.audit_log import Act, AuditLog
from llama_stack_responses.store.content_names import Hasher
from llama_stack_responses.store.conversation_store import Conversation, stand_in
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.kept_secret import SecretInMemory
from llama_stack_responses.store.learned_adaptations import LearnedSteps
from llama_stack_responses.store.loaded_response import StoredResponse
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.store.partitions import PartitionedRecords
from llama_stack_responses.store.placement import ONE_PARTITION, Placement
from llama_stack_responses.store.records import Condition, Delete, Ensure, Op, Put, Records
from llama_stack_responses.store.saving import Recording
from llama_stack_responses.store.scores import Score
from llama_stack_responses.stream.replay import replay
from llama_stack_responses.stream.transcript import Transcript
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED, Json, assistant, response, stored_item, user
from tests.support.cold import AFTER, ObjectsInRows
from tests.support.records import WatchedRecords
from tests.unit.items.test_items import INPUT_TEXT, WHOLE

ALICE: Final = Owner("alice", {"teams": ["search"]}, "shop")

_TOOLS: Final[list[Json]] = [
    {
        "type": "function",
        "name": "weather",
        "description": "The weather of a place. " * 40,
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
        "strict": True,
    }
]
INPUT_ONLY: Final = frozenset(
    {"function_call_output", "custom_tool_call_output", "local_shell_call_output", "apply_patch_call_output"}
    | {"computer_call_output", "additional_tools", "configuration_update", "mcp_approval_response"}
)
"""Kinds of items that only clients send."""
OF_CODEX: Final[list[Json]] = [
    {"type": "agent_message", "id": "amsg_1", "author": "a", "recipient": "b", "content": [INPUT_TEXT]},
    {"type": "agent_reasoning", "id": "rs_2", "text": "Hm."},
    {"type": "context_compaction", "id": "cmp_2"},
    {"type": "ghost_snapshot", "id": "gs_1"},
    {"type": "other", "id": "item_1"},
]
"""Items of Codex that OpenAI's API does not have."""
ITEMS: Final[list[Json]] = [*(item for item, _ in WHOLE if item["type"] != "item_reference"), *OF_CODEX]
OUTPUTS: Final = [
    item for item in ITEMS if item["type"] not in INPUT_ONLY and item.get("role") != "user" and item not in OF_CODEX
]
_TOKEN: Final = f"sk-lsr-{1:024x}-{'A' * 43}"
_SEALER: Final = Sealer([bytes(range(SECRET_BYTES))])
_BODY: Final[Json] = {"model": "m", "stream": True, "tools": _TOOLS}
_EVENTS: Final[list[Json]] = [
    {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_job", "status": "queued"}},
    {"type": "response.queued", "sequence_number": 1, "response": {"id": "resp_job", "status": "queued"}},
]
_CLAIM: Final = IdempotencyClaim.of(ALICE, "key", {"model": "m", "input": "hi"})
_SEGMENTS: Final = [
    ReasoningSegment("First this, then that.", "signature", "call_1"),
    ReasoningSegment("So.", None, None, "reasoning", '["reasoning_details",{"type":"reasoning.text"}]'),
]
_SUMMARY: Final = Summary("Up to here.", [{"type": "input_text", "text": "And now?"}])
_SCORED: Final = f"resp_{7:024x}"
_KEYS: Final[Json] = {"token": "the user's own"}


async def fill(records: Records, clock: Clock) -> None:
    """Write a row of every kind."""
    archive = Archive(records, clock=clock)
    await _write_chain(archive)
    await _write_conversations(archive)
    await _write_interrupted_deletes(records, clock)
    await _write_jobs(archive, records)
    await _claim_key(records)


async def _write_chain(archive: Archive) -> None:
    first = response(
        {"id": "rs_1", "type": "reasoning", "summary": [], "content": None, "encrypted_content": "x" * 300},
        assistant("Füße \U0001f600", id="msg_2"),
        id="resp_1",
        tools=_TOOLS,
    )
    transcript = Transcript()
    transcript.note(replay(first))
    question = user("What is it?", id="msg_1")
    await archive.save(
        first,
        owner=ALICE,
        base=None,
        input_items=[question],
        transcript=transcript.marks(),
        recording=Recording({"total_ms": 700, "rounds": [], "tools": [], "events": []}, [b"{}"]),
    )
    second = response(assistant("\ud83d alone", id="msg_4"), id="resp_2", previous_response_id="resp_1", tools=_TOOLS)
    base = (await _stored(archive, "resp_1")).history
    await archive.save(second, owner=ALICE, base=base, input_items=[user("And?", id="msg_3")])


async def _write_conversations(archive: Archive) -> None:
    conversation = Conversation("conv_1", ALICE, CREATED, {"topic": "demo"})
    await archive.conversations.create(conversation, [user("one", id="msg_5"), assistant("two", id="msg_6")])
    created = response(assistant("four", id="msg_8"), id="resp_3", conversation={"id": "conv_1"})
    questions = [stand_in(conversation) | {"turn": "0"}, user("three", id="msg_7")]
    await archive.save(created, owner=ALICE, base=None, input_items=questions)


async def _write_interrupted_deletes(records: Records, clock: Clock) -> None:
    """Write what remains of a server that dies just after deleting a response and a conversation."""
    interrupted = DyingRecords(records)
    archive = Archive(interrupted, clock=clock)
    await archive.save(response(id="resp_4"), owner=ALICE, base=None, input_items=[user("gone", id="msg_9")])
    await archive.conversations.create(Conversation("conv_2", ALICE, CREATED, {}), [user("gone", id="msg_10")])
    for delete in (archive.delete("resp_4"), archive.conversations.delete("conv_2")):
        interrupted.commits_left = 1
        with suppress(InterruptedError):
            await delete


async def _write_jobs(archive: Archive, records: Records) -> None:
    jobs, event_log, secrets = JobQueue(records, limit=9), EventLog(records, Notifier()), JobSecrets(_SEALER)
    for response_id in ("resp_job", "resp_waits"):
        body, sealed = secrets.seal(_BODY, _KEYS, response_id, ALICE)
        async with jobs.enqueued(response_id, ALICE, body, sealed) as ops:
            queued = response(id=response_id, status="queued", background=True)
            rows = [*ops, *await event_log.batch(response_id, _EVENTS)]
            await archive.save(queued, owner=ALICE, base=None, input_items=[user("hi", id="msg_11")], extra_ops=rows)
        await jobs.hints_written()
    await jobs.heartbeat("worker_1")
    job = await jobs.claim("worker_1")
    assert job is not None
    async for _ in event_log.follow(job.response_id, -1, 0.0, _no, partial(_fence, job)):
        break
    await records.commit(event_log.expire("resp_ended", CREATED + 60))
    foreground_leases = ForegroundLeases(records, archive, "worker_1", Heartbeat(jobs, "worker_1"))
    created = response(id="resp_5", status="in_progress")
    await foreground_leases.acquire(created, owner=ALICE, base=None, input_items=[user("hi", id="msg_12")])


async def _claim_key(records: Records) -> None:
    puts, free = await IdempotencyKeys(records).claim_ops(_CLAIM, "resp_1")
    await records.commit(puts, [free])


class DyingRecords:
    """Records of a server that dies after a number of commits."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.commits_left = 100

    def __getattr__(self, name: str) -> Any:
        return getattr(self._records, name)

    async def commit(self, ops: Sequence[Op], conditions: Sequence[Condition] = ()) -> None:
        if not self.commits_left:
            raise InterruptedError
        self.commits_left -= 1
        await self._records.commit(ops, conditions)


async def _no() -> bool:
    return False


async def _fence(job: Job) -> Condition:
    return job.fence


async def _stored(archive: Archive, response_id: str) -> StoredResponse:
    stored = await archive.load(response_id)
    assert stored is not None, response_id
    return stored


async def read(records: Records, clock: Clock) -> Json:
    """Return the values that the product reads from the rows written by `fill`."""
    archive = Archive(records, clock=clock)
    return {
        "responses": [await _read_response(archive, f"resp_{number}") for number in (1, 2, 3)],
        "listed": [
            each.response["id"]
            for each in (await archive.list(ALICE, limit=9, after=None, order="asc", model=None)).items
        ],
        "found": sorted([name async for name, _ in archive.find_items(ALICE, ["msg_1", "msg_4", "msg_5", "msg_8"])]),
        "conversation": await _read_conversation(archive),
        "jobs": [await _read_job(records, name) for name in ("resp_job", "resp_waits")],
        "next job": await _next_job(records),
        "under way": await _read_running(archive),
        "key": await IdempotencyKeys(records).find(_CLAIM),
    }


async def _read_response(archive: Archive, response_id: str) -> Json:
    stored = await _stored(archive, response_id)
    events = replay(stored.response, stored.transcript) if stored.transcript else ()
    return {
        "response": stored.response,
        "owner": stored.owner.encode(),
        "input": await archive.history(stored.input),
        "history": await archive.history(stored.history),
        "events": list(events),
        "timing": stored.timing,
        "recorded": stored.recorded,
    }


async def _read_conversation(archive: Archive) -> Json:
    conversation = await archive.conversations.load("conv_1")
    assert conversation is not None
    items, _ = await archive.conversations.page(conversation, limit=9, after="msg_5", order="asc")
    return {
        "owner": conversation.owner.encode(),
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
        "items": await archive.conversations.items("conv_1", conversation.end),
        "behind the first": [item["id"] for item in items],
    }


async def _read_job(records: Records, response_id: str) -> Json:
    jobs, event_log = JobQueue(records, limit=9), EventLog(records, Notifier())
    job, work = await jobs.find(response_id), await jobs.checkpoint(response_id)
    assert job is not None
    assert work is not None
    body, keys = JobSecrets(_SEALER).open(work.body, work.sealed, response_id, job.state.owner)
    stored = asdict(work) | {"body": body, "sealed": None}
    del stored["version"]  # It is that of the row.
    return {
        "job": asdict(job.state) | {"owner": job.state.owner.encode()},
        "work": stored,
        "keys": keys,
        "events": await event_log.read(response_id, -1),
    }


async def _next_job(records: Records) -> str | None:
    job = await JobQueue(records, limit=9).claim("worker_2")
    return job.response_id if job else None


async def _read_running(archive: Archive) -> Json:
    running = await archive.running("resp_5")
    assert running is not None
    return {"response": running.response, "owner": running.owner.encode()}


async def clean_up(records: Records, clock: Clock) -> None:
    """Fail the responses of dead servers, and finish interrupted deletions, as a live server does."""
    archive = Archive(records, clock=clock)
    heartbeat = Heartbeat(JobQueue(records, 9), "worker_2")
    await heartbeat.renew()
    await ForegroundLeases(records, archive, "worker_2", heartbeat).fail_abandoned()
    await heartbeat.end()
    await EventLog(records, Notifier()).sweep()
    await archive.sweep()


def seals() -> dict[str, str]:
    """Return a sealed value of each kind, by name."""
    _, job = JobSecrets(_SEALER).seal(_BODY, _KEYS, "resp_job", ALICE)
    assert job is not None
    return {
        "job": job,
        "reasoning": PrivateReasoning(_SEALER, ALICE).seal(_SEGMENTS),
        "summary": PrivateSummaries(_SEALER, ALICE).seal(_SUMMARY),
    }


def open_seals(sealed: Mapping[str, str]) -> bool:
    """Return whether the sealed values open to the inputs of `seals`."""
    body, keys = JobSecrets(_SEALER).open(_BODY, sealed["job"], "resp_job", ALICE)
    segments = PrivateReasoning(_SEALER, ALICE).read({"encrypted_content": sealed["reasoning"]})
    summary = PrivateSummaries(_SEALER, ALICE).read({"encrypted_content": sealed["summary"]})
    return (body, keys, segments, summary) == (_BODY, _KEYS, _SEGMENTS, _SUMMARY)


async def _fill_shared(records: Records, clock: Clock) -> None:
    """Write responses that share content, under ids that the client sent, that the server gave, and of outputs."""
    archive = Archive(records, clock=clock)
    base = None
    for number in range(3):
        questions = [user("Hello", id=f"msg_hello{number}"), user("again", id=f"msg_{number:024x}000001")]
        created = response(assistant("Hi", id=f"msg_hi{number}"), id=f"resp_{number}")
        await archive.save(created, owner=ALICE, base=None, input_items=questions)
        base = (await _stored(archive, created["id"])).history
    for number in range(2):
        questions = [user("Why?", id=f"msg_why{number}")]
        created = response(assistant("So.", id=f"msg_so{number}"), id=f"resp_next{number}")
        await archive.save(created, owner=ALICE, base=base, input_items=questions)


async def _read_shared(records: Records, clock: Clock) -> Json:
    archive = Archive(records, clock=clock)
    stored = [await _stored(archive, name) for name in ("resp_0", "resp_2", "resp_next0", "resp_next1")]
    histories = [[item["id"] for item in await archive.history(each.history)] for each in stored]
    wanted = sorted({item_id for history in histories for item_id in history})
    return {
        "histories": histories,
        "found": sorted([item["id"] async for _, item in archive.find_items(ALICE, wanted)]),
        "inputs": [[item["id"] for item in items] for items in await archive.own_inputs(stored)],
    }


async def _fill_tags(records: Records, clock: Clock) -> None:
    """Write a chain and a conversation that have a tag, and so are in one partition of a store with several."""
    archive = Archive(records, clock=clock)
    base = None
    for number in range(3):
        created = response(assistant("Hi", id=f"msg_p005{number:024x}"), id=f"resp_p005{number:024x}")
        await archive.save(created, owner=ALICE, base=base, input_items=[user(f"{number}?", id=f"msg_hello{number}")])
        base = (await _stored(archive, created["id"])).history
    conversation = Conversation(f"conv_p3ff{0:024x}", ALICE, CREATED, {})
    await archive.conversations.create(conversation, [user("And now?", id="msg_now")])


async def _read_tags(records: Records, clock: Clock) -> Json:
    archive = Archive(records, clock=clock)
    stored = await _stored(archive, f"resp_p005{2:024x}")
    wanted = [f"msg_p005{1:024x}", "msg_hello0", "msg_now"]
    return {
        "history": [item["id"] for item in await archive.history(stored.history)],
        "found": sorted([item["id"] async for _, item in archive.find_items(ALICE, wanted)]),
        "conversation": await archive.conversations.items(f"conv_p3ff{0:024x}", 1),
    }


async def _fill_items(records: Records, clock: Clock) -> None:
    """Write a response with an item of every kind in its input, and one with every kind of output."""
    archive = Archive(records, clock=clock)
    await archive.save(response(id="resp_in"), owner=ALICE, base=None, input_items=ITEMS)
    made = response(*OUTPUTS, id="resp_out")
    transcript = Transcript()
    transcript.note(replay(made))
    await archive.save(made, owner=ALICE, base=None, input_items=[], transcript=transcript.marks())


async def _read_items(records: Records, clock: Clock) -> Json:
    archive = Archive(records, clock=clock)
    return {name: await _read_response(archive, name) for name in ("resp_in", "resp_out")}


async def _fill_learned(records: Records, _: Clock) -> None:
    """Write what a server learned about a model server."""
    steps = [Step("omit", "user"), Step("effort", ("high", "low"))]
    learned = LearnedSteps(records)
    await learned.add("http://localhost:8000 1", "local", "qwen3", steps)
    await learned.correct("http://localhost:8000 1", "local", "qwen3", 2.5)
    await learned.bound("http://localhost:8000 1", "local", "qwen3", 32_768)
    case = Case(frozenset({"stream", "temperature"}), 2, CREATED + 60.0, CREATED + 86_400.0)
    evidence = Evidence((case,), ((frozenset({"stream", "tools"}), CREATED + 3_600.0),))
    await learned.judge("http://localhost:8000 1", "local", "qwen3", {Step("drop", "temperature"): lambda _: evidence})


async def _read_learned(records: Records, clock: Clock) -> Json:
    clock.now = CREATED
    known = await LearnedSteps(records).of("http://localhost:8000 1")
    steps = {model: [[each.kind, each.argument, at] for each, at in of.items()] for model, of in known.steps.items()}
    corrections, contexts = (
        {model: list(each) for model, each in of.items()} for of in (known.corrections, known.contexts)
    )
    evidence = {
        model: [
            [
                step.kind,
                step.argument,
                [[sorted(case.parts), case.refusals, case.again, case.until] for case in of.cases],
            ]
            for step, of in seen.items()
        ]
        for model, seen in known.evidence.items()
    }
    return {"steps": steps, "corrections": corrections, "contexts": contexts, "evidence": evidence}


async def _fill_joined(records: Records, _: Clock) -> None:
    """Write a response whose items also are in two conversations."""
    archive, answer = Archive(records), assistant("two", id="msg_answer")
    conversations = [Conversation(f"conv_{number}", ALICE, CREATED, {}) for number in range(2)]
    for conversation in conversations:
        await archive.conversations.create(conversation, [user("zero", id="msg_both")])
    questions = [stand_in(conversations[0]) | {"turn": "0"}, user("one", id="msg_question")]
    created = response(answer, id="resp_joined", conversation={"id": "conv_0"})
    await archive.save(created, owner=ALICE, base=None, input_items=questions)
    await archive.conversations.add(conversations[1], [answer])


async def _read_joined(records: Records, _: Clock) -> Json:
    """Return which items are found after each of the places that have them is deleted."""
    archive, found = Archive(records), {}
    for place in ("none", "conv_1", "resp_joined", "conv_0"):
        await (archive.delete(place) if place.startswith("resp_") else archive.conversations.delete(place))
        ids = ("msg_both", "msg_question", "msg_answer")
        found[place] = [each for each in ids async for _ in archive.find_items(ALICE, [each])]
    return found


async def _fill_secrets(records: Records, _: Clock) -> None:
    """Write what a server leaves that seals with a secret."""
    await SecretCheck(records, _SEALER, DEFAULT).check()


async def _read_secrets(records: Records, _: Clock) -> Json:
    found = {}
    for name, sealer in {
        "same": _SEALER,
        "other": Sealer([bytes(SECRET_BYTES)]),
        "none": Sealer([], SecretInMemory()),
    }.items():
        check = SecretCheck(records, sealer, DEFAULT)
        await check.check()
        found[name] = check.differs
    return found


async def _fill_skills(records: Records, _: Clock) -> None:
    """Write a skill with two versions, and what remains of a server that dies after deleting another one."""
    dying = DyingRecords(records)
    skills = SkillStore(dying)
    quota = SkillQuota(9, 9, 9 * PART_BYTES)

    async def new(name: str, content: bytes) -> NewVersion:
        archive = await skills.upload(ALICE, "skill_1", content, sha256(content).hexdigest(), quota)
        return NewVersion(name, f"The skill {name}.", CREATED, archive, len(content))

    numbers = count()
    with patch.object(skill_store, "token_hex", lambda size: f"{next(numbers):0{2 * size}x}"):
        for skill_id in ("skill_1", "skill_2"):
            await skills.create(skill_id, ALICE, await new("one", b"one"), quota)
        await skills.add_version(ALICE, "skill_1", await new("two", b"two"), quota)
    await skills.set_default(ALICE, "skill_1", 2)
    dying.commits_left = 1
    with suppress(InterruptedError):
        await skills.delete(ALICE, "skill_2")


async def _read_skills(records: Records, _: Clock) -> Json:
    """Return the skills and their versions, and which rows are left after the deletion is finished."""
    archive, skills = Archive(records), SkillStore(records)
    found = []
    page, _more = await skills.page(ALICE, limit=9)
    for skill in page:
        async for version in skills.every_version(skill):
            content = b"".join([part async for part in skills.parts(version)])
            found.append([version.number, version.name, sha256(content).hexdigest() == version.archive.digest])
    await archive.sweep()
    left = [key.split("/")[0] for key, _record in await records.range("!", "~", limit=99)]
    return {
        "skills": [[each.id, each.name, each.default, each.latest] for each in page],
        "versions": found,
        "left": left,
    }


async def _fill_users(records: Records, clock: Clock) -> None:
    """Write keys of users, an entry of the audit log, and what was used: added up, not yet, and of a limit."""
    keys, numbers = AccessKeys(records), count(1)
    with (
        patch.object(os, "urandom", lambda size: next(numbers).to_bytes(size)),
        patch.object(secrets, "token_urlsafe", lambda _: _TOKEN.rpartition("-")[2]),
    ):
        key, token = await keys.create(
            NewKey("laptop", ALICE, "search", ["lead"], ["local/*"], {"requests_per_minute": 60})
        )
        assert token == _TOKEN
        await keys.used(key.id)
        revoked, _ = await keys.create(NewKey("lost", ALICE))
        await keys.revoke(revoked.id)
        deleted = Act("response.deleted", {"type": "user", "id": "olga"}, "allowed", "resp_1", ALICE)
        await AuditLog(records, 3600).write(deleted)
    archive = Archive(records, clock=clock, at_end=[partial(count_usage, "project", ONE_PARTITION)])
    tables = Tables(records, Decoder(), Bounds(9, 9), None)
    for number in range(2):
        used = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
        made = response(id=f"resp_used{number}", usage=used, metadata={"project": "x"})
        await archive.save(made, owner=key.user, base=None, input_items=[])
        if not number:
            assert await tables.add_some(clock() + 1) == 1
    assert await Meter(records, clock, "tokens of ada", 1000, MONTH).hold(100)


async def _read_users(records: Records, clock: Clock) -> Json:
    clock.now = CREATED
    keys = AccessKeys(records)
    found = await keys.authenticate(_TOKEN)
    entries, _ = await AuditLog(records, 3600).page(9)
    tables = await Reading(records, Decoder()).read(Span(DAYS, 0, 1 << 31), lambda _: True)
    meter = Meter(records, clock, "tokens of ada", 1000, MONTH)
    return {
        "user": found and asdict(found.key.user),
        "keys": [[each.id, each.status(CREATED), each.limits] async for each in keys.all()],
        "uses": await keys.last_uses([found.key.id]) if found else None,
        "audit": entries,
        "usage": [[list(each), counts] for table in tables.values() for each, counts in table.items()],
        "left": [await meter.hold(1000), await meter.hold(800)],
    }


async def _fill_usage_sums(records: Records, clock: Clock) -> None:
    """Write the sums of two days: one is over its bound."""
    archive = Archive(records, clock=clock, at_end=[partial(count_usage, "project", ONE_PARTITION)])
    tables = Tables(records, Decoder(), Bounds(9, 9), None)
    for number in range(3):
        used = {"input_tokens": 3, "output_tokens": 5, "total_tokens": 8}
        made = response(id=f"resp_used{number}", usage=used, model=f"m{number}", metadata={"project": "x"})
        await archive.save(made, owner=ALICE, base=None, input_items=[])
        if number:
            clock.now += DAYS.seconds
    while await tables.add_some(clock() + 1):
        pass
    with patch.object(sums, "MOST", 1):
        await sums.DaySums(records, Decoder(), None).update(clock() + DAYS.seconds)


async def _read_usage_sums(records: Records, _: Clock) -> Json:
    reading = Reading(records, Decoder())
    found = {}
    for needs in (["metadata"], ["user"], None):
        tables = await reading.read(Span(DAYS, 0, 1 << 31, needs=needs), lambda _: True)
        found[str(needs)] = [[list(each), counts] for table in tables.values() for each, counts in table.items()]
    return found


async def _fill_homes(records: Records, clock: Clock) -> None:
    """Write what an owner has in the home partition of a store with several: usage, a skill and a refused request."""
    home = Placement(8).of_owner(ALICE)
    archive = Archive(records, clock=clock, at_end=[partial(count_usage, "project", Placement(8))])
    tables, skills, quota = Tables(records, Decoder(), Bounds(9, 9), None), SkillStore(records), SkillQuota(9, 9, 9)
    for number in range(2):
        made = response(id=f"resp_p005{number:024x}", metadata={"project": "x"})
        await archive.save(made, owner=ALICE, base=None, input_items=[])
        if not number:
            assert await tables.add_some(clock() + 1) == 1
    skill_id = f"skill_p{home:03x}{0:024x}"
    with patch.object(skill_store, "token_hex", lambda size: "0" * 2 * size):
        uploaded = await skills.upload(ALICE, skill_id, b"zip", sha256(b"zip").hexdigest(), quota)
        await skills.create(skill_id, ALICE, NewVersion("sums", "Adds.", CREATED, uploaded, 3), quota)
    with patch.object(os, "urandom", bytes):
        await records.commit([put_of(Refused(ALICE, ApiError(400, "No."), {}, "req_1", CREATED), 30, home)])


async def _read_homes(records: Records, _: Clock) -> Json:
    skills = SkillStore(records)
    [skill], _more = await skills.page(ALICE, limit=9)
    tables = await Reading(records, Decoder()).read(Span(DAYS, 20_000, 22_000, ALICE), lambda _: True)
    over = ""
    try:
        await skills.upload(ALICE, "skill_1", bytes(10), "", SkillQuota(9, 9, 9))
    except ApiError as error:
        over = str(error)
    return {
        "usage": [[list(each), counts] for table in tables.values() for each, counts in table.items()],
        "over": over,
        "skill": [b"".join([part async for part in skills.parts(await skills.version(skill, 1))]).decode(), skill.id],
        "refused": [row["id"] async for row in RefusedRequests(records).every(ALICE)],
    }


async def _fill_refused(records: Records, _: Clock) -> None:
    """Write a request that was refused."""
    body = {"model": "m", "input": [user("Why?")], "metadata": {"topic": "demo"}}
    error = ApiError(400, "It is too long.", param="input", code="string_above_max_length")
    with patch.object(os, "urandom", bytes):
        await records.commit([put_of(Refused(ALICE, error, body, "req_1", CREATED), 30, 0)])


async def _read_refused(records: Records, _: Clock) -> Json:
    return {"refused": [row async for row in RefusedRequests(records).every(ALICE)]}


async def _fill_scores(records: Records, clock: Clock) -> None:
    """Write a response with a score, a note and a link."""
    archive = Archive(records, clock=clock)
    await archive.save(response(id=_SCORED), owner=ALICE, base=None, input_items=[])
    entry, version = found if (found := await archive.entry_version(_SCORED)) else (None, 0)
    assert entry
    assert await archive.scores.put(entry, version, Score(0.5, "It is brief.", "ada", CREATED))
    with patch.object(os, "urandom", bytes):
        assert await Links(records, _SEALER).make(entry, version, "ada", 3600)


async def _read_scores(records: Records, clock: Clock) -> Json:
    clock.now = CREATED
    archive = Archive(records, clock=clock)
    entry, _ = found if (found := await archive.entry_version(_SCORED)) else (None, 0)
    assert entry
    score = await archive.scores.find(entry)
    links = await Links(records, _SEALER).of(_SCORED)
    return {"score": score and score.fields(), "links": [each.fields() for each in links]}


async def _fill_noted(records: Records, _: Clock) -> None:
    """Write what a commit has noted for another partition, which does not answer."""
    away = WatchedRecords(MemoryRecords())
    parts = PartitionedRecords([records, away])
    await parts.get_many(["ms/here"])
    away.away = True
    with patch.object(secrets, "token_hex", lambda size: "0" * 2 * size):
        there: list[Op] = [Put("p/one.001", b"\xff1", CREATED + 60), Ensure("p/two.001", b"2"), Delete("p/three.001")]
        await parts.commit([Put("ms/here", b"0"), *there])


async def _read_noted(records: Records, clock: Clock) -> Json:
    """Return what is written once the partition answers."""
    clock.now = CREATED
    there = MemoryRecords(clock=clock)
    await there.commit([Put("p/three.001", b"3")])
    await PartitionedRecords([records, there]).sweep(CREATED)
    rows = {key: record.value.decode("latin-1") for key, record in await there.range("p/", "p0", limit=9)}
    return {"there": rows, "noted": [key for key, _ in await records.range("ob/", "ob0", limit=9)]}


_PACKED: Final = ("resp_packed_1", "resp_packed_2", "resp_packed_3")


async def _fill_packed(records: Records, clock: Clock) -> None:
    """Write two chains that are packed, one of them with a deleted response. The object is in rows of the store."""
    archive = Archive(records, clock=clock)
    base: str | None = None
    for number, each in enumerate(_PACKED):
        base = base if number < 2 else None
        made = response(assistant("Hi " * 9, id=f"msg_{each}"), id=each, instructions="Be brief. " * 40)
        await archive.save(made, owner=ALICE, base=base, input_items=[user(f"Hello {number}", id=f"msg_in_{each}")])
        entry = await archive.entry(each)
        assert entry
        base = entry.whole
    objects = cast("Objects", ObjectsInRows(records))
    clock.now += AFTER + 1
    await _pack(records)
    unpacking = UnpackingRecords(records, Bringing(records, objects, AFTER, None))
    assert await unpacking.forget(_PACKED[0], [], [])
    await records.commit([Put(FOLDER, b"0" * 16)])


async def _pack(records: Records) -> None:
    """Pack what is idle into objects in rows of the store, with the same keys each time."""
    objects = cast("Objects", ObjectsInRows(records))
    with patch.object(secrets, "token_bytes", bytes), patch.object(secrets, "token_hex", lambda size: "0" * 2 * size):
        await Packing(records, objects, AFTER, least_bytes=1).work()


async def _fill_packed_items(records: Records, clock: Clock) -> None:
    """Write a conversation whose items are packed as runs of three, and one that was added since."""
    conversation = Conversation("conv_packed", ALICE, CREATED, {}, used_at=CREATED)
    store = Archive(records, clock=clock).conversations
    await store.create(conversation, [user(f"Hello {number}", id=f"msg_{number}") for number in range(5)])
    clock.now += AFTER + 1
    with patch.object(conversations, "RUN_ITEMS", 3):
        for _ in range(2):
            await _pack(records)
    await store.add(conversation, [user("Hello 5", id="msg_5")])
    await records.commit([Put(FOLDER, b"0" * 16)])


async def _read_packed_items(records: Records, clock: Clock) -> Json:
    objects = cast("Objects", ObjectsInRows(records))
    archive = Archive(UnpackingRecords(records, Bringing(records, objects, AFTER, None)), clock=clock)
    conversation = await archive.conversations.load("conv_packed")
    assert conversation
    return {
        "noted": [record.value.decode() for _, record in await records.range("ch/", "ch0", limit=9)],
        "second": await stored_item(archive, ALICE, "msg_1"),
        "items": await archive.conversations.items(conversation.id, conversation.end),
    }


async def _fill_paged(records: Records, clock: Clock) -> None:
    """Write those chains, of which the store has its rows in pages."""
    await _fill_packed(records, clock)
    clock.now += 3600.0
    await Packing(records, cast("Objects", ObjectsInRows(records)), AFTER).release()


async def _fill_parts(records: Records, clock: Clock) -> None:
    """Write those chains as if they were large: each of their nodes is packed by itself."""
    with patch.multiple(units, PART_BYTES=1, UNIT_BYTES=300):
        await _fill_packed(records, clock)


async def _read_packed(records: Records, clock: Clock) -> Json:
    objects = cast("Objects", ObjectsInRows(records))
    archive = Archive(UnpackingRecords(records, Bringing(records, objects, AFTER, None)), clock=clock)
    found = {each: stored for each in _PACKED if (stored := await archive.load(each))}
    return {
        "responses": {each: stored.response for each, stored in found.items()},
        "inputs": {each: await archive.history(stored.input) for each, stored in found.items()},
        "released": [Release.decode(record).at for _, record in await records.range("cl/", "cl0", limit=9)],
    }


async def _fill_batches(records: Records, _: Clock) -> None:
    """Write a batch of four lines: one runs, one is tried again, one has ended, and one is not queued yet."""
    batches = StoredBatches(records)
    batch = Batch(
        f"batch_{1:024x}",
        ALICE,
        "/v1/chat/completions",
        "file-1",
        "24h",
        CREATED,
        CREATED + 86_400,
        metadata={"topic": "demo"},
        output_seconds=3600,
        sealed="sealed",
    )
    await batches.create(batch, 9)
    await batches.name(batch.id, [Named(number, f"line-{number}") for number in range(1, 5)])
    lines = [Line(batch.id, number) for number in (1, 2, 3)]
    for line in lines:
        assert await batches.begun(line)
    usage = (3, 0, 5, 0, 8)
    assert await batches.answered(lines[0], Result("resp_1", False, 200, {"id": "chatcmpl-1"}), Counted(True, usage))
    assert await batches.again(lines[1], CREATED + 60)


async def _read_batches(records: Records, _: Clock) -> Json:
    batches = StoredBatches(records)
    (batch,), _more = await batches.page(Hasher(ALICE).owner, None, 9)
    found = await batches.counted(Hasher(ALICE).owner, batch.id)
    return {
        "batch": asdict(batch),
        "named": [list(each) async for some in batches.named(batch.id) for each in some],
        "counted": found and [list(each) for each in found[1]],
        "running": [list(line) for line, _ in (await batches.running(batch.id)).values()],
        "retries": [[list(each.line), each.due] for each in (await batches.retries(batch.id)).values()],
        "results": [[list(line), list(result)] for line, result in await batches.some_results(batch.id)],
    }


async def _fill_webhooks(records: Records, clock: Clock) -> None:
    """Write an endpoint that fails, with two secrets, a delivery that is tried again, and an event without deliveries.

    The ids do not depend on chance.
    """
    endpoints = Endpoints(records, _SEALER)
    with patch.object(os, "urandom", bytes):
        created, _ = await endpoints.create(ALICE, "Jobs", "https://hooks.example.com", ["response.completed"], 9)
        await endpoints.rotate(ALICE, created.id, 60)
    deliveries = Deliveries(records, endpoints, {}, 3600)
    archive = Archive(records, clock=clock, at_end=[partial(recorded, 3600)])
    for response_id in ("resp_sent", "resp_ended"):
        ended = response(assistant("Hi", id=f"msg_{response_id}"), id=response_id, background=True)
        await archive.save(ended, owner=ALICE, base=None, input_items=[])
        if response_id == "resp_sent":
            assert await deliveries.make()
    [queued] = await deliveries.due(created.id, clock() + 1, 9)
    [sent] = (await deliveries.load([queued])).values()
    failed = State(CREATED).put(created.id, None)
    attempt = Attempt(CREATED, 503, "Busy")
    assert await deliveries.settle(Settled(queued, sent.after(attempt, "waiting"), CREATED + 60), [failed])


async def _read_webhooks(records: Records, clock: Clock) -> Json:
    """Return the endpoint and its deliveries, also that of the event."""
    endpoints = Endpoints(records, _SEALER)
    deliveries = Deliveries(records, endpoints, {}, 3600)
    (endpoint,) = await endpoints.of_owner(Hasher(ALICE).owner)
    assert await deliveries.make()
    state = await endpoints.state(endpoint.id)
    return {
        "endpoint": asdict(endpoint) | {"secrets": [list(each)[1:] for each in endpoint.secrets]},
        "opens": len(await endpoints.secrets_of(endpoint, CREATED)),
        "state": asdict(state) if state else None,
        "deliveries": [
            [each.response, each.status, each.tried, each.body] async for each in deliveries.every(endpoint.id)
        ],
        "due": [each.delivery for each in await deliveries.due(endpoint.id, clock() + 3600, 9)],
    }


type Fill = Callable[[Records, Clock], Awaitable[None]]
type Read = Callable[[Records, Clock], Awaitable[Json]]

EVERY_KIND: Final = "every-kind"
STORES: Final[Mapping[str, tuple[Fill, Read]]] = {
    EVERY_KIND: (fill, read),
    "items": (_fill_items, _read_items),
    "learned": (_fill_learned, _read_learned),
    "own-ids": (_fill_shared, _read_shared),
    "tags": (_fill_tags, _read_tags),
    "joined-items": (_fill_joined, _read_joined),
    "secrets-in-use": (_fill_secrets, _read_secrets),
    "skills": (_fill_skills, _read_skills),
    "users": (_fill_users, _read_users),
    "batches": (_fill_batches, _read_batches),
    "webhooks": (_fill_webhooks, _read_webhooks),
    "usage-sums": (_fill_usage_sums, _read_usage_sums),
    "homes": (_fill_homes, _read_homes),
    "refused-requests": (_fill_refused, _read_refused),
    "scores": (_fill_scores, _read_scores),
    "packed": (_fill_packed, _read_packed),
    "paged": (_fill_paged, _read_packed),
    "packed-parts": (_fill_parts, _read_packed),
    "packed-items": (_fill_packed_items, _read_packed_items),
    "noted": (_fill_noted, _read_noted),
}


async def written(name: str) -> Json:
    """Return the content of a file, as this version writes it."""
    clock = Clock(CREATED)
    records = MemoryRecords(clock=clock)
    fill, read = STORES[name]
    await fill(records, clock)
    rows = {key: b64encode(record.value).decode() for key, record in await records.range("!", "~", limit=10_000)}
    return {"rows": rows, "seals": seals(), "read": await read(records, clock)}
