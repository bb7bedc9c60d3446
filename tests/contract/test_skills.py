"""Skills, their versions and their archives, on every backend."""

from __future__ import annotations

import asyncio
import hashlib
import random
from functools import partial
from typing import Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.code.skills import store as skills
from llama_stack_responses.features.code.skills.store import (
    PART_BYTES,
    NewVersion,
    SkillQuota,
    SkillStore,
    SkillVersion,
    StoredSkill,
)
from llama_stack_responses.features.usage.limits.stored import Row, row_of
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.records import Delete, Records, Unanswered
from tests.contract.backends import Clock
from tests.contract.conversations import CREATED
from tests.contract.counting_proxy import CountingProxy
from tests.contract.test_archive import ALICE, BOB, keys
from tests.support.records import settled
from tests.support.recounts import recount

QUOTA: Final = SkillQuota(skills=3, versions=3, bytes=4 * PART_BYTES)
HOUR: Final = 3_600


@pytest.fixture
def store(counting: CountingProxy) -> SkillStore:
    return SkillStore(counting)


async def new_version(
    store: SkillStore, content: bytes = b"zip", name: str = "sums", owner: Owner = ALICE, skill: str = ""
) -> NewVersion:
    """Upload an archive for a skill, or for a new one."""
    stored = await store.upload(
        owner, skill or store.new_id(owner, 0), content, hashlib.sha256(content).hexdigest(), QUOTA
    )
    return NewVersion(name, f"The skill {name}.", CREATED, stored, 2 * len(content))


async def create(
    store: SkillStore, content: bytes = b"zip", name: str = "sums", owner: Owner = ALICE, second: int = CREATED
) -> StoredSkill:
    """Store a skill with one version."""
    skill_id = store.new_id(owner, second * 1000)
    return await store.create(skill_id, owner, await new_version(store, content, name, owner, skill_id), QUOTA)


async def add(store: SkillStore, skill: StoredSkill, content: bytes = b"zip", *, default: bool = False) -> SkillVersion:
    """Store another version of a skill, called as its content."""
    new = await new_version(store, content, content[:8].decode(), skill.owner, skill.id)
    return await store.add_version(skill.owner, skill.id, new, QUOTA, default=default)


async def content(store: SkillStore, version: SkillVersion) -> bytes:
    """Return the archive of a version."""
    return b"".join([part async for part in store.parts(version)])


async def left(records: Records) -> list[str]:
    """Return the keys of all rows but the counts of what owners have, which expire."""
    return [key for key in await keys(records) if not key.startswith("so/")]


def refused(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str | None, str | None]:
    return error.value.status, error.value.param, error.value.code


@pytest.mark.needs("transactions")
async def test_archives_of_skills_count_as_stored_bytes_of_their_owners(store: SkillStore, records: Records) -> None:
    skill = await create(store, b"x" * PART_BYTES)
    await add(store, skill, b"y" * PART_BYTES)
    await create(store, b"z" * PART_BYTES, owner=BOB)

    async def counted(owner: Owner) -> int:
        await recount(records)
        key = row_of("user", f"\0{owner.principal}")
        return Row.of((await records.get_many([key])).get(key)).counted

    assert 2 * PART_BYTES < await counted(ALICE) < 2 * PART_BYTES + 1000
    assert PART_BYTES < await counted(BOB) < PART_BYTES + 1000
    await store.delete(ALICE, skill.id)
    assert await counted(ALICE) == 0


async def test_created_skill_is_loaded_with_its_archive(store: SkillStore, counting: CountingProxy) -> None:
    zipped = random.Random(1).randbytes(2 * PART_BYTES + 1)
    skill = await create(store, zipped)
    assert await store.load(ALICE, skill.id) == skill
    assert (skill.name, skill.description, skill.created_at) == ("sums", "The skill sums.", CREATED)
    assert (skill.default, skill.latest, skill.versions) == (1, 1, 1)
    version = await store.version(skill, 1)
    assert (version.skill, version.number, version.created_at) == (skill.id, 1, CREATED)
    assert version.unpacked_bytes == 2 * len(zipped)
    assert await store.versions([(skill.id, 1), (skill.id, 2)]) == {(skill.id, 1): version}
    assert version.id.startswith("skillver_")
    assert await content(store, version) == zipped
    assert [len(part) async for part in store.parts(version)] == [PART_BYTES, PART_BYTES, 1]
    assert not await keys(counting, "su/")


