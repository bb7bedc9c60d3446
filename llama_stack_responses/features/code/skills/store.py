"""Store skills and their versions until they are deleted.

A version never changes. Its zip archive has an id of its own, and is stored in parts before the version is: a large
archive in one commit would hold up the store for all users. A row says that the parts are to be deleted at a time. The
commit that stores the version deletes this row, and the commit that deletes the version writes it again. So an archive
whose upload was interrupted is deleted, as is one whose deletion was.

A row for each owner counts the skills, and the bytes of all archives whose parts are stored or are being stored. Each
change rewrites it, so that concurrent changes, and interrupted ones, cannot exceed the quota.

In a store with several partitions, a skill has the tag of its owner's home partition in its id, and all its rows, its
archives and the row of the owner are there. Skills that came from a store with one partition have no tag, and a row of
the owner of their own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import batched
from re import fullmatch
from secrets import token_hex
from typing import Any, Final

from ....core.errors import ApiError, bad_request, not_in_list
from ....core.ids import new_ordered_id, tag_of
from ....core.owner import Owner
from ....items.listed_items import Order
from ....logs import get_logger
from ....store import codec
from ....store.conflict_retry import ConflictRetry
from ....store.content_names import Hasher, home_of
from ....store.decoder import Decoder
from ....store.layout import with_tag
from ....store.placement import Placement
from ....store.records import (
    Condition,
    Delete,
    Op,
    Put,
    Record,
    Records,
    VersionIs,
    after_prefix,
    committed,
    pages_of,
    partitions_of,
)
from ....store.routing import tag_of_key

logger = get_logger(__name__)

PART_BYTES: Final = 2**20
"""Size of the parts of an archive in bytes."""

SKILL_PREFIX: Final = "sk/"
"""The prefix of the keys of skills."""

_UPLOAD_SECONDS: Final = 3_600.0
"""Time after which the parts of an archive without a version are deleted."""

_PARTS_PER_COMMIT: Final = 8
"""Number of parts that one commit deletes: a store may take as long to free them as to write them."""

_EMPTY_SECONDS: Final = 86_400.0
"""Time for which the count of an owner without skills is kept: a change that began before expects its version."""


@dataclass(frozen=True, slots=True)
class SkillQuota:
    """How much one owner may store.

    Attributes:
        skills: maximum number of skills.
        versions: maximum number of versions of one skill.
        bytes: maximum size of the archives of all versions together.
    """

    skills: int
    versions: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """An archive whose parts are stored.

    Attributes:
        id: names its parts.
        bytes: its size.
        digest: the SHA-256 of its content, in hex.
    """

    id: str
    bytes: int
    digest: str

    @property
    def key(self) -> str:
        """The key of the row that has its parts deleted."""
        return f"su/{self.id}"

    @property
    def tag(self) -> int:
        """The tag of its rows."""
        return tag_of_key(self.key)

    @property
    def parts(self) -> Sequence[str]:
        """The keys of its parts, in order."""
        return [f"sp/{self.id}/{number:04x}" for number in range(-(-self.bytes // PART_BYTES))]

    def unused(self, owner: Owner, due: float) -> Put:
        """Return the op that has the parts deleted at this time, in seconds since the epoch."""
        return Put(self.key, codec.encode({"due": due, "bytes": self.bytes, "of": Hasher(owner).owner}))


@dataclass(frozen=True, slots=True)
class SkillVersion:
    """A version of a skill.

    Attributes:
        skill: the id of the skill.
        number: 1 for the first version; numbers are not used again.
        id: the id of the version.
        name, description: those in the archive's manifest.
        created_at: Unix time in seconds.
        archive: the archive.
        unpacked_bytes: the size of its uncompressed files.
    """

    skill: str
    number: int
    id: str
    name: str
    description: str
    created_at: int
    archive: StoredArchive
    unpacked_bytes: int

    @property
    def key(self) -> str:
        """The key of the version's record."""
        return _version_key(self.skill, self.number)

    def encode(self) -> bytes:
        """Return the record's value."""
        return codec.encode(asdict(self))

    @staticmethod
    def from_stored(stored: Mapping[str, Any]) -> SkillVersion:
        """Return the version, given the decoded value of its record."""
        archive = StoredArchive(**codec.known(StoredArchive, stored["archive"]))
        return SkillVersion(**codec.known(SkillVersion, {**stored, "archive": archive}))


