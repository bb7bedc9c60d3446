"""Sealed items of one request hold a bounded number of bytes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.items.compaction import Summary
from llama_stack_responses.items.reasoning_segments import ReasoningSegment
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealed_items import Opened, SealedItems, unreadable
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries

ANNA = Owner("anna")
SEALER = Sealer([bytes(32)])
CHARACTERS = 500_000


def reasoning(sealer: Sealer = SEALER) -> dict[str, Any]:
    seal = PrivateReasoning(sealer, ANNA).seal([ReasoningSegment("a" * CHARACTERS)])
    return {"type": "reasoning", "encrypted_content": seal}


def compaction() -> dict[str, Any]:
    data = Summary("a" * CHARACTERS).encode()
    seal = SEALER.seal(data, purpose="compaction", owner=ANNA)
    return {"type": "compaction", "encrypted_content": seal}


@pytest.mark.parametrize("make", [reasoning, compaction])
@pytest.mark.parametrize("verify", [True, False], ids=["request", "history"])
async def test_repeated_item_within_limit_passes_and_past_it_is_400(make: Any, verify: bool) -> None:
    item = make()
    assert len(item["encrypted_content"]) < CHARACTERS / 100
    sealed = SealedItems(SEALER, 10 * CHARACTERS)
    await sealed.open([item] * 9, ANNA, Opened(), verify=verify)
    with pytest.raises(ApiError) as caught:
        await sealed.open([item] * 11, ANNA, Opened(), verify=verify)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert f"more than {10 * CHARACTERS} bytes" in str(error)


class WatchedSealer(Sealer):
    """Record the thread of each opening."""

    def __init__(self) -> None:
        super().__init__([bytes(32)])
        self.threads: list[int] = []

    def open(self, seal: str, **about: Any) -> bytes:
        self.threads.append(threading.get_ident())
        return super().open(seal, **about)


@pytest.mark.parametrize("make", [reasoning, compaction])
async def test_large_item_is_opened_once_in_a_thread_and_counted_in_steps(make: Any) -> None:
    sealer, item, opened, held = WatchedSealer(), make(), Opened(), list[int]()
    for _ in range(2):
        await SealedItems(sealer, 2**30).open([item] * 3, ANNA, opened, verify=True, hold=held.append)
    assert sum(held) >= 6 * CHARACTERS
    assert max(held) < 2 * CHARACTERS
    reads: Any = PrivateReasoning if make is reasoning else PrivateSummaries
    read = reads(sealer, ANNA, opened).read(item)
    assert (read[0] if make is reasoning else read).text == "a" * CHARACTERS
    assert len(sealer.threads) == 1
    assert sealer.threads[0] != threading.get_ident()


async def test_refused_hold_ends_decompression() -> None:
    def refuse(size: int) -> None:
        raise ApiError(429, f"not {size} bytes")

    opened = Opened()
    with pytest.raises(ApiError, match=r"not 2[0-9]{5} bytes"):
        await SealedItems(SEALER, 2**30).open([reasoning()], ANNA, opened, verify=True, hold=refuse)
    assert opened.content == {}


async def test_item_that_does_not_open_is_not_tried_again() -> None:
    sealer, item, opened = WatchedSealer(), reasoning(), Opened()
    foreign = Owner("ben")
    await SealedItems(sealer, 2**20).open([item], foreign, opened, verify=False)
    assert PrivateReasoning(sealer, foreign, opened).read(item | {"summary": [{"text": "seen"}]})[0].text == "seen"
    assert len(sealer.threads) == 1


async def test_unopened_item_of_history_is_not_counted() -> None:
    item = reasoning()
    sealed = SealedItems(Sealer([bytes(range(32))]), CHARACTERS)
    await sealed.open([item] * 9, ANNA, Opened(), verify=False)


async def test_items_of_a_request_whose_secret_is_gone_are_left_to_the_caller() -> None:
    here, elsewhere, opened = reasoning(), reasoning(Sealer([bytes(range(32))])), Opened()
    await SealedItems(SEALER, 2**20).open([here, elsewhere, elsewhere], ANNA, opened, verify=True)
    assert unreadable([here, elsewhere], opened) == [elsewhere]
    assert unreadable([here], opened) == []