async def test_skill_is_only_its_owners(store: SkillStore) -> None:
    skill = await create(store)
    new = await new_version(store)
    for owner in (BOB, Owner(ALICE.principal, {}, "another tenant")):
        for call in (
            partial(store.load, owner, skill.id),
            partial(store.set_default, owner, skill.id, 1),
            partial(store.delete, owner, skill.id),
            partial(store.delete_version, owner, skill.id, 1),
            partial(store.add_version, owner, skill.id, new, QUOTA),
        ):
            with pytest.raises(ApiError, match="not found") as error:
                await call()
            assert refused(error) == (404, "skill_id", None)
        assert await store.load_many(owner, [skill.id]) == {}
        assert await store.page(owner, limit=10) == ([], False)
    assert await store.load_many(ALICE, [skill.id, "skill_none"]) == {skill.id: skill}


async def test_skills_are_listed_by_creation(store: SkillStore) -> None:
    skills = [await create(store, name=f"s{second}", second=CREATED + second) for second in range(3)]
    newest_first = skills[::-1]
    assert await store.page(ALICE, limit=3) == (newest_first, False)
    assert await store.page(ALICE, limit=2) == (newest_first[:2], True)
    assert await store.page(ALICE, limit=2, after=newest_first[1].id) == (newest_first[2:], False)
    assert await store.page(ALICE, limit=1, order="asc") == (skills[:1], True)
    assert await store.page(ALICE, limit=9, order="asc", after=skills[0].id) == (skills[1:], False)
    for unknown in ("skill_none", "", "other/", newest_first[0].id[:-1]):
        with pytest.raises(ApiError) as error:
            await store.page(ALICE, limit=1, after=unknown)
        assert refused(error) == (400, "after", "invalid_value")


async def test_versions_are_numbered_and_listed(store: SkillStore) -> None:
    skill = await create(store)
    first = await store.version(skill, 1)
    second = await add(store, skill, b"two")
    third = await add(store, skill, b"three", default=True)
    assert [second.number, third.number] == [2, 3]
    skill = await store.load(ALICE, skill.id)
    assert (skill.default, skill.latest, skill.versions, skill.name) == (3, 3, 3, "three")
    assert await store.version_page(skill, limit=3) == ([third, second, first], False)
    assert await store.version_page(skill, limit=1, after=third.id) == ([second], True)
    assert await store.version_page(skill, limit=5, order="asc", after=first.id) == ([second, third], False)
    for unknown in ("skillver_", "skillver_000001", second.id[:-1], "none"):
        with pytest.raises(ApiError) as error:
            await store.version_page(skill, limit=1, after=unknown)
        assert refused(error) == (400, "after", "invalid_value")
    skill = await store.set_default(ALICE, skill.id, 2)
    assert (skill.default, skill.latest, skill.name, skill.description) == (2, 3, "two", "The skill two.")
    with pytest.raises(ApiError, match="has no version '4'") as error:
        await store.set_default(ALICE, skill.id, 4)
    assert refused(error) == (404, "version", None)


async def test_number_of_deleted_version_is_not_used_again(store: SkillStore) -> None:
    skill = await create(store)
    for number in (2, 3):
        assert (await add(store, skill)).number == number
    assert (await store.delete_version(ALICE, skill.id, 3)).number == 3
    assert (await store.load(ALICE, skill.id)).latest == 2
    assert (await add(store, skill)).number == 4
    with pytest.raises(ApiError) as error:
        await store.delete_version(ALICE, skill.id, 3)
    assert refused(error) == (404, "version", None)


async def test_default_version_is_deleted_only_with_its_skill(store: SkillStore, counting: CountingProxy) -> None:
    skill = await create(store)
    await add(store, skill, b"two")
    with pytest.raises(ApiError, match="set another one first") as error:
        await store.delete_version(ALICE, skill.id, 1)
    assert refused(error) == (400, "version", "invalid_value")
    await store.set_default(ALICE, skill.id, 2)
    await store.delete_version(ALICE, skill.id, 1)
    await store.delete_version(ALICE, skill.id, 2)
    with pytest.raises(ApiError, match="not found"):
        await store.load(ALICE, skill.id)
    assert await left(counting) == []


