"""Sealed items of one request hold a bounded number of bytes."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.compaction import Summary
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.core.thoughts import Thought
from llama_stack_responses.sealing.reasoning import PrivateReasoning
from llama_stack_responses.sealing.sealed_items import SealedItems
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries

ANNA = Owner("anna")
SEALER = Sealer([bytes(32)])
CHARACTERS = 500_000


def reasoning() -> dict[str, Any]:
    seal = PrivateReasoning(SEALER, ANNA).seal([Thought("a" * CHARACTERS)])
    return {"type": "reasoning", "encrypted_content": seal}


def compaction() -> dict[str, Any]:
    seal = PrivateSummaries(SEALER, ANNA).seal(Summary("a" * CHARACTERS))
    return {"type": "compaction", "encrypted_content": seal}


@pytest.mark.parametrize("make", [reasoning, compaction])
@pytest.mark.parametrize("verify", [True, False], ids=["request", "history"])
async def test_repeated_item_within_limit_passes_and_past_it_is_400(make: Any, verify: bool) -> None:
    item = make()
    assert len(item["encrypted_content"]) < CHARACTERS / 100
    sealed = SealedItems(SEALER, 10 * CHARACTERS)
    await sealed.check([item] * 9, ANNA, verify=verify)
    with pytest.raises(ApiError) as caught:
        await sealed.check([item] * 11, ANNA, verify=verify)
    error = caught.value
    assert (error.status, error.code, error.param) == (400, "context_length_exceeded", "input")
    assert f"more than {10 * CHARACTERS} bytes" in str(error)


async def test_unopened_item_of_history_is_not_counted() -> None:
    item = reasoning()
    sealed = SealedItems(Sealer([bytes(range(32))]), CHARACTERS)
    await sealed.check([item] * 9, ANNA, verify=False)
    with pytest.raises(ApiError, match="a secret that this server does not have"):
        await sealed.check([item], ANNA, verify=True)
