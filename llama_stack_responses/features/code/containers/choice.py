"""The choice of the container for a request's tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from ....core.ids import new_id
from ....core.types import Json
from ....requests.unavailable_tools import UnavailableTool
from ....tools.client.shell import with_skills
from ....tools.tool_function import ToolError
from ..network.policy import NetworkPolicy, PolicyRefused
from ..skills.skill import Skill, shown
from .access import ContainerAccess, FileNotCopied, SkillNotAdded
from .entries import ContainerEntry, NoContainer, TooManyContainers


class ContainerChoice:
    """The container of one tool.

    Args:
        container: id of a container, or the settings of a new one: `{file_ids, network_policy, skills}`.
        field: the field of the tool's declaration that has them.

    Attributes:
        container_id: its id, once chosen.
        skills: the skills of the container for the model, once chosen: `{name, description, path}`.
        policy: what its code may reach, once chosen; None for no network.

    Raises:
        UnavailableTool: the network policy cannot be used.
    """

    def __init__(self, access: ContainerAccess, container: str | Json, field: str) -> None:
        self.container_id = container if isinstance(container, str) else ""
        self.skills: Sequence[Json] = ()
        self.policy: NetworkPolicy | None = None
        self._access = access
        self._container = container
        self._field = field
        self._declared_skills: Sequence[Json] = () if isinstance(container, str) else container.get("skills", ())
        self._complete: ContainerEntry | None = None
        self._opening = asyncio.Lock()
        self._policy = None if isinstance(container, str) else self._accepted(container.get("network_policy"))

    async def choose(self, last: str | None) -> None:
        """Choose the requested container, the `last` one that the conversation used, or a new id.

        The last one is used if it exists and reaches what the request allows: a container keeps its network.

        Raises:
            UnavailableTool: a requested skill is not valid.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        wanted = self.container_id or last
        entry = self._existing(wanted) if wanted else None
        if not self.container_id and entry and entry.policy != self._policy:
            entry = None
        self.policy = entry.policy if entry else self._policy
        self.container_id = self.container_id or (entry.id if entry else new_id("cntr"))
        skills = {skill.name: skill for skill in await self._check_skills(entry)}
        known = entry.skills | skills if entry else skills
        self.skills = list(map(shown, known.values()))

    async def check(self) -> None:
        """Check the requested skills.

        Raises:
            UnavailableTool: one is not valid.
            ApiError: 429 or 503, too much is held for the user, or for all.
        """
        await self._check_skills(None)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[ContainerEntry]:
        """Open the container and keep it from expiring meanwhile.

        Raises:
            ToolError: it does not exist, or no container can be created.
        """
        # Calls of one round run concurrently; the first one creates the container.
        async with self._opening:
            entry = await self._open()
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1

    async def _open(self) -> ContainerEntry:
        """Find the container; create a new one, with its files, if it does not exist yet."""
        try:
            entry = self._access.find(self.container_id)
            if entry is not self._complete:
                await self._access.add_skills(entry, self._declared_skills)
        except NoContainer as error:
            if isinstance(self._container, str):
                raise ToolError(str(error)) from error
            entry = await self._make(self._container)
        except SkillNotAdded as error:
            raise ToolError(str(error)) from error
        self._complete = entry
        return entry

    async def _make(self, settings: Json) -> ContainerEntry:
        file_ids = settings.get("file_ids", ())
        try:
            return await self._access.create(
                file_ids, self._declared_skills, container_id=self.container_id, policy=self._policy
            )
        except (TooManyContainers, FileNotCopied, SkillNotAdded) as error:
            raise ToolError(str(error)) from error

    def _accepted(self, declared: Json | None) -> NetworkPolicy | None:
        try:
            return self._access.networks.accept(declared)
        except PolicyRefused as error:
            param = error.param(f"{self._field}.network_policy")
            raise UnavailableTool(str(error), param, error.code) from error

    async def _check_skills(self, entry: ContainerEntry | None) -> list[Skill]:
        try:
            return await self._access.check_skills(self._declared_skills, entry)
        except SkillNotAdded as error:
            field = f"{self._field}.skills[{error.number}].{error.field}"
            raise UnavailableTool(str(error), field, "invalid_value") from error

    def _existing(self, container_id: str) -> ContainerEntry | None:
        try:
            return self._access.find(container_id)
        except NoContainer:
            return None


def described(tool: str, installed: str, choice: ContainerChoice) -> str:
    """Return the description of a tool with a container for the model.

    Args:
        tool: what it does, with a place for what its sandbox lacks.
        installed: a sentence that lists the packages that Python can import; empty if there are none.
    """
    policy = choice.policy
    told = tool.format("" if policy else " without network access")
    sentences = [told, policy.sentence() if policy else "", installed]
    return with_skills(" ".join(filter(None, sentences)), choice.skills)
