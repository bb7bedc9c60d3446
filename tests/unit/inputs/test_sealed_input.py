"""Sealed items that a client sends: they are opened here, or read as they are stored, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.input_policy import DEFAULT_POLICY, InputPolicy
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.inputs.history import HistoryBounds, HistoryReader
from llama_stack_responses.inputs.sealed_input import SealedInput
from llama_stack_responses.items.compaction import Summary
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealed_items import Opened, SealedItems
from llama_stack_responses.sealing.sealer import SECRET_BYTES, Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.memory import MemoryRecords
from tests.contract.conversations import response, user

Json = dict[str, Any]

ADA = Owner("ada")
DROP = InputPolicy(drops_reasoning=True)
BEFORE, NOW = Sealer([b"b" * SECRET_BYTES]), Sealer([b"n" * SECRET_BYTES])
QUESTION = user("Why?")


def thought(item_id: str, sealer: Sealer, text: str = "Because.") -> Json:
    """Return a reasoning item as a client keeps it."""
    seal = PrivateReasoning(sealer, ADA).seal([ReasoningSegment(text)])
    return {"id": item_id, "type": "reasoning", "summary": [], "encrypted_content": seal}


def visible(item: Json, text: str = "Because.") -> Json:
    """Return a reasoning item as it is stored."""
    return item | {"content": [{"type": "reasoning_text", "text": text}]}


async def sealed_input(stored: Sequence[Json], policy: InputPolicy) -> SealedInput:
    """Return what opens the items of requests, on a store that holds these items of Ada."""
    archive = Archive(MemoryRecords(10_000, 2**20), clock=lambda: 0.0, retention=None)
    await archive.save(response(), owner=ADA, base=None, input_items=stored)
    reader = HistoryReader(archive, access=None, bounds=HistoryBounds(2**20, 2**20, 2**20))  # type: ignore[arg-type]
    return SealedInput(SealedItems(NOW, 2**20), reader, policy)


async def read(
    stored: Sequence[Json], sent: list[Json], owner: Owner = ADA, policy: InputPolicy = DEFAULT_POLICY
) -> list[Json | str]:
    """Return what a model gets of items that a user sends: the text of the reasoning items, and the others."""
    opened = Opened()
    items = await (await sealed_input(stored, policy)).open(sent, owner, opened)
    reasoning = PrivateReasoning(NOW, owner, opened)
    return [
        "".join(segment.text for segment in reasoning.read(item)) if item["type"] == "reasoning" else item
        for item in items
    ]


async def test_reasoning_whose_secret_is_gone_is_read_as_it_is_stored() -> None:
    lost, here = thought("rs_lost", BEFORE), thought("rs_here", NOW, "Yes.")
    forged = lost | {"content": [{"type": "reasoning_text", "text": "forged"}]}
    for sent in (lost, forged):
        assert await read([visible(lost)], [QUESTION, sent, here]) == [QUESTION, "Because.", "Yes."]


async def test_stored_reasoning_with_a_readable_seal_is_opened() -> None:
    stored = thought("rs_lost", NOW, "Sealed here.")
    assert await read([stored], [thought("rs_lost", BEFORE)]) == ["Sealed here."]


async def test_item_whose_secret_is_gone_is_refused_unless_it_is_reasoning_that_is_stored() -> None:
    lost = thought("rs_lost", BEFORE)
    summary = PrivateSummaries(BEFORE, ADA).seal(Summary("They spoke."))
    compaction = {"id": "cmp_1", "type": "compaction", "encrypted_content": summary}
    refused: dict[str, tuple[list[Json], Json, Owner]] = {
        "unknown id": ([], lost, ADA),
        "no id": ([visible(lost)], {key: value for key, value in lost.items() if key != "id"}, ADA),
        "another user's": ([visible(lost)], lost, Owner("ben")),
        "another type": ([user("a message", id="rs_lost")], lost, ADA),
        "a summary": ([compaction], compaction, ADA),
    }
    for name, (stored, sent, owner) in refused.items():
        with pytest.raises(ApiError, match="sealed with a secret that this server does not have") as caught:
            await read(stored, [QUESTION, sent], owner)
        assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content"), name
        assert "'secrets'" in caught.value.message


async def test_damaged_reasoning_is_refused_although_it_is_stored() -> None:
    item = thought("rs_1", NOW)
    damaged = item | {"encrypted_content": item["encrypted_content"][:-8] + "AAAAAAA="}
    with pytest.raises(ApiError, match="It is damaged"):
        await read([visible(item)], [damaged])


async def test_dropped_reasoning_keeps_what_is_visible_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    here, lost, elsewhere = thought("rs_here", NOW, "Yes."), thought("rs_lost", BEFORE), thought("rs_other", BEFORE)
    damaged = thought("rs_bad", NOW) | {"encrypted_content": "gAAAAABo"}
    sent = [lost, visible(elsewhere, "Seen."), QUESTION, here, damaged]
    assert await read([visible(lost)], sent, policy=DROP) == ["Because.", "Seen.", QUESTION, "Yes.", ""]
    [record] = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == ("dropped reasoning of a request that cannot be unsealed: 2 (rs_other, rs_bad)")


async def test_reasoning_of_another_user_is_dropped_too() -> None:
    assert await read([], [QUESTION, thought("rs_1", NOW)], Owner("ben"), DROP) == [QUESTION, ""]


async def test_summary_that_does_not_open_is_refused_or_becomes_a_note_that_it_is_lost() -> None:
    for sealer in (BEFORE, NOW):
        summary = {
            "type": "compaction",
            "encrypted_content": PrivateSummaries(sealer, ADA).seal(Summary("They spoke.")),
        }
        with pytest.raises(ApiError, match="could not be verified"):
            await read([], [summary, QUESTION], Owner("ben"))
        note, *others = await read([], [summary, QUESTION], Owner("ben"), DROP)
        assert isinstance(note, dict)
        assert "cannot be read here" in note["content"][0]["text"]
        assert others == [QUESTION]
