"""Keys of users on every backend: what they authenticate, rotation, revocation, and what is stored of a token."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.store.access_keys import AccessKey, AccessKeys, NewKey
from llama_stack_responses.store.records import Records, after_prefix
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.contract.test_archive import ALICE, BOB

HOUR: Final = 3_600
NEW: Final = NewKey("laptop", ALICE, "search", ["lead"], ["local/*"], {"requests_per_minute": 60})


@pytest.fixture
def keys(records: Records) -> AccessKeys:
    return AccessKeys(records)


async def accepted(keys: AccessKeys, token: str) -> Owner | None:
    """Return the user of a token; None if it is refused."""
    found = await keys.authenticate(token)
    return found.key.user if found else None


async def test_token_authenticates_its_owner_with_attributes(keys: AccessKeys) -> None:
    key, token = await keys.create(NEW)
    user = await accepted(keys, token)
    assert user == Owner(
        ALICE.principal,
        {
            "keys": [key.id],
            "teams": ["search"],
            "roles": ["lead"],
            "models": ["local/*"],
            "limits": ["requests_per_minute=60"],
        },
        ALICE.tenant,
    )
    assert (user.key, user.team, user.roles) == (key.id, "search", ["lead"])
    assert await keys.find(key.id) == key
    assert key.limits == {"requests_per_minute": 60}


async def test_key_without_team_roles_and_models_gives_no_such_attribute(keys: AccessKeys) -> None:
    key, token = await keys.create(NewKey("plain", BOB))
    assert await accepted(keys, token) == Owner(BOB.principal, {"keys": [key.id]}, BOB.tenant)


async def test_other_tokens_are_refused(keys: AccessKeys) -> None:
    _, token = await keys.create(NEW)
    other, _ = await keys.create(NEW)
    wrong = "A" if token[-1] != "A" else "B"
    of_other = f"sk-lsr-{other.id.removeprefix('key_')}-{token.rpartition('-')[2]:A>43}"
    for each in ("", "sk-lsr", token[:-1], token + "A", token[:-1] + wrong, token.upper(), f" {token}", of_other):
        assert await accepted(keys, each) is None, each
    assert await accepted(keys, token)


async def test_token_is_not_in_the_store(keys: AccessKeys, records: Records) -> None:
    key, token = await keys.create(NEW)
    _, again = await keys.rotate(key.id, HOUR) or pytest.fail("not rotated")
    await keys.used(key.id)
    rows = await records.range("a", after_prefix("z"), limit=100)
    values = b"".join(row.value for _, row in rows) + "".join(name for name, _ in rows).encode()
    for each in (token, again):
        secret = each[len("sk-lsr-") + 25 :]
        assert len(secret) == 43
        assert secret[:-4].encode() not in values


async def test_rotated_key_accepts_the_old_token_for_the_overlap(
    keys: AccessKeys, records: Records, clock: Clock
) -> None:
    key, old = await keys.create(NEW)
    rotated, new = await keys.rotate(key.id, HOUR) or pytest.fail("not rotated")
    assert rotated.id == key.id
    assert rotated.redacted != key.redacted
    found = await keys.authenticate(old)
    assert found
    assert found.seconds == pytest.approx(HOUR, abs=5)
    assert (await keys.authenticate(new) or pytest.fail("refused")).seconds is None
    clock.now = CREATED + HOUR + 1
    assert await accepted(keys, new)
    if not records.has_own_clock:
        assert await accepted(keys, old) is None


async def test_rotation_without_overlap_ends_the_old_token_at_once(keys: AccessKeys) -> None:
    key, old = await keys.create(NEW)
    _, new = await keys.rotate(key.id, 0) or pytest.fail("not rotated")
    assert await accepted(keys, old) is None
    assert await accepted(keys, new)


async def test_second_rotation_does_not_prolong_the_first_token(keys: AccessKeys) -> None:
    key, first = await keys.create(NEW)
    await keys.rotate(key.id, HOUR)
    await keys.rotate(key.id, 10 * HOUR)
    assert (await keys.authenticate(first) or pytest.fail("refused")).seconds == pytest.approx(HOUR, abs=5)


async def test_revoked_key_is_refused_and_keeps_no_digest(keys: AccessKeys) -> None:
    key, old = await keys.create(NEW)
    _, new = await keys.rotate(key.id, HOUR) or pytest.fail("not rotated")
    revoked = await keys.revoke(key.id) or pytest.fail("not revoked")
    for token in (old, new):
        assert await accepted(keys, token) is None
    assert revoked.status(CREATED) == "revoked"
    assert {each.digest for each in revoked.secrets} == {"0" * 64}
    assert await keys.rotate(key.id, HOUR) is None
    assert (await keys.revoke(key.id) or pytest.fail("gone")).revoked_at == revoked.revoked_at


async def test_expiring_key_says_how_long_it_is_accepted(keys: AccessKeys) -> None:
    _, token = await keys.create(NewKey("short", ALICE, seconds=HOUR))
    assert (await keys.authenticate(token) or pytest.fail("refused")).seconds == pytest.approx(HOUR, abs=5)
    _, ended = await keys.create(NewKey("ended", ALICE, seconds=-1))
    assert await accepted(keys, ended) is None


async def test_concurrent_rotations_and_a_revocation_end_revoked(keys: AccessKeys) -> None:
    key, _ = await keys.create(NEW)
    await asyncio.gather(*(keys.rotate(key.id, HOUR) for _ in range(3)), keys.revoke(key.id))
    assert (await keys.find(key.id) or pytest.fail("gone")).revoked_at is not None


async def test_all_last_uses_and_deletion(keys: AccessKeys, records: Records) -> None:
    first, token = await keys.create(NEW)
    second, _ = await keys.create(NewKey("other", BOB))
    await keys.used(first.id)
    found: list[AccessKey] = [each async for each in keys.all()]
    assert sorted(each.id for each in found) == sorted([first.id, second.id])
    uses = await keys.last_uses([first.id, second.id])
    assert uses == {first.id: pytest.approx(int(await records.now()), abs=60)}
    assert await keys.delete(first.id)
    assert not await keys.delete(first.id)
    assert await accepted(keys, token) is None
    assert [each.id async for each in keys.all()] == [second.id]
    rows = await records.range("a", after_prefix("a"), limit=10)
    assert [name for name, _ in rows] == [f"ak/{second.id.removeprefix('key_')}"]
