"""Summaries that clients carry: only the user that they were sealed for can send them back."""

from collections.abc import Sequence
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.items.compaction import Summary
from llama_stack_responses.sealing.sealed_items import Opened, SealedItems
from llama_stack_responses.sealing.sealer import Sealer
from llama_stack_responses.sealing.summaries import PrivateSummaries

MESSAGE = [{"type": "input_text", "text": "And now?"}]
OLD, NEW = bytes(32), bytes(range(32))


def private(*secrets: bytes, owner: str = "anna") -> PrivateSummaries:
    return PrivateSummaries(Sealer(secrets or [NEW]), Owner(owner))


async def check(seals: PrivateSummaries, items: Sequence[dict[str, Any]]) -> None:
    """Check items that the owner of these seals sends."""
    await SealedItems(seals.sealer, 2**20).open(items, seals.owner, Opened(), verify=True)


def item(seal: str) -> dict[str, Any]:
    return {"type": "compaction", "id": "cmp_1", "encrypted_content": seal}


async def test_sealed_summary_is_restored() -> None:
    created = item(private().seal(Summary("They spoke.", MESSAGE)))
    assert "spoke" not in created["encrypted_content"]
    await check(private(), [created])
    assert private().read(created) == Summary("They spoke.", MESSAGE)


@pytest.mark.parametrize("which", ["altered", "foreign", "unsealed", "of reasoning"])
async def test_foreign_or_damaged_summary_is_refused(which: str) -> None:
    seal = private(OLD).seal(Summary("They spoke."))
    if which == "of reasoning":
        seal = Sealer([OLD]).seal(b"x", purpose="reasoning", owner=Owner("anna"))
    created = item(f"{seal[:-8]}AAAAAAA=" if which == "altered" else "abc" if which == "unsealed" else seal)
    reader = private(OLD, owner="ben" if which == "foreign" else "anna")
    with pytest.raises(ApiError) as caught:
        await check(reader, [{"type": "reasoning"}, created])
    assert (caught.value.status, caught.value.code) == (400, "invalid_encrypted_content")
    assert reader.read(created) is None


async def test_empty_summary_is_ignored() -> None:
    await check(private(), [item("")])
    assert private().read(item("")) is None
