"""The containers of the current user, and their creation with uploaded files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO

from ....concurrency.offloading import in_thread
from ....core.errors import ApiError
from ....core.owner import Owner
from ....core.types import Json
from ....inputs.files import Upload
from ..network.network import Networks
from ..network.policy import NetworkPolicy
from ..sandbox import DATA
from ..sandbox.volume import VolumeFull
from ..skills.archive import InvalidSkill, check_size
from ..skills.shapes import MAX_SKILLS
from ..skills.skill import FindSkill, FoundSkill, Skill
from .entries import ContainerEntry, ContainerFile, Containers, add_skill, write_file


class FileNotCopied(Exception):  # noqa: N818 (its message is the whole information)
    """An uploaded file cannot be put into a new container.

    Attributes:
        number: its position in the list of files.
        cause: the error of reading or writing it.
    """

    def __init__(self, number: int, file_id: str, cause: ApiError) -> None:
        super().__init__(f"The file '{file_id}' cannot be put into the container. {cause.message}")
        self.number = number
        self.cause = cause


class SkillNotAdded(Exception):  # noqa: N818 (its message is the whole information)
    """A skill cannot be put into a container.

    Attributes:
        number: its position in the list of skills.
        field: the field of its entry that is at fault.
        status: the HTTP status.
    """

    def __init__(self, number: int, name: str, why: str, field: str, status: int = 400) -> None:
        super().__init__(f"The skill '{name}' cannot be put into the container. {why}")
        self.number = number
        self.field = field
        self.status = status


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """Access to this server's containers.

    Attributes:
        current_user: returns the current user.
        uploaded: reads uploaded files, to copy them into a container.
        find_skill: finds the skills that a request declares, to unpack them into a container.
        networks: the networks that a container may have.
    """

    containers: Containers
    current_user: Callable[[], Owner]
    uploaded: Upload
    find_skill: FindSkill
    networks: Networks

    def find(self, container_id: str) -> ContainerEntry:
        """Return the user's container and mark it as used.

        Raises:
            NoContainer: the user has no such container.
        """
        return self.containers.find(container_id, self.current_user())

    def owned(self) -> list[ContainerEntry]:
        """Return all containers of the user, the newest first."""
        return self.containers.of(self.current_user())

    async def create(
        self,
        file_ids: Sequence[str] = (),
        skills: Sequence[Json] = (),
        *,
        name: str = "auto",
        container_id: str = "",
        idle_seconds: float | None = None,
        policy: NetworkPolicy | None = None,
    ) -> ContainerEntry:
        """Create a container of the user with copies of these uploaded files, and these skills.

        If one of them cannot be put into it, no container is left.

        Args:
            skills: skills, as a request declares them.
            container_id: its id; a new one by default.
            idle_seconds: it expires after this time without use.
            policy: what its code may reach; None for no network.

        Raises:
            TooManyContainers: the maximum number of containers is reached.
            FileNotCopied: a file does not exist, does not fit, or its name is not valid.
            SkillNotAdded: a skill is not valid, does not exist, or does not fit.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        user = self.current_user()
        entry = await self.containers.create(
            user,
            name=name,
            container_id=container_id,
            idle_seconds=idle_seconds,
            open_network=partial(self.networks.open, policy),
        )
        try:
            for number, file_id in enumerate(file_ids):
                try:
                    await self.copy(entry, file_id)
                except ApiError as error:
                    raise FileNotCopied(number, file_id, error) from error
            await self.add_skills(entry, skills)
        except BaseException:
            await self.containers.end(entry.id)  # it must not be used without its files
            raise
        return entry

    async def copy(self, entry: ContainerEntry, file_id: str) -> ContainerFile:
        """Copy an uploaded file into a container.

        Raises:
            ApiError: it does not exist, does not fit, or its name is not valid.
        """
        async with self.uploaded(file_id) as (name, content):
            return await write_file(entry, name, BytesIO(content))

    async def check_skills(self, skills: Sequence[Json], entry: ContainerEntry | None) -> list[Skill]:
        """Check the skills that `entry` does not contain yet, and return all of them.

        Raises:
            SkillNotAdded: one is not valid, or does not exist.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        return await self._with_missing(skills, entry, _check)

    async def add_skills(self, entry: ContainerEntry, skills: Sequence[Json]) -> None:
        """Put the skills into a container that it does not contain yet.

        Raises:
            SkillNotAdded: one is not valid, does not exist, or does not fit.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        await self._with_missing(skills, entry, partial(_add, entry))

    async def _with_missing(self, declared: Sequence[Json], entry: ContainerEntry | None, use: _Use) -> list[Skill]:
        """Call `use` with each skill that `entry` does not contain, and return all of them."""
        skills: dict[str, Skill] = {}
        names, size = set(entry.skills) if entry else set[str](), 0

        def take(more: int) -> None:
            nonlocal size
            size += more
            check_size(size)

        for number, each in enumerate(declared):
            with _named_errors(number, each):
                found = await self.find_skill(each)
                skill = found.skill
                if skill.name in skills:
                    raise InvalidSkill(f"Another skill of the request has the name '{skill.name}' already.")
                skills[skill.name] = skill
                if entry and entry.skills.get(skill.name) == skill:
                    continue
                names.add(skill.name)
                if len(names) > MAX_SKILLS:
                    raise InvalidSkill(f"It would have more than {MAX_SKILLS} skills. Use a new container.")
                await use(found, take)
        return list(skills.values())


type _Use = Callable[[FoundSkill, Callable[[int], None]], Awaitable[None]]
"""Uses a skill. The second argument is to be called with the size of its files before they are read; it may raise."""


@contextmanager
def _named_errors(number: int, declared: Json) -> Iterator[None]:
    """Raise `SkillNotAdded` for a skill that is not valid, does not exist, or does not fit."""
    inline = declared["type"] == "inline"
    name, field = (declared["name"], "source.data") if inline else (declared["skill_id"], "skill_id")
    try:
        yield
    except (InvalidSkill, VolumeFull) as error:
        raise SkillNotAdded(number, name, str(error), field) from error
    except ApiError as error:
        if error.status != 404 or error.param is None:
            raise
        raise SkillNotAdded(number, name, error.message, error.param, error.status) from error


async def _check(found: FoundSkill, take: Callable[[int], None]) -> None:
    """Check the archive of a skill, unless that was done when it was stored."""
    if found.unpacked_bytes is not None:
        take(found.unpacked_bytes)
        return
    async with found.opened() as archive:
        take(archive.bytes)
        await in_thread(archive.check)


async def _add(entry: ContainerEntry, found: FoundSkill, take: Callable[[int], None]) -> None:
    """Put a skill into a container."""
    async with found.opened() as archive:
        take(archive.bytes)
        try:
            await add_skill(entry, found.skill, archive)
        except OSError as error:
            why = f"Code has closed or replaced the folder '{DATA}/{found.skill.folder}'. Use a new container."
            raise InvalidSkill(why) from error