@dataclass(frozen=True, slots=True)
class StoredSkill:
    """A skill.

    Attributes:
        id: `skill_...`; ids are ordered by the time of their creation.
        owner: the owner of the skill.
        created_at: Unix time in seconds.
        name, description: those of the default version.
        default: the number of the default version.
        latest: the number of the newest version that exists.
        last: the number of the newest version that ever existed.
        versions: how many versions exist.
    """

    id: str
    owner: Owner
    created_at: int
    name: str
    description: str
    default: int
    latest: int
    last: int
    versions: int

    @property
    def key(self) -> str:
        """The key of the skill's record."""
        return _skill_key(self.owner, self.id)

    def encode(self) -> bytes:
        """Return the record's value."""
        fields = {name: value for name, value in asdict(self).items() if name != "owner"}
        return codec.encode({"owner": self.owner.encode(), **fields})

    @staticmethod
    def from_stored(stored: Mapping[str, Any]) -> StoredSkill:
        """Return the skill, given the decoded value of its record."""
        return StoredSkill(**codec.known(StoredSkill, {**stored, "owner": Owner(*stored["owner"])}))

    def with_default(self, version: SkillVersion) -> StoredSkill:
        """Return the skill with this default version."""
        return replace(self, default=version.number, name=version.name, description=version.description)


@dataclass(frozen=True, slots=True)
class NewVersion:
    """A version that is to be stored.

    Attributes:
        name, description: those in the archive's manifest.
        created_at: Unix time in seconds.
        archive: the archive, whose parts are stored.
        unpacked_bytes: the size of its uncompressed files.
    """

    name: str
    description: str
    created_at: int
    archive: StoredArchive
    unpacked_bytes: int

    def version_of(self, skill: StoredSkill) -> SkillVersion:
        """Return the last version of this skill."""
        return SkillVersion(
            skill.id,
            skill.last,
            _version_id(skill.last),
            self.name,
            self.description,
            self.created_at,
            self.archive,
            self.unpacked_bytes,
        )


@dataclass(frozen=True, slots=True)
class _Usage:
    """What an owner's skills of one tag take, and the condition that it is unchanged.

    Attributes:
        other_skills, other_bytes: what those without a tag take, or those with one.
    """

    key: str
    skills: int
    bytes: int
    unchanged: Condition
    other_skills: int = 0
    other_bytes: int = 0

    def check(self, quota: SkillQuota, *, skills: int = 0, size: int = 0) -> None:
        """Raise a 400 if the owner may not store this many skills and bytes more."""
        have, take = self.skills + self.other_skills, self.bytes + self.other_bytes + size
        if have + skills > quota.skills:
            raise _too_much(f"You have {have} skills; {quota.skills} are allowed. Delete one.")
        if take > quota.bytes:
            raise _too_much(f"Your skills would take {take} bytes; {quota.bytes} are allowed.")

    def changed(self, *, skills: int = 0, size: int = 0, now: float = 0) -> Put:
        """Return the op that adds this many skills and bytes, which may be negative; `now` as the store has it."""
        counts = {"skills": self.skills + skills, "bytes": self.bytes + size}
        return Put(self.key, codec.encode(counts), None if any(counts.values()) else now + _EMPTY_SECONDS)


