"""The Skills API, without HTTP."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import PurePosixPath
from tempfile import TemporaryFile
from typing import IO, Final, NamedTuple

from ....concurrency.large_work import LargeWork
from ....concurrency.offloading import in_thread
from ....core.access import Access
from ....core.errors import ApiError, bad_request
from ....core.types import Json
from ....intervals import DEFAULT, Intervals
from ....items.listed_items import Order, Page
from ....process_pool.pool import WorkerPool
from ....store.commit_outcome import until_known
from .archive import MANIFEST, InvalidSkill
from .bundle import packed, read_manifest
from .declared import SkillReader
from .shapes import check_skill_id, default_version, version_number
from .store import NewVersion, SkillQuota, SkillStore, SkillVersion, StoredSkill

_FILES: Final = "files"


class UploadedFile(NamedTuple):
    """A file that a client sent.

    Attributes:
        path: its path, as the client named it.
        content: its content.
    """

    path: str
    content: bytes


class Download(NamedTuple):
    """An archive that is sent to a client.

    Attributes:
        file: an open file with the archive, positioned at its beginning; the receiver closes it.
        bytes: its size.
        name: the name under which it is sent.
    """

    file: IO[bytes]
    bytes: int
    name: str


class Skills:
    """Skills and their versions, which are kept until they are deleted. A user has access to their own ones only.

    Every method that takes the id of a skill raises `ApiError`: 400 if it is not one, and 404 if the skill is unknown,
    deleted, or another user's, or does not have a named version.

    Args:
        store: stores the skills.
        reader: opens their archives.
        pool: reads their manifests.
        access: the identity of the caller.
        quota: how much a user may store.
        large_work: packs the files of folders.
        intervals: how often and how long to ask the store for the outcome of a commit.
        clock: returns the time of creation of a skill, in seconds since the epoch.
    """

    def __init__(
        self,
        store: SkillStore,
        reader: SkillReader,
        pool: WorkerPool,
        access: Access,
        quota: SkillQuota,
        large_work: LargeWork,
        intervals: Intervals = DEFAULT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._reader = reader
        self._pool = pool
        self._access = access
        self._quota = quota
        self._large_work = large_work
        self._intervals = intervals
        self._clock = clock

    async def create(self, files: Sequence[UploadedFile]) -> Json:
        """Create a skill with its first version.

        Args:
            files: a zip archive, or the files of a folder.

        Raises:
            ApiError: 400, the files are not those of a skill, or the user may store no more; 429 or 503, the user, or
                all, hold too much.
        """
        owner = self._access.current_user()
        skill_id = self._store.new_id(owner, int(self._clock() * 1000))
        new = await self._new(skill_id, files)
        skill = await self._kept(
            new,
            lambda: self._store.create(skill_id, owner, new, self._quota),
            f"The response store did not confirm whether it created skill '{skill_id}': list the skills.",
        )
        return _skill(skill)

    async def retrieve(self, skill_id: str) -> Json:
        """Return a skill."""
        return _skill(await self._load(skill_id))

    async def list(self, *, limit: int, after: str | None, order: Order) -> Page:
        """Return a page of the skills of the user, by creation."""
        skills, has_more = await self._store.page(self._access.current_user(), limit=limit, after=after, order=order)
        return Page([_skill(each) for each in skills], has_more)

    async def update(self, skill_id: str, body: Json) -> Json:
        """Make another version the default one, and return the skill."""
        check_skill_id(skill_id)
        number, owner = default_version(body), self._access.current_user()
        skill = await until_known(
            lambda _: self._store.set_default(owner, skill_id, number),
            f"The response store did not confirm whether it changed skill '{skill_id}': retrieve it.",
            self._intervals,
        )
        return _skill(skill)

    async def delete(self, skill_id: str) -> Json:
        """Delete a skill with all its versions."""
        check_skill_id(skill_id)
        await self._deleted(partial(self._store.delete, self._access.current_user(), skill_id), f"skill '{skill_id}'")
        return {"id": skill_id, "object": "skill.deleted", "deleted": True}

    async def content(self, skill_id: str, version: str | None = None) -> Download:
        """Return the archive of a version, of the default one if none is named."""
        found = await self._version(skill_id, version)
        file = await in_thread(TemporaryFile)
        try:
            async for part in self._store.parts(found):
                await in_thread(file.write, part)
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return Download(file, found.archive.bytes, f"{found.name}.zip")

    async def create_version(self, skill_id: str, files: Sequence[UploadedFile], *, default: bool) -> Json:
        """Create a version of a skill.

        Args:
            files: as for `create`.
            default: whether it becomes the default version.

        Raises:
            ApiError: also as from `create`.
        """
        skill = await self._load(skill_id)
        new = await self._new(skill_id, files)
        version = await self._kept(
            new,
            lambda: self._store.add_version(skill.owner, skill_id, new, self._quota, default=default),
            f"The response store did not confirm whether it added a version to skill '{skill_id}': list its versions.",
        )
        return _version(version)

    async def retrieve_version(self, skill_id: str, version: str) -> Json:
        """Return a version of a skill."""
        return _version(await self._version(skill_id, version))

    async def list_versions(self, skill_id: str, *, limit: int, after: str | None, order: Order) -> Page:
        """Return a page of the versions of a skill, by number."""
        skill = await self._load(skill_id)
        versions, has_more = await self._store.version_page(skill, limit=limit, after=after, order=order)
        return Page([_version(each) for each in versions], has_more)

    async def delete_version(self, skill_id: str, version: str) -> Json:
        """Delete a version; with its only version, the skill is deleted.

        Raises:
            ApiError: also 400, it is the default version, and not the only one.
        """
        found = await self._version(skill_id, version)
        owner = self._access.current_user()
        await self._deleted(
            partial(self._store.delete_version, owner, skill_id, found.number),
            f"version {found.number} of skill '{skill_id}'",
        )
        return {"id": found.id, "object": "skill.version.deleted", "deleted": True, "version": str(found.number)}

    async def _kept[Result](self, new: NewVersion, store: Callable[[], Awaitable[Result]], unknown: str) -> Result:
        """Store a version whose archive is stored; if it is refused, the archive is deleted."""
        try:
            return await until_known(lambda _: store(), unknown, self._intervals)
        except ApiError as error:
            if error.status < 500:
                await self._store.discard(new.archive)
            raise

    async def _deleted(self, delete: Callable[[], Awaitable[object]], what: str) -> None:
        """Delete something, whose absence then means that an earlier call has deleted it."""

        async def call(again: bool) -> None:
            try:
                await delete()
            except ApiError as error:
                if not (again and error.status == 404):
                    raise

        unknown = f"The response store did not confirm whether it deleted {what}: delete it again. A 404 means that it "
        await until_known(call, f"{unknown}was deleted.", self._intervals)

    async def _load(self, skill_id: str) -> StoredSkill:
        check_skill_id(skill_id)
        return await self._store.load(self._access.current_user(), skill_id)

    async def _version(self, skill_id: str, version: str | None) -> SkillVersion:
        number = None if version is None else version_number(version)
        skill = await self._load(skill_id)
        return await self._store.version(skill, skill.default if number is None else number)

    async def _new(self, skill_id: str, files: Sequence[UploadedFile]) -> NewVersion:
        """Check the files of a new version, and store their archive."""
        try:
            content = await self._archive_of(files)

            async def read() -> bytes:
                return content

            async with self._reader.opened(len(content), read) as archive:
                await in_thread(archive.check)
                owner = self._access.current_user()
                manifest = await read_manifest(archive, self._pool)
                digest = await in_thread(lambda: hashlib.sha256(content).hexdigest())
                stored = await self._store.upload(owner, skill_id, content, digest, self._quota)
                return NewVersion(*manifest, int(self._clock()), stored, archive.bytes)
        except InvalidSkill as error:
            raise bad_request(f"The files are not those of a skill. {error}", _FILES, "invalid_value") from error

    async def _archive_of(self, files: Sequence[UploadedFile]) -> bytes:
        """Return the zip archive that a client sent, or one of the files that it sent."""
        if len(files) == 1 and not _is_manifest(files[0]):
            return files[0].content
        return await self._large_work.run_in_thread(partial(packed, files))


def _is_manifest(file: UploadedFile) -> bool:
    """Return whether a file is a manifest; otherwise a single file is an archive."""
    return PurePosixPath(file.path).name.lower() == MANIFEST.lower()


def _skill(skill: StoredSkill) -> Json:
    """Return a skill in the form of `openai.types.Skill`."""
    return {
        "id": skill.id,
        "object": "skill",
        "created_at": skill.created_at,
        "name": skill.name,
        "description": skill.description,
        "default_version": str(skill.default),
        "latest_version": str(skill.latest),
    }


def _version(version: SkillVersion) -> Json:
    """Return a version in the form of `openai.types.skills.SkillVersion`."""
    return {
        "id": version.id,
        "object": "skill.version",
        "created_at": version.created_at,
        "name": version.name,
        "description": version.description,
        "skill_id": version.skill,
        "version": str(version.number),
    }