async def test_deleted_skill_leaves_no_rows(
    store: SkillStore, archive: Archive, counting: CountingProxy, clock: Clock
) -> None:
    skill = await create(store, bytes(PART_BYTES + 1))
    version = await store.version(skill, 1)
    await add(store, skill)
    await store.delete(ALICE, skill.id)
    assert await left(counting) == []
    with pytest.raises(ApiError, match="has no version '1'"):
        await content(store, version)
    clock.now += 25 * HOUR
    await archive.sweep()
    assert await keys(counting) == []


async def test_parts_of_archive_are_deleted_in_small_commits(
    store: SkillStore, counting: CountingProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may take as long to free them as to write them."""
    monkeypatch.setattr(skills, "PART_BYTES", 100)
    skill = await create(store, bytes(2_000))
    before = len(counting.written)
    await store.delete(ALICE, skill.id)
    deleted = [[key for key, op in commit if op is Delete] for commit in counting.written[before:]]
    parts = [sum(key.startswith("sp/") for key in each) for each in deleted]
    assert (sum(parts), max(parts)) == (20, 8)


async def test_owner_has_quota(store: SkillStore) -> None:
    skill = await create(store, bytes(2 * PART_BYTES))
    await add(store, skill, bytes(PART_BYTES))
    with pytest.raises(ApiError, match="would take") as error:
        await add(store, skill, bytes(PART_BYTES + 1))
    assert refused(error) == (400, "files", "skill_quota_exceeded")
    await add(store, skill)
    with pytest.raises(ApiError, match="has 3 versions; 3 are allowed"):
        await add(store, skill)
    for _ in range(2):
        await create(store)
    new = await new_version(store)
    with pytest.raises(ApiError, match="have 3 skills; 3 are allowed"):
        await store.create(store.new_id(ALICE, 0), ALICE, new, QUOTA)
    await create(store, bytes(4 * PART_BYTES), owner=BOB)
    await store.delete(ALICE, skill.id)
    await create(store, bytes(3 * PART_BYTES))


async def test_archive_that_is_being_uploaded_or_deleted_counts(
    store: SkillStore, archive: Archive, counting: CountingProxy
) -> None:
    new = await new_version(store, bytes(3 * PART_BYTES))
    with pytest.raises(ApiError, match="would take"):
        await new_version(store, bytes(2 * PART_BYTES))
    await store.discard(new.archive)
    await store.discard(new.archive)
    skill = await create(store, bytes(3 * PART_BYTES))
    counting.interrupt = counting.commits + 1
    with pytest.raises(InterruptedError):
        await store.delete(ALICE, skill.id)
    counting.interrupt = 1_000
    with pytest.raises(ApiError, match="would take"):
        await new_version(store, bytes(2 * PART_BYTES))
    await archive.sweep()
    await create(store, bytes(4 * PART_BYTES))


async def test_concurrent_creations_keep_quota(store: SkillStore, counting: CountingProxy) -> None:
    counting.jitter = random.Random(2)
    results = await asyncio.gather(*(create(store) for _ in range(6)), return_exceptions=True)
    counting.jitter = None
    assert len([each for each in results if isinstance(each, StoredSkill)]) == 3
    assert {each.code for each in results if isinstance(each, ApiError)} == {"skill_quota_exceeded"}


async def test_concurrent_versions_get_different_numbers(store: SkillStore, counting: CountingProxy) -> None:
    skill = await create(store)
    counting.jitter = random.Random(3)
    added = await asyncio.gather(*(add(store, skill, b"more") for _ in range(2)))
    counting.jitter = None
    assert sorted(each.number for each in added) == [2, 3]
    skill = await store.load(ALICE, skill.id)
    assert (skill.latest, skill.versions) == (3, 3)


async def test_version_that_becomes_default_is_not_deleted(store: SkillStore, counting: CountingProxy) -> None:
    skill = await create(store)
    await add(store, skill, b"two")
    counting.meanwhile[counting.commits + 1] = partial(store.set_default, ALICE, skill.id, 2)
    with pytest.raises(ApiError, match="set another one first"):
        await store.delete_version(ALICE, skill.id, 2)


async def test_version_is_not_added_to_deleted_skill(store: SkillStore, counting: CountingProxy) -> None:
    skill = await create(store)
    new = await new_version(store)
    counting.meanwhile[counting.commits + 1] = partial(store.delete, ALICE, skill.id)
    with pytest.raises(ApiError, match="not found"):
        await store.add_version(ALICE, skill.id, new, QUOTA)


class LosesAnswers(CountingProxy):
    """Records that apply a commit, and do not answer it."""

    lost = False

    async def commit(self, *args: object, **kwargs: object) -> None:
        await super().commit(*args, **kwargs)  # type: ignore[arg-type]
        if self.lost:
            self.lost = False
            raise Unanswered("lost", settled(applied=True))


async def test_repeated_change_after_lost_answer_is_made_once(records: Records) -> None:
    losing = LosesAnswers(records)
    store = SkillStore(losing)
    skill_id, new = store.new_id(ALICE, 0), await new_version(store)
    losing.lost = True
    with pytest.raises(Unanswered):
        await store.create(skill_id, ALICE, new, QUOTA)
    skill = await store.create(skill_id, ALICE, new, QUOTA)
    more = await new_version(store)
    losing.lost = True
    with pytest.raises(Unanswered):
        await store.add_version(ALICE, skill_id, more, QUOTA, default=True)
    version = await store.add_version(ALICE, skill_id, more, QUOTA, default=True)
    assert version.number == 2
    assert (await store.page(ALICE, limit=9))[0] == [await store.load(ALICE, skill_id)]
    assert [each.number async for each in store.every_version(skill)] == [1, 2]


@pytest.mark.parametrize("commits", [1, 2, 3])
async def test_interrupted_upload_is_deleted_after_an_hour(
    store: SkillStore, archive: Archive, counting: CountingProxy, clock: Clock, commits: int
) -> None:
    counting.interrupt = commits
    with pytest.raises(InterruptedError):
        await create(store, bytes(2 * PART_BYTES))
    counting.interrupt = 1_000
    clock.now += HOUR - 1
    await archive.sweep()
    assert len(await left(counting)) == commits
    clock.now += 2
    await archive.sweep()
    assert await left(counting) == []


@pytest.mark.parametrize("commits", [1, 2])
async def test_interrupted_deletion_is_finished(
    store: SkillStore, archive: Archive, counting: CountingProxy, commits: int
) -> None:
    skill = await create(store, bytes(2 * PART_BYTES))
    await add(store, skill)
    counting.interrupt = counting.commits + commits
    with pytest.raises(InterruptedError):
        await store.delete(ALICE, skill.id)
    counting.interrupt = 1_000
    with pytest.raises(ApiError, match="not found"):
        await store.load(ALICE, skill.id)
    assert await keys(counting, "su/")
    await archive.sweep()
    assert await left(counting) == []


async def test_upload_that_is_swept_becomes_no_version(
    store: SkillStore, archive: Archive, counting: CountingProxy, clock: Clock
) -> None:
    """The sweeper may have deleted some parts, and then died."""
    skill = await create(store)
    new = await new_version(store, bytes(2 * PART_BYTES))
    clock.now += HOUR + 1
    counting.interrupt = counting.commits + 1
    with pytest.raises(InterruptedError):
        await archive.sweep()
    counting.interrupt = 1_000
    for call in (
        partial(store.create, store.new_id(ALICE, 0), ALICE, new, QUOTA),
        partial(store.add_version, ALICE, skill.id, new, QUOTA),
    ):
        with pytest.raises(ApiError, match="upload it again") as error:
            await call()
        assert refused(error) == (503, None, None)


async def test_slow_upload_ends_when_it_is_swept(
    store: SkillStore, archive: Archive, counting: CountingProxy, clock: Clock
) -> None:
    async def sweep() -> None:
        clock.now += HOUR + 1
        await archive.sweep()

    counting.meanwhile[3] = sweep
    with pytest.raises(ApiError, match="upload it again"):
        await create(store, bytes(3 * PART_BYTES))
    assert await left(counting) == []
