"""On every backend, an idempotency key refers to one response for a day."""

from __future__ import annotations

import asyncio
import hmac

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.json_blocks import ordered_dumps
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.service.idempotency import IdempotencyClaim, IdempotencyKeys
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Conflict, Delete, Records
from tests.contract.backends import Clock

pytestmark = pytest.mark.needs("transactions")

ANNA = Owner("anna", {"teams": ["search"]})
BODY = {"model": "m", "input": "a secret input", "metadata": {"a": "1", "b": "2"}}
DAY = 86_400


async def take(records: Records, claim: IdempotencyClaim, response_id: str) -> None:
    puts, free = await IdempotencyKeys(records).claim_ops(claim, response_id)
    await records.commit(puts, [free])


async def test_concurrent_claims_of_key_have_one_winner(records: Records) -> None:
    claim = IdempotencyClaim.of(ANNA, "key", BODY)

    async def race(number: int) -> bool:
        try:
            await take(records, claim, f"resp_{number}")
        except Conflict:
            return False
        return True

    won = await asyncio.gather(*(race(number) for number in range(8)))
    assert sum(won) == 1
    assert await IdempotencyKeys(records).find(claim) == f"resp_{won.index(True)}"


async def test_unclaimed_key_finds_no_response(records: Records) -> None:
    claim = IdempotencyClaim.of(ANNA, "key", BODY)
    assert await IdempotencyKeys(records).find(claim) is None
    await take(records, claim, "resp_1")
    await records.commit([Delete(claim.row)])
    assert await IdempotencyKeys(records).find(claim) is None


async def test_order_of_request_fields_does_not_matter(records: Records) -> None:
    await take(records, IdempotencyClaim.of(ANNA, "key", BODY), "resp_1")
    turned = {name: BODY[name] for name in reversed(BODY)} | {"metadata": {"b": "2", "a": "1"}}
    assert await IdempotencyKeys(records).find(IdempotencyClaim.of(ANNA, "key", turned)) == "resp_1"


@pytest.mark.parametrize("change", [{"input": "x"}, {"metadata": {"a": "1"}}, {"stream": True}, {"more": None}])
async def test_key_with_different_request_is_refused(records: Records, change: dict[str, object]) -> None:
    await take(records, IdempotencyClaim.of(ANNA, "key", BODY), "resp_1")
    with pytest.raises(ApiError) as refused:
        await IdempotencyKeys(records).find(IdempotencyClaim.of(ANNA, "key", BODY | change))
    assert (refused.value.status, refused.value.code) == (409, "idempotency_key_reused")


@pytest.mark.parametrize("other", [Owner("bert"), Owner("anna", tenant="shop"), Owner()])
async def test_key_belongs_to_its_owner(records: Records, other: Owner) -> None:
    await take(records, IdempotencyClaim.of(ANNA, "key", BODY), "resp_1")
    assert await IdempotencyKeys(records).find(IdempotencyClaim.of(other, "key", BODY)) is None
    assert (
        await IdempotencyKeys(records).find(IdempotencyClaim.of(Owner("anna", {"teams": ["sales"]}), "key", BODY))
        == "resp_1"
    )


async def test_key_expires_after_day_with_its_row(records: Records, clock: Clock) -> None:
    claims = [IdempotencyClaim.of(ANNA, f"key {number}", BODY) for number in range(3)]
    for claim in claims:
        await take(records, claim, "resp_1")
    clock.now += DAY - 1
    assert await IdempotencyKeys(records).find(claims[0]) == "resp_1"
    clock.now += 2
    assert await IdempotencyKeys(records).find(claims[0]) is None
    await take(records, claims[0], "resp_2")
    await Archive(records, clock=clock).sweep()
    # A sweep at the same time finds no further expired rows.
    assert await records.sweep(clock.now) == 0
    assert [key for key, _ in await records.range("y/", "y0", limit=9)] == [claims[0].row]
    assert await IdempotencyKeys(records).find(claims[0]) == "resp_2"


async def test_stored_claim_reveals_neither_key_nor_request(records: Records) -> None:
    await take(records, IdempotencyClaim.of(ANNA, "unused-key", BODY), "resp_1")
    [(row, record)] = await records.range("!", "~", limit=9)
    for secret in ("unused-key", "a secret input", "anna"):
        assert secret not in row
        assert secret.encode() not in record.value
    other = IdempotencyClaim.of(ANNA, "another-key", BODY)
    assert other.asked.encode() not in record.value  # the request alone does not predict the stored value


@pytest.mark.parametrize("odd", [{}, {"metadata": {"ä": "\ud83d"}, "seed": 2**70}], ids=["plain", "odd"])
def test_mac_of_large_request_is_that_of_its_whole_json(odd: dict[str, object]) -> None:
    """Servers of an earlier version computed it at once."""
    body = {"input": ["ä" * 100_000, {"b": 1, "a": [[]] * 20_000}], **BODY, **odd}
    whole = hmac.new(b"key", ordered_dumps(body), "sha256").hexdigest()
    assert IdempotencyClaim.of(ANNA, "key", body).asked == whole
