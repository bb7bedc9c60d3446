"""References to stored skills: their versions are fixed in requests, and they are found when tools run."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.features.code.skills.archive import InvalidSkill
from llama_stack_responses.features.code.skills.declared import SkillReader, with_versions
from llama_stack_responses.features.code.skills.store import NewVersion, SkillQuota, SkillStore
from llama_stack_responses.requests.request import CreateRequest, parse_create
from llama_stack_responses.store.memory import MemoryRecords
from tests.support.skills import archive, skill

Json = dict[str, Any]

QUOTA: Final = SkillQuota(9, 9, 2**20)
FIRST: Final = "skill_1"


@pytest.fixture
def store() -> SkillStore:
    return SkillStore(MemoryRecords())


def reader(store: SkillStore, per_user: int = 2**20) -> SkillReader:
    """Return a reader whose user may hold this many bytes."""
    contents = Admission(Quota("files, pages and running outputs", 2 * per_user, per_user))
    return SkillReader(contents, lambda: ANONYMOUS, store)


async def new_version(store: SkillStore, zipped: bytes, name: str = "sums") -> NewVersion:
    stored = await store.upload(ANONYMOUS, FIRST, zipped, hashlib.sha256(zipped).hexdigest(), QUOTA)
    return NewVersion(name, "Adds numbers.", 0, stored, 100)


@pytest.fixture
async def stored(store: SkillStore) -> SkillStore:
    """A store with a skill of three versions, of which the second is the default one."""
    await store.create(FIRST, ANONYMOUS, await new_version(store, archive()), QUOTA)
    for number in (2, 3):
        new = await new_version(store, archive({"SKILL.md": bytes(number)}))
        await store.add_version(ANONYMOUS, FIRST, new, QUOTA, default=number == 2)
    return store


def refers(skill_id: str = FIRST, **version: Any) -> Json:
    return {"type": "skill_reference", "skill_id": skill_id, **version}


def shell(*skills: Json) -> Json:
    return {"type": "shell", "environment": {"type": "container_auto", "skills": list(skills)}}


def python(*skills: Json) -> Json:
    return {"type": "code_interpreter", "container": {"type": "auto", "skills": list(skills)}}


LOCAL: Final[Json] = {
    "type": "shell",
    "environment": {"type": "local", "skills": [{"name": "s", "description": "d", "path": "/s"}]},
}
OTHERS: Final[list[Json]] = [
    LOCAL,
    {"type": "code_interpreter", "container": "cntr_1"},
    {"type": "shell"},
    {"type": "web_search"},
]


async def fixed(store: SkillStore, *tools: Json, carried: list[Json] | None = None) -> CreateRequest:
    """Return a request with these tools, and others in its items, with the versions of its skills."""
    items: list[Json] = [{"role": "user", "content": "Hi"}]
    if carried is not None:
        items.append({"type": "additional_tools", "role": "developer", "tools": carried})
    request = parse_create({"model": "m", "input": items, "tools": list(tools)})
    return await with_versions(reader(store), request, LargeWork())


async def test_references_get_numbers(stored: SkillStore) -> None:
    every = [refers(), refers(version="latest"), refers(version="1"), skill()]
    numbers = [refers(version="2"), refers(version="3"), refers(version="1"), skill()]
    request = await fixed(stored, *OTHERS, shell(*every), python(*every), carried=[shell(*every), LOCAL])
    assert request.tools == [
        *parse_create({"model": "m", "input": "x", "tools": OTHERS}).tools,
        shell(*numbers),
        python(*numbers),
    ]
    assert request.input_items[1]["tools"] == [shell(*numbers), LOCAL]


async def test_request_without_references_stays_the_same(store: SkillStore) -> None:
    request = parse_create({"model": "m", "input": "Hi", "tools": [shell(skill()), *OTHERS]})
    assert await with_versions(reader(store), request, LargeWork()) is request


@pytest.mark.parametrize(
    ("wrong", "field", "message"),
    [
        (refers("skill_2"), "skill_id", "Skill with id 'skill_2' not found."),
        (refers(version="4"), "version", "Skill 'skill_1' has no version '4'."),
    ],
)
async def test_missing_skill_is_404_with_its_place(stored: SkillStore, wrong: Json, field: str, message: str) -> None:
    for request, place in (
        (fixed(stored, LOCAL, shell(refers(), wrong, wrong)), "tools[1].environment.skills[1]"),
        (fixed(stored, python(wrong)), "tools[0].container.skills[0]"),
        (fixed(stored, carried=[LOCAL, shell(wrong)]), "input[1].tools[1].environment.skills[0]"),
    ):
        with pytest.raises(ApiError) as missing:
            await request
        error = missing.value
        assert (error.status, error.param, error.message) == (404, f"{place}.{field}", message)


async def test_found_skill_has_its_files(stored: SkillStore) -> None:
    found = await reader(stored).find(refers(version="1"))
    assert (found.skill.name, found.skill.description, found.unpacked_bytes) == ("sums", "Adds numbers.", 100)
    async with found.opened() as opened:
        assert [file.path for file in opened.files] == ["SKILL.md", "scripts/add.sh"]
        opened.check()
    assert (await reader(stored).find(refers(version="2"))).skill != found.skill
    await stored.delete(ANONYMOUS, FIRST)
    with pytest.raises(ApiError, match="has no version '1'"):
        async with found.opened():
            pass
    with pytest.raises(ApiError) as missing:
        await reader(stored).find(refers(version="1"))
    assert (missing.value.status, missing.value.param) == (404, "skill_id")


async def test_open_archive_counts_for_its_user(stored: SkillStore) -> None:
    found = await reader(stored, per_user=300).find(refers(version="1"))
    with pytest.raises(InvalidSkill, match="more than 300 bytes"):
        async with found.opened():
            pass