class SkillStore:
    """Stores the skills of all owners.

    Every method raises `ApiError` 503 when the store is unavailable. Those that change something may be called again
    with the same arguments after an answer was lost: the change is made once.

    Args:
        records: the store.
        decoder: decodes the stored values.
    """

    def __init__(self, records: Records, decoder: Decoder | None = None) -> None:
        self._records = records
        self._decoder = decoder or Decoder()
        self._placement = Placement(partitions_of(records))

    def new_id(self, owner: Owner, milliseconds: int) -> str:
        """Return an id for a skill that is created at this moment, in milliseconds since the epoch."""
        return new_ordered_id("skill", milliseconds, self._placement.of_owner(owner))

    # Archives

    async def upload(
        self, owner: Owner, skill_id: str, content: bytes, digest: str, quota: SkillQuota
    ) -> StoredArchive:
        """Store the parts of an archive. They are deleted after an hour, unless a version has the archive by then.

        Args:
            skill_id: the skill whose version will have it.
            content: the archive.
            digest: the SHA-256 of its content, in hex.

        Raises:
            ApiError: 400, the owner may store no more; 503, this took too long.
        """
        due = await self._records.now() + _UPLOAD_SECONDS
        # Rows that say what is to be deleted are in the order of the times.
        archive = StoredArchive(with_tag(f"{int(due):08x}{token_hex(8)}", tag_of(skill_id)), len(content), digest)
        await self._begin(owner, archive, due, quota)
        for number, key in enumerate(archive.parts):
            start = number * PART_BYTES
            part = Put(key, content[start : start + PART_BYTES])
            if not await committed(self._records, [part], [VersionIs(archive.key, 1)]):
                raise _too_slow()
        return archive

    async def _begin(self, owner: Owner, archive: StoredArchive, due: float, quota: SkillQuota) -> None:
        """Count the bytes of an archive for its owner, and have its parts deleted at the time `due`."""
        retry = ConflictRetry()
        while True:
            await retry.wait()
            usage = await self._usage(owner, archive.tag)
            usage.check(quota, size=archive.bytes)
            ops = [archive.unused(owner, due), usage.changed(size=archive.bytes)]
            if await committed(self._records, ops, [usage.unchanged]):
                return

    async def discard(self, archive: StoredArchive) -> None:
        """Delete the parts of an archive that no version has."""
        await self._clear(archive)

    async def parts(self, version: SkillVersion) -> AsyncIterator[bytes]:
        """Yield the archive of a version in parts.

        Raises:
            ApiError: 404, the version was deleted.
        """
        for key in version.archive.parts:
            record = (await self._records.get_many([key])).get(key)
            if record is None:
                raise no_version(version.skill, version.number)
            yield record.value

    # Skills

    async def load(self, owner: Owner, skill_id: str) -> StoredSkill:
        """Return a skill.

        Raises:
            ApiError: 404, the owner has no such skill.
        """
        skill, _ = await self._load(owner, skill_id)
        return skill

    async def load_many(self, owner: Owner, skill_ids: Collection[str]) -> dict[str, StoredSkill]:
        """Return those of these skills that the owner has, by id."""
        values = await self._values([_skill_key(owner, each) for each in skill_ids])
        skills = map(StoredSkill.from_stored, values)
        return {skill.id: skill for skill in skills}

    async def page(
        self, owner: Owner, *, limit: int, after: str | None = None, order: Order = "desc"
    ) -> tuple[list[StoredSkill], bool]:
        """Return at most `limit` skills after the one with the id `after`, by creation, and whether there are more.

        Raises:
            ApiError: 400, `after` is not the id of a skill of this owner.
        """
        prefix = _skill_key(owner, "")
        values, has_more = await self._page(prefix, after, None if after is None else prefix + after, limit, order)
        return [StoredSkill.from_stored(each) for each in values], has_more

    async def create(self, skill_id: str, owner: Owner, new: NewVersion, quota: SkillQuota) -> StoredSkill:
        """Store a skill with its first version.

        Args:
            skill_id: an id of `new_id`.

        Raises:
            ApiError: 400, the owner may have no more skills; 503, the upload took too long.
        """
        skill = StoredSkill(skill_id, owner, new.created_at, new.name, new.description, 1, 1, 1, 1)
        version = new.version_of(skill)
        retry = ConflictRetry()
        while True:
            await retry.wait()
            rows = await self._records.get_many([skill.key, *_usage_keys(owner), new.archive.key])
            if skill.key in rows:
                return await self.load(owner, skill_id)  # an earlier call has stored it
            usage = _usage_of(owner, tag_of(skill_id), rows)
            usage.check(quota, skills=1)
            ops: list[Op] = [Put(skill.key, skill.encode()), Put(version.key, version.encode())]
            ops += [Delete(new.archive.key), usage.changed(skills=1)]
            conditions = [VersionIs(skill.key, None), usage.unchanged, _uploaded(new.archive, rows)]
            if await committed(self._records, ops, conditions):
                return skill

    async def set_default(self, owner: Owner, skill_id: str, number: int) -> StoredSkill:
        """Make a version the default one, and return the skill.

        Raises:
            ApiError: 404, the owner has no such skill, or it has no such version.
        """
        retry = ConflictRetry()
        while True:
            await retry.wait()
            skill, unchanged = await self._load(owner, skill_id)
            skill = skill.with_default(await self.version(skill, number))
            if await committed(self._records, [Put(skill.key, skill.encode())], [unchanged]):
                return skill

    async def delete(self, owner: Owner, skill_id: str) -> None:
        """Delete a skill with all its versions.

        Raises:
            ApiError: 404, the owner has no such skill.
        """
        retry = ConflictRetry()
        while True:
            await retry.wait()
            skill, unchanged = await self._load(owner, skill_id)
            versions = [each async for each in self.every_version(skill)]
            if await self._remove(skill, unchanged, versions, Delete(skill.key)):
                return

    # Versions

    async def version(self, skill: StoredSkill, number: int) -> SkillVersion:
        """Return a version of a skill.

        Raises:
            ApiError: 404, it does not exist.
        """
        name = (skill.id, number)
        versions = await self.versions([name])
        if name not in versions:
            raise no_version(*name)
        return versions[name]

    async def versions(self, wanted: Collection[tuple[str, int]]) -> dict[tuple[str, int], SkillVersion]:
        """Return those of these versions that exist, each named by its skill and its number."""
        values = await self._values([_version_key(*each) for each in wanted])
        versions = map(SkillVersion.from_stored, values)
        return {(version.skill, version.number): version for version in versions}

    async def version_page(
        self, skill: StoredSkill, *, limit: int, after: str | None = None, order: Order = "desc"
    ) -> tuple[list[SkillVersion], bool]:
        """Return at most `limit` versions after the one with the id `after`, by number, and whether there are more.

        Raises:
            ApiError: 400, `after` is not the id of a version of this skill.
        """
        cursor = None if after is None else _version_key(skill.id, _number_in(after))
        values, has_more = await self._page(f"sv/{skill.id}/", after, cursor, limit, order)
        return [SkillVersion.from_stored(each) for each in values], has_more

    async def every_version(self, skill: StoredSkill) -> AsyncIterator[SkillVersion]:
        """Yield all versions of a skill, oldest first."""
        async for rows in pages_of(self._records, f"sv/{skill.id}/"):
            for value in await self._decoder.decode([record.value for _, record in rows]):
                yield SkillVersion.from_stored(value)

    async def add_version(
        self, owner: Owner, skill_id: str, new: NewVersion, quota: SkillQuota, *, default: bool = False
    ) -> SkillVersion:
        """Store a version of a skill.

        Args:
            default: whether it becomes the default version.

        Raises:
            ApiError: 404, the owner has no such skill; 400, it may have no more versions; 503, the upload took too
                long.
        """
        retry = ConflictRetry()
        while True:
            await retry.wait()
            skill, unchanged = await self._load(owner, skill_id)
            rows = await self._records.get_many([new.archive.key])
            if new.archive.key not in rows and (stored := await self._version_with(skill, new.archive)):
                return stored  # an earlier call has stored it
            if skill.versions >= quota.versions:
                raise _too_much(f"The skill has {skill.versions} versions; {quota.versions} are allowed. Delete one.")
            number = skill.last + 1
            version = new.version_of(replace(skill, last=number))
            skill = replace(skill, latest=number, last=number, versions=skill.versions + 1)
            if default:
                skill = skill.with_default(version)
            ops: list[Op] = [Put(skill.key, skill.encode()), Put(version.key, version.encode())]
            ops.append(Delete(new.archive.key))
            conditions = [unchanged, _uploaded(new.archive, rows)]
            if await committed(self._records, ops, conditions):
                return version

    async def delete_version(self, owner: Owner, skill_id: str, number: int) -> SkillVersion:
        """Delete a version, and return it. With its only version, the skill is deleted.

        Raises:
            ApiError: 404, the owner has no such skill, or it has no such version; 400, it is the default version, and
                not the only one.
        """
        retry = ConflictRetry()
        while True:
            await retry.wait()
            skill, unchanged = await self._load(owner, skill_id)
            version = await self.version(skill, number)
            if skill.versions == 1:
                change: Put | Delete = Delete(skill.key)
            elif number == skill.default:
                message = f"Version {number} is the default version of skill '{skill_id}': set another one first."
                raise bad_request(message, "version", "invalid_value")
            else:
                [*_, latest] = [each.number async for each in self.every_version(skill) if each.number != number]
                left = replace(skill, latest=latest, versions=skill.versions - 1)
                change = Put(skill.key, left.encode())
            if await self._remove(skill, unchanged, [version], change):
                return version

    async def resume(self, limit: int) -> None:
        """Delete at most `limit` archives that have no version, and are due."""
        now = await self._records.now()
        for key, record in await self._records.range("su/", after_prefix("su/"), limit=limit):
            row = codec.decode(record.value)
            # With a new version of the row, an upload that still goes on ends with its next part.
            claim = [Put(key, record.value)], [VersionIs(key, record.version)]
            if row["due"] <= now and await committed(self._records, *claim):
                await self._clear(StoredArchive(key.removeprefix("su/"), row["bytes"], ""))

    async def _load(self, owner: Owner, skill_id: str) -> tuple[StoredSkill, Condition]:
        """Return a skill, and the condition that it is unchanged."""
        key = _skill_key(owner, skill_id)
        record = (await self._records.get_many([key])).get(key)
        if record is None:
            raise no_skill(skill_id)
        return StoredSkill.from_stored(codec.decode(record.value)), VersionIs(key, record.version)

    async def _version_with(self, skill: StoredSkill, archive: StoredArchive) -> SkillVersion | None:
        found = [each async for each in self.every_version(skill) if each.archive == archive]
        return found[0] if found else None

    async def _values(self, keys: Sequence[str]) -> list[Any]:
        """Return the decoded values of those of these keys that exist, in their order."""
        rows = await self._records.get_many(keys)
        return await self._decoder.decode([rows[key].value for key in keys if key in rows])

    async def _page(
        self, prefix: str, after: str | None, cursor: str | None, limit: int, order: Order
    ) -> tuple[list[Any], bool]:
        """Return the decoded values of at most `limit` rows, and whether there are more.

        Args:
            prefix: the beginning of their keys.
            after: the id of the object before them; None for the first page.
            cursor: the key of that object.
        """
        start, end = prefix, after_prefix(prefix)
        if cursor is not None:
            found = await self._values([cursor])
            if not found or found[0]["id"] != after:
                raise not_in_list(str(after))
            start, end = (start, cursor) if order == "desc" else (cursor + "\0", end)
        rows = await self._records.range(start, end, limit=limit + 1, reverse=order == "desc")
        return await self._decoder.decode([record.value for _, record in rows[:limit]]), len(rows) > limit

    async def _remove(
        self, skill: StoredSkill, unchanged: Condition, versions: Sequence[SkillVersion], change: Put | Delete
    ) -> bool:
        """Delete versions of a skill, together with a change of its record; return False if it was changed before."""
        usage, now = await self._usage(skill.owner, tag_of(skill.id)), await self._records.now()
        ops: list[Op] = [change]
        ops += [op for each in versions for op in (Delete(each.key), each.archive.unused(skill.owner, now))]
        if isinstance(change, Delete):
            ops.append(usage.changed(skills=-1))
        if not await committed(self._records, ops, [unchanged, usage.unchanged]):
            return False
        try:
            for each in versions:
                await self._clear(each.archive)
        except ApiError as error:
            logger.warning("could not delete the archives of a deleted skill, will retry: %s", error)
        return True

    async def _clear(self, archive: StoredArchive) -> None:
        """Delete the parts of an archive, and then the row that requests this."""
        for keys in batched(archive.parts, _PARTS_PER_COMMIT):
            await self._records.commit([Delete(key) for key in keys])
        retry = ConflictRetry()
        while record := (await self._records.get_many([archive.key])).get(archive.key):
            await retry.wait()
            key = _usage_key(codec.decode(record.value)["of"], archive.tag)
            usage = _usage(key, await self._records.get_many([key]))
            freed = usage.changed(size=-archive.bytes, now=await self._records.now())
            conditions = [VersionIs(archive.key, record.version), usage.unchanged]
            if await committed(self._records, [Delete(archive.key), freed], conditions):
                return

    async def _usage(self, owner: Owner, tag: int) -> _Usage:
        return _usage_of(owner, tag, await self._records.get_many(_usage_keys(owner)))


