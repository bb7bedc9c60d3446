"""The skills that requests declare: those that a request contains, and stored ones that it refers to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ....admission import Admission
from ....concurrency.large_base64 import decoded, decoded_bytes
from ....concurrency.large_work import LargeWork
from ....concurrency.offloading import in_thread
from ....core.owner import Owner
from ....core.shapes import Location
from ....core.types import Json
from ....requests.item_tools import CARRIERS
from ....requests.request import CreateRequest
from .archive import InvalidSkill, SkillArchive
from .skill import FoundSkill, Skill
from .store import SkillStore, SkillVersion, StoredSkill, no_skill, no_version

REFERENCE: Final = "skill_reference"

_SETTINGS: Final = {"shell": "environment", "code_interpreter": "container"}
"""The fields of tools that may have `skills`."""


class SkillReader:
    """Finds the skills that requests of the current user declare.

    An archive that is open, and its uncompressed files, count as held by the user.

    Args:
        contents: counts what users hold.
        current_user: returns the current user.
        store: stores the skills that references name.
    """

    def __init__(self, contents: Admission, current_user: Callable[[], Owner], store: SkillStore) -> None:
        self._contents = contents
        self._current_user = current_user
        self._store = store

    async def find(self, declared: Json) -> FoundSkill:
        """Return the skill of an entry of `skills`.

        Raises:
            ApiError: 404, the entry refers to a skill or a version that does not exist.
        """
        if declared["type"] == REFERENCE:
            [version] = (await self.versions([(declared, Location(""))])).values()
            skill = Skill(version.name, version.description, bytes.fromhex(version.archive.digest))
            read: Callable[[], Awaitable[bytes | bytearray]] = partial(self._joined, version)
            opened = partial(self.opened, version.archive.bytes, read)
            return FoundSkill(skill, opened, version.unpacked_bytes)
        data = declared["source"]["data"]
        opened = partial(self.opened, decoded_bytes(data), partial(_decoded, data))
        return FoundSkill(await in_thread(Skill.of, declared), opened)

    @asynccontextmanager
    async def opened(self, size: int, read: Callable[[], Awaitable[bytes | bytearray]]) -> AsyncIterator[SkillArchive]:
        """Yield the archive that `read` returns, which has at most `size` bytes.

        Raises:
            InvalidSkill: it is not an archive, or it is larger than a user may hold.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        contents = self._contents
        with contents.reserve(self._current_user()) as reservation:

            def count(more: int) -> None:
                if reservation.units + more > contents.per_user:
                    raise InvalidSkill(f"Its archive and files have more than {contents.per_user} bytes, the maximum.")
                reservation.add(more)

            count(size)
            archive = await in_thread(SkillArchive, await read())
            count(archive.bytes)
            yield archive

    async def versions(self, references: Iterable[tuple[Json, Location]]) -> Mapping[_Named, SkillVersion]:
        """Return the versions that these references name now, each with its location in the request.

        Raises:
            ApiError: 404, the user has no such skill, or it has no such version.
        """
        owner = self._current_user()
        places: dict[_Named, Location] = {}
        for declared, at in references:
            places.setdefault(_Named.of(declared), at)
        skills = await self._store.load_many(owner, {each.skill_id for each in places})
        for named, at in places.items():
            if named.skill_id not in skills:
                raise no_skill(named.skill_id, at.key("skill_id").path)
        numbers = {named: (named.skill_id, named.number_in(skills[named.skill_id])) for named in places}
        versions = await self._store.versions(set(numbers.values()))
        for named, at in places.items():
            if numbers[named] not in versions:
                raise no_version(*numbers[named], at.key("version" if named.version else "skill_id").path)
        return {named: versions[number] for named, number in numbers.items()}

    async def _joined(self, version: SkillVersion) -> bytearray:
        """Return the archive of a version, which grows in place: joining large parts would block the event loop."""
        content = bytearray()
        async for part in self._store.parts(version):
            content += part
        return content


@dataclass(frozen=True, slots=True)
class _Named:
    """What a reference names: a skill, and a version, `latest` or the default version."""

    skill_id: str
    version: str | None

    @classmethod
    def of(cls, declared: Json) -> _Named:
        return cls(declared["skill_id"], declared.get("version"))

    def number_in(self, skill: StoredSkill) -> int:
        """Return the number of the version."""
        if self.version is None:
            return skill.default
        return skill.latest if self.version == "latest" else int(self.version)


async def with_versions(reader: SkillReader, request: CreateRequest, large_work: LargeWork) -> CreateRequest:
    """Return the request with the number of the version in each of its references to skills.

    The response shows the numbers, and a worker that runs it later uses these versions even if the skill has others
    then.

    Raises:
        ApiError: 404, the user has no such skill, or it has no such version.
    """
    references = await large_work.run(partial(_references, request), request.tools, request.input_items)
    if not references:
        return request
    versions = await reader.versions(references)

    def with_number(skill: Json, _: Location) -> Json:
        if skill.get("type") != REFERENCE:
            return skill
        return {**skill, "version": str(versions[_Named.of(skill)].number)}

    mapped = partial(_mapped, request, with_number)
    tools, items = await large_work.run(mapped, request.tools, request.input_items)
    return replace(request, tools=tools, input_items=items)


def _references(request: CreateRequest) -> list[tuple[Json, Location]]:
    """Return the references to skills in the tools of a request, also of its items, each with its location."""
    references: list[tuple[Json, Location]] = []

    def note(skill: Json, at: Location) -> Json:
        if skill.get("type") == REFERENCE:
            references.append((skill, at))
        return skill

    _mapped(request, note)
    return references


type _Mapping = Callable[[Json, Location], Json]
"""Returns the replacement of a skill, given the skill and its location."""


def _mapped(request: CreateRequest, replaced: _Mapping) -> tuple[list[Json], list[Json]]:
    """Return the tools and the items of a request, with replacements of the skills of their tools."""
    at = Location("input")
    items = [
        {**item, "tools": _tools(item["tools"], at.index(number).key("tools"), replaced)}
        if item["type"] in CARRIERS
        else item
        for number, item in enumerate(request.input_items)
    ]
    return _tools(request.tools, Location("tools"), replaced), items


def _tools(tools: Sequence[Json], at: Location, replaced: _Mapping) -> list[Json]:
    return [_tool(tool, at.index(number), replaced) for number, tool in enumerate(tools)]


def _tool(tool: Json, at: Location, replaced: _Mapping) -> Json:
    field = _SETTINGS.get(tool["type"], "")
    settings = tool.get(field)
    if not isinstance(settings, dict) or "skills" not in settings:
        return tool
    places = at.key(field).key("skills")
    skills = [replaced(skill, places.index(number)) for number, skill in enumerate(settings["skills"])]
    return {**tool, field: {**settings, "skills": skills}}


async def _decoded(data: str) -> bytes:
    if not data:
        raise InvalidSkill("Its data is empty, as in the tools of a response. Send its archive.")
    try:
        return await decoded(data)
    except ValueError:
        raise InvalidSkill("Its data is not base64.") from None
