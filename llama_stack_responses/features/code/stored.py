"""The skills of all users, for the commands that count, export and delete what is stored."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from ...core.owner import Owner
from ...core.types import Json
from ...store.decoder import Decoder
from ...store.feature_store import Exported
from ...store.records import Records, pages_of
from .containers.deleted_owners import end_containers_of
from .skills.store import SKILL_PREFIX, SkillStore, StoredSkill

_PAGE_ROWS: Final = 500


class SkillsOfOwners:
    """The skills in a store, as a `FeatureStore`.

    Args:
        records: the store.
        decoder: decodes skills.
        page: rows that one read takes.
    """

    name = "skills"
    prefix = SKILL_PREFIX

    def __init__(self, records: Records, decoder: Decoder, page: int = _PAGE_ROWS) -> None:
        self._store = store = SkillStore(records, decoder)
        self._records, self._decoder, self._page = records, decoder, page
        self.delete = store.delete
        self.forget = partial(end_containers_of, records)

    async def ids_of(self, owner: Owner) -> AsyncIterator[str]:
        """Yield the ids of an owner's skills, oldest first."""
        async for skill in self._skills_of(owner):
            yield skill.id

    async def export(self, owner: Owner) -> AsyncIterator[Exported]:
        """Yield an owner's skills, oldest first, with their versions."""
        async for skill in self._skills_of(owner):
            fields = {"id": skill.id, "created_at": skill.created_at, "default_version": str(skill.default)}
            yield Exported("skill", skill.owner, fields, "versions", self._versions_of(skill))

    async def sizes(self) -> AsyncIterator[tuple[Owner, int]]:
        """Yield the owner of each skill, and the bytes of its row and of the archives of its versions."""
        async for rows in pages_of(self._records, SKILL_PREFIX, self._page):
            for (key, record), value in zip(
                rows, await self._decoder.decode([each.value for _, each in rows]), strict=True
            ):
                skill = StoredSkill.from_stored(value)
                versions = [each.archive.bytes async for each in self._store.every_version(skill)]
                yield skill.owner, len(key) + len(record.value) + sum(versions)

    async def _skills_of(self, owner: Owner) -> AsyncIterator[StoredSkill]:
        after, more = None, True
        while more:
            page, more = await self._store.page(owner, limit=self._page, after=after, order="asc")
            for skill in page:
                yield skill
            after = page[-1].id if page else None

    async def _versions_of(self, skill: StoredSkill) -> AsyncIterator[Json]:
        """Yield a skill's versions, oldest first, each with its `archive` in base64."""
        async for version in self._store.every_version(skill):
            content = b"".join([part async for part in self._store.parts(version)])
            fields = {"id": version.id, "version": str(version.number), "created_at": version.created_at}
            named = {"name": version.name, "description": version.description}
            yield {**fields, **named, "archive": b64encode(content).decode()}


def open_store(records: Records, decoder: Decoder) -> SkillsOfOwners:
    """Return the skills in a store."""
    return SkillsOfOwners(records, decoder)