def no_skill(skill_id: str, param: str = "skill_id") -> ApiError:
    """Return the 404 of a skill that is unknown, deleted, or another user's."""
    return ApiError(404, f"Skill with id '{skill_id}' not found.", param=param)


def no_version(skill_id: str, number: int, param: str = "version") -> ApiError:
    """Return the 404 of a version that a skill does not have."""
    return ApiError(404, f"Skill '{skill_id}' has no version '{number}'.", param=param)


def _too_slow() -> ApiError:
    return ApiError(503, "The skill was not stored in time: upload it again.", retry_after=1)


def _too_much(message: str) -> ApiError:
    return bad_request(message, "files", "skill_quota_exceeded")


def _usage_keys(owner: Owner) -> list[str]:
    """Return the keys of the rows that count an owner's skills: those without a tag, and those with one."""
    of = Hasher(owner).owner
    return list(dict.fromkeys(_usage_key(of, tag) for tag in (0, home_of(of))))


def _usage_of(owner: Owner, tag: int, rows: Mapping[str, Record]) -> _Usage:
    """Return what the owner's skills with this tag take, given the rows that exist."""
    own = _usage_key(Hasher(owner).owner, tag)
    others = [_usage(key, rows) for key in _usage_keys(owner) if key != own]
    skills, size = sum(each.skills for each in others), sum(each.bytes for each in others)
    return replace(_usage(own, rows), other_skills=skills, other_bytes=size)


