"""The skills of all users, as the commands count, export and delete them."""

from __future__ import annotations

import hashlib
from base64 import b64decode

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features.code.skills.store import NewVersion, SkillQuota, SkillStore
from llama_stack_responses.features.code.stored import SkillsOfOwners, open_store
from llama_stack_responses.store.archive import Archive
from llama_stack_responses.store.decoder import Decoder
from llama_stack_responses.store.memory import MemoryRecords

ANNA, BERT = Owner("anna", {"teams": ["a"]}), Owner("bert")
QUOTA = SkillQuota(9, 9, 2**20)


async def add(store: SkillStore, owner: Owner, skill_id: str, *contents: bytes) -> None:
    """Store a skill with a version for each content."""
    for number, content in enumerate(contents):
        archive = await store.upload(owner, skill_id, content, hashlib.sha256(content).hexdigest(), QUOTA)
        new = NewVersion("sums", "Adds.", 1, archive, len(content))
        if number:
            await store.add_version(owner, skill_id, new, QUOTA)
        else:
            await store.create(skill_id, owner, new, QUOTA)


@pytest.fixture
async def records() -> MemoryRecords:
    """A store with two skills of one user, and one of another."""
    records = MemoryRecords()
    store = SkillStore(records)
    await add(store, ANNA, "skill_1", b"one", b"two")
    await add(store, ANNA, "skill_2", b"other")
    await add(store, BERT, "skill_3", b"his")
    return records


async def test_skills_of_one_owner_are_exported_with_their_versions(records: MemoryRecords) -> None:
    stored = SkillsOfOwners(records, Decoder(), page=1)
    found = [(each, [version async for version in each.each]) async for each in stored.export(Owner("anna"))]
    assert [(each.type, each.owner, each.fields["id"], each.members) for each, _ in found] == [
        ("skill", ANNA, "skill_1", "versions"),
        ("skill", ANNA, "skill_2", "versions"),
    ]
    assert [[b64decode(version["archive"]) for version in versions] for _, versions in found] == [
        [b"one", b"two"],
        [b"other"],
    ]


async def test_deleted_skills_leave_those_of_others(records: MemoryRecords) -> None:
    stored = open_store(records, Decoder())
    assert [each async for each in stored.ids_of(Owner("anna"))] == ["skill_1", "skill_2"]
    for skill_id in ("skill_1", "skill_2"):
        await stored.delete(Owner("anna"), skill_id)
    with pytest.raises(ApiError) as raised:
        await stored.delete(Owner("anna"), "skill_3")
    assert raised.value.status == 404
    assert [key for key, _ in await records.range(stored.prefix, "sl", limit=9)] == [
        (await SkillStore(records).load(BERT, "skill_3")).key
    ]


async def test_archive_has_what_features_store(records: MemoryRecords) -> None:
    assert "skills" in [store.name for store in Archive(records).of_features]
