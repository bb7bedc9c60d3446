"""The container used by the calls of one request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from llama_stack_responses.admission import Admission, Quota
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.owner import ANONYMOUS, Owner
from llama_stack_responses.documents.document import Document
from llama_stack_responses.features.code.containers.access import ContainerAccess, SkillNotAdded
from llama_stack_responses.features.code.containers.choice import ContainerChoice
from llama_stack_responses.features.code.containers.entries import Containers
from llama_stack_responses.features.code.containers.entries import files as files_of
from llama_stack_responses.features.code.network.network import Networks
from llama_stack_responses.features.code.settings import ContainerNetwork
from llama_stack_responses.features.code.skills.declared import SkillReader
from llama_stack_responses.features.code.skills.store import NewVersion, SkillQuota, SkillStore
from llama_stack_responses.inputs.files import Count, uploaded_with
from llama_stack_responses.requests.unavailable_tools import UnavailableTool
from llama_stack_responses.store.memory import MemoryRecords
from llama_stack_responses.tools.tool_function import ToolError
from tests.support.skills import MANIFEST, archive, skill
from tests.unit.features.code.test_container import BOUNDS, admission, jail, volumes


class FakeFiles:
    """Stored files by id."""

    def __init__(self, **files: bytes) -> None:
        self._files = files

    async def read(self, file_id: str, count: Count) -> Document:
        """Return the file."""
        count(len(self._files[file_id]))
        return Document(f"{file_id}.txt", "text/plain", self._files[file_id])


@asynccontextmanager
async def opened(folder: Path, *, in_memory: bool = False) -> AsyncIterator[Containers]:
    containers = Containers(
        jail(), BOUNDS, volumes(in_memory=in_memory), folder, idle_seconds=60, admission=admission(2, 2)
    )
    try:
        yield containers
    finally:
        await containers.close()


def room(per_user: int) -> Admission:
    """Return a count of what users hold."""
    return Admission(Quota("files, pages and running outputs", 2 * per_user, per_user))


def access_to(containers: Containers, contents: Admission, files: FakeFiles) -> ContainerAccess:
    """Return the access of the one user, whose files and skills count in `contents`."""
    return access_of(lambda: ANONYMOUS, containers, contents, files)


def access_of(
    current_user: Callable[[], Owner],
    containers: Containers,
    contents: Admission,
    files: FakeFiles,
    store: SkillStore | None = None,
    network: ContainerNetwork | None = None,
) -> ContainerAccess:
    """Return the access of a user, who may refer to skills in a store, and to what an operator allows to reach."""
    skills = SkillReader(contents, current_user, store or SkillStore(MemoryRecords()))
    networks = Networks(network or ContainerNetwork(), ["127.0.0.0/8", "::1/128"], [], jail().variables())
    uploaded = uploaded_with(files, contents, current_user)
    return ContainerAccess(containers, current_user, uploaded, skills.find, networks)


async def test_files_for_container_count_until_written(tmp_path: Path) -> None:
    contents = room(1_000)
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, contents, FakeFiles(small=bytes(900), large=bytes(1_001)))

        async def put(*file_ids: str) -> None:
            choice = ContainerChoice(access, {"file_ids": file_ids}, "container")
            await choice.choose(None)
            async with choice.opened() as entry:
                assert len(await files_of(entry)) == len(set(file_ids))

        await put("small", "small")
        assert contents.held == 0
        with contents.reserve(ANONYMOUS).add(200):
            with pytest.raises(
                ToolError, match="You have too many files, pages and running outputs open at the same time"
            ):
                await put("small")
            assert contents.held == 200
        with pytest.raises(ToolError, match="more than 1000 bytes, the maximum"):
            await put("small", "large")
        assert contents.held == 0
        # A container without all of its files is removed.
        assert len(access.owned()) == 1


async def test_concurrent_calls_share_one_new_container(tmp_path: Path) -> None:
    async with opened(tmp_path / "containers") as containers:
        choice = ContainerChoice(access_to(containers, room(0), FakeFiles()), {}, "container")
        await choice.choose(None)

        async def call() -> str:
            async with choice.opened() as entry:
                return entry.id

        assert await asyncio.gather(*(call() for _ in range(4))) == [choice.container_id] * 4


# Skills

MIB: Final = 2**20
SUMS: Final = {"name": "sums", "description": "Adds numbers.", "path": "/mnt/data/skills/sums/SKILL.md"}


async def shell(choice: ContainerChoice, command: str) -> str:
    """Return what a command prints in the chosen container."""
    async with choice.opened() as entry:
        ran = await entry.container.command(command, 10, 2_000)
        return ran.stdout + ran.stderr


@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
async def test_skill_is_in_new_container_and_listed(tmp_path: Path, in_memory: bool) -> None:
    contents = room(30 * MIB)
    async with opened(tmp_path / "containers", in_memory=in_memory) as containers:
        access = access_to(containers, contents, FakeFiles())
        choice = ContainerChoice(access, {"skills": [skill()]}, "container")
        await choice.choose(None)
        assert choice.skills == [SUMS]
        assert await shell(choice, "cat skills/sums/SKILL.md") == MANIFEST.decode()
        assert await shell(choice, "skills/sums/scripts/add.sh 20 22; touch skills/sums/own") == "42\n"
        async with choice.opened() as entry:
            assert {file.path: file.by_user for file in await files_of(entry)} == {
                "/mnt/data/skills/sums/SKILL.md": True,
                "/mnt/data/skills/sums/own": False,
                "/mnt/data/skills/sums/scripts/add.sh": True,
            }
        named = ContainerChoice(access, choice.container_id, "container")
        await named.choose(None)
        assert named.skills == [SUMS]
        assert contents.held == 0


async def test_used_container_gets_missing_and_changed_skills_only(tmp_path: Path) -> None:
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, room(MIB), FakeFiles())
        first = ContainerChoice(access, {"skills": [skill()]}, "container")
        await first.choose(None)
        await shell(first, "echo edited > skills/sums/SKILL.md; echo kept > skills/sums/own")
        files = {"SKILL.md": b"second"}
        second = ContainerChoice(access, {"skills": [skill(), skill("more", archive(files), "More.")]}, "container")
        await second.choose(first.container_id)
        assert [each["name"] for each in second.skills] == ["sums", "more"]
        assert await shell(second, "cat skills/*/SKILL.md") == "secondedited\n"
        third = ContainerChoice(access, {"skills": [skill("sums", archive(files), "New.")]}, "container")
        await third.choose(first.container_id)
        assert [(each["name"], each["description"]) for each in third.skills] == [("sums", "New."), ("more", "More.")]
        assert await shell(third, "cat skills/sums/SKILL.md skills/sums/own") == "secondkept\n"


def damaged() -> bytes:
    return archive().replace(b"PK\x01\x02", b"PK\x01\x03")


def with_large_files(count: int, size: int) -> bytes:
    return archive({"SKILL.md": b"", **{f"{number}": bytes(size) for number in range(count)}})


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (partial(bytes, b"text"), "not a zip archive"),
        (damaged, "are damaged"),
        (partial(with_large_files, 1, 26 * MIB), "more than 25 MiB"),
        (partial(with_large_files, 4, 20 * MIB), "64 MiB"),
    ],
    ids=["text", "damaged", "large file", "large files"],
)
async def test_skill_that_is_not_valid_is_refused_before_any_container(
    tmp_path: Path, make: Callable[[], bytes], why: str
) -> None:
    contents, zipped = room(64 * MIB), make()
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, contents, FakeFiles())
        choice = ContainerChoice(access, {"skills": [skill(), skill("bad", zipped)]}, "environment")
        for refusing in (choice.check, partial(choice.choose, None)):
            with pytest.raises(UnavailableTool, match=f"^The skill 'bad' cannot be .* {why}") as refused:
                await refusing()
            error = refused.value.at("tools[0]")
            assert (error.param, error.code) == ("tools[0].environment.skills[1].source.data", "invalid_value")
        with pytest.raises(SkillNotAdded, match=why):
            await access.create((), [skill("bad", zipped)])
        assert (contents.held, access.owned()) == (0, [])


async def test_data_that_is_not_base64_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "containers") as containers:
        choice = ContainerChoice(access_to(containers, room(MIB), FakeFiles()), {"skills": [not_base64()]}, "container")
        with pytest.raises(UnavailableTool, match="Its data is not base64"):
            await choice.check()


def not_base64() -> dict[str, Any]:
    return skill() | {"source": {"type": "base64", "media_type": "application/zip", "data": "~~~~"}}


async def test_skills_count_for_their_user_while_open(tmp_path: Path) -> None:
    contents = room(2_000)
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, contents, FakeFiles())
        await access.check_skills([skill()], None)
        small = skill("s", archive({"SKILL.md": bytes(1_000)}))
        for held, each in ((1_900, skill()), (1_000, small)):
            with contents.reserve(ANONYMOUS).add(held), pytest.raises(ApiError, match="too many files") as refused:
                await access.check_skills([each], None)
            assert refused.value.status == 429
        await access.check_skills([small], None)
        for zipped in (bytes(2_100), archive({"SKILL.md": bytes(2_100)})):
            with pytest.raises(SkillNotAdded, match="more than 2000 bytes"):
                await access.check_skills([skill("s", zipped)], None)
        assert contents.held == 0


async def test_number_of_skills_of_a_container_is_bounded(tmp_path: Path) -> None:
    small = archive({"SKILL.md": b""})
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, room(MIB), FakeFiles())
        entry = await access.create((), [skill(f"s{number}", small) for number in range(30)])
        await access.add_skills(entry, [skill("s0", small), skill("a", small)])
        await access.add_skills(entry, [skill("s0", archive({"SKILL.md": b"new"})), skill("b", small)])
        for use in (partial(access.add_skills, entry), partial(access.check_skills, entry=entry)):
            with pytest.raises(SkillNotAdded, match="more than 32 skills"):
                await use([skill("c", small)])
        await access.add_skills(entry, [skill("a", archive({"SKILL.md": b"", "more": b""}))])
        assert "/mnt/data/skills/a/more" in entry.given
        await access.add_skills(entry, [skill("a", small)])
        assert len(entry.given) == 32


async def test_size_of_all_skills_together_is_bounded(tmp_path: Path) -> None:
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, room(128 * MIB), FakeFiles())
        large = archive({"SKILL.md": b"", "a": bytes(20 * MIB), "b": bytes(20 * MIB)})
        await access.check_skills([skill("a", large)], None)
        with pytest.raises(SkillNotAdded, match=r"The skill 'b' .* 64 MiB") as refused:
            await access.check_skills([skill("a", large), skill("b", large)], None)
        assert refused.value.number == 1


async def stored_skill(store: SkillStore, zipped: bytes, unpacked_bytes: int = 100) -> dict[str, Any]:
    """Store a skill, and return a reference to it."""
    quota = SkillQuota(9, 9, 2**30)
    skill_id = store.new_id(ANONYMOUS, 0)
    uploaded = await store.upload(ANONYMOUS, skill_id, zipped, hashlib.sha256(zipped).hexdigest(), quota)
    new = NewVersion("sums", "Adds numbers.", 0, uploaded, unpacked_bytes)
    skill = await store.create(skill_id, ANONYMOUS, new, quota)
    return {"type": "skill_reference", "skill_id": skill.id}


async def test_referenced_skill_is_in_container_and_listed(tmp_path: Path) -> None:
    contents, store = room(MIB), SkillStore(MemoryRecords())
    async with opened(tmp_path / "containers") as containers:
        access = access_of(lambda: ANONYMOUS, containers, contents, FakeFiles(), store)
        reference = await stored_skill(store, archive())
        choice = ContainerChoice(access, {"skills": [reference]}, "container")
        await choice.check()
        await choice.choose(None)
        assert choice.skills == [SUMS]
        assert await shell(choice, "skills/sums/scripts/add.sh 20 22") == "42\n"
        # The container has the skill already: its archive is not read again.
        with contents.reserve(ANONYMOUS).add(MIB):
            later = ContainerChoice(access, {"skills": [reference]}, "container")
            await later.choose(choice.container_id)
            assert await shell(later, "cat skills/sums/SKILL.md") == MANIFEST.decode()
        assert contents.held == 0


async def test_skill_that_was_deleted_while_its_job_waited_is_refused(tmp_path: Path) -> None:
    store = SkillStore(MemoryRecords())
    async with opened(tmp_path / "containers") as containers:
        access = access_of(lambda: ANONYMOUS, containers, room(MIB), FakeFiles(), store)
        reference = await stored_skill(store, archive()) | {"version": "1"}
        choice = ContainerChoice(access, {"skills": [skill("other"), reference]}, "environment")
        await choice.check()
        await store.delete(ANONYMOUS, reference["skill_id"])
        with pytest.raises(
            UnavailableTool, match=f"^The skill '{reference['skill_id']}' cannot be .* not found"
        ) as error:
            await choice.choose(None)
        assert error.value.at("tools[0]").param == "tools[0].environment.skills[1].skill_id"
        assert access.owned() == []


async def test_size_of_referenced_skills_counts_without_their_archives(tmp_path: Path) -> None:
    store = SkillStore(MemoryRecords())
    async with opened(tmp_path / "containers") as containers:
        access = access_of(lambda: ANONYMOUS, containers, room(0), FakeFiles(), store)
        large = await stored_skill(store, archive(), 64 * MIB + 1)
        with pytest.raises(SkillNotAdded, match="64 MiB"):
            await access.check_skills([large], None)
        small = await stored_skill(store, archive(), 64 * MIB)
        assert [each.name for each in await access.check_skills([small], None)] == ["sums"]
        with pytest.raises(SkillNotAdded, match="has the name 'sums' already") as same:
            await access.check_skills([small, small], None)
        assert (same.value.number, same.value.field) == (1, "skill_id")


async def test_skills_of_one_user_are_not_shown_to_another(tmp_path: Path) -> None:
    user = Owner("ada", {})
    contents = room(MIB)

    def current_user() -> Owner:
        return user

    async with opened(tmp_path / "containers") as containers:
        access = access_of(current_user, containers, contents, FakeFiles())
        entry = await access.create((), [skill()])
        user = Owner("bob", {})
        theirs = ContainerChoice(access, entry.id, "container")
        await theirs.choose(None)
        assert theirs.skills == []
        with pytest.raises(ToolError, match="was not found"):
            await shell(theirs, "true")
        own = ContainerChoice(access, {"skills": [skill("other")]}, "container")
        await own.choose(entry.id)
        assert own.container_id != entry.id
        assert await shell(own, "ls skills") == "other\n"


async def test_skill_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    files = {"SKILL.md": b"", **{f"{number}": b"" for number in range(400)}}
    async with opened(tmp_path / "containers") as containers:
        access = access_to(containers, room(MIB), FakeFiles())
        choice = ContainerChoice(access, {"skills": [skill("s", archive(files))]}, "container")
        await choice.choose(None)
        with pytest.raises(
            ToolError, match=r"^The skill 's' cannot be put into the container\. The skill does not fit"
        ):
            await shell(choice, "true")
        assert access.owned() == []


@pytest.mark.relatives
@pytest.mark.parametrize("in_memory", [True, False], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    "prepared",
    ["ln -s {outside} skills", "mkdir skills; ln -s {outside} skills/sums", "touch skills", "mkdir -p {manifest}"],
)
async def test_skill_is_not_written_where_code_put_something_else(
    tmp_path: Path, in_memory: bool, prepared: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o777)
    async with opened(tmp_path / "containers", in_memory=in_memory) as containers:
        access = access_to(containers, room(MIB), FakeFiles())
        choice = ContainerChoice(access, {}, "container")
        await choice.choose(None)
        await shell(choice, prepared.format(outside=outside, manifest="skills/sums/SKILL.md"))
        later = ContainerChoice(access, {"skills": [skill()]}, "container")
        await later.choose(choice.container_id)
        with pytest.raises(ToolError, match="Code has closed or replaced the folder '/mnt/data/skills/sums'"):
            await shell(later, "true")
        assert list(outside.iterdir()) == []


def allowing(*domains: str, secret: str | None = None) -> dict[str, Any]:
    """Return settings of a container that may reach these domains, with a secret of the first one."""
    secrets = {"domain_secrets": [{"domain": domains[0], "name": "API_KEY", "value": secret}]} if secret else {}
    return {"network_policy": {"type": "allowlist", "allowed_domains": list(domains), **secrets}}


async def test_last_container_is_continued_only_with_the_same_network(tmp_path: Path) -> None:
    async with opened(tmp_path / "containers") as containers:
        network = ContainerNetwork(allowed_domains=["*"])
        access = access_of(lambda: ANONYMOUS, containers, room(1_000), FakeFiles(), network=network)
        first = ContainerChoice(access, allowing("a.example", "b.example", secret="1"), "container")
        await first.choose(None)
        async with first.opened() as entry:
            assert entry.policy == first.policy
        same = ContainerChoice(access, allowing("b.example", "A.example.") | {"file_ids": []}, "container")
        with_secret = allowing("a.example", "b.example", secret="1")
        others = [{}, allowing("a.example"), allowing("a.example", "b.example", secret="2")]
        continued = ContainerChoice(access, with_secret, "container")
        await continued.choose(entry.id)
        assert continued.container_id == entry.id
        for other in (*others, {"network_policy": {"type": "disabled"}}):
            choice = ContainerChoice(access, other, "container")
            await choice.choose(entry.id)
            assert choice.container_id != entry.id
        await same.choose(entry.id)
        assert same.container_id != entry.id  # it has no secrets
        named = ContainerChoice(access, entry.id, "container")
        await named.choose(None)
        assert named.policy == entry.policy


@pytest.mark.parametrize(
    ("container", "field", "code"),
    [
        (allowing("evil.example"), "network_policy.allowed_domains[0]", "invalid_value"),
        (allowing("a.example", "1.2.3.4"), "network_policy.allowed_domains[1]", "invalid_value"),
        (allowing("a.example", "*.a.example"), "network_policy.allowed_domains[1]", "invalid_value"),
    ],
)
async def test_policy_that_the_operator_does_not_allow_is_refused(
    tmp_path: Path, container: dict[str, Any], field: str, code: str
) -> None:
    async with opened(tmp_path / "containers") as containers:
        network = ContainerNetwork(allowed_domains=["a.example"])
        access = access_of(lambda: ANONYMOUS, containers, room(1_000), FakeFiles(), network=network)
        with pytest.raises(UnavailableTool) as refused:
            ContainerChoice(access, container, "environment")
        assert (refused.value.at("tools[0]").param, refused.value.code) == (f"tools[0].environment.{field}", code)
        with pytest.raises(UnavailableTool, match=r"code_interpreter\.network\.allowed_domains") as off:
            ContainerChoice(access_to(containers, room(1_000), FakeFiles()), allowing("a.example"), "environment")
        assert (off.value.at("tools[0]").param, off.value.code) == (
            "tools[0].environment.network_policy",
            "unsupported_value",
        )