def _usage(key: str, rows: Mapping[str, Record]) -> _Usage:
    record = rows.get(key)
    counts = codec.decode(record.value) if record else {"skills": 0, "bytes": 0}
    return _Usage(key, counts["skills"], counts["bytes"], VersionIs(key, record.version if record else None))


def _uploaded(archive: StoredArchive, rows: Mapping[str, Record]) -> Condition:
    """Return the condition that the parts are stored, given the rows that exist.

    Raises:
        ApiError: 503, they were deleted.
    """
    if archive.key not in rows or rows[archive.key].version != 1:
        raise _too_slow()
    return VersionIs(archive.key, 1)


def _skill_key(owner: Owner, skill_id: str) -> str:
    return f"{SKILL_PREFIX}{Hasher(owner).owner}/{skill_id}"


def _usage_key(of: str, tag: int) -> str:
    return with_tag(f"so/{of}", tag)


def _version_key(skill_id: str, number: int) -> str:
    return f"sv/{skill_id}/{number:06x}"


def _version_id(number: int) -> str:
    """Return a new id of a version, which begins with its number."""
    return f"skillver_{number:06x}{token_hex(9)}"


def _number_in(version_id: str) -> int:
    """Return the number with which a version's id begins; 0 if it is none."""
    digits = version_id.removeprefix("skillver_")[:6]
    return int(digits, 16) if fullmatch("[0-9a-f]{6}", digits) else 0
