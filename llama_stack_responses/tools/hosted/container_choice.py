"""The choice of the container for a request's tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from ...core.ids import new_id
from ...core.types import Json
from ...core.unavailable_tools import UnavailableTool
from ...sandbox.container_access import ContainerAccess, FileNotCopied
from ...sandbox.containers import ContainerEntry, NoContainer
from ...sandbox.slots import TooManyContainers
from ..tool_function import ToolError


class ContainerChoice:
    """The container of one tool.

    Args:
        container: id of a container, or the settings of a new one: `{file_ids, network_policy}`.
        field: the field of the tool's declaration that has them.

    Attributes:
        container_id: its id, once chosen.
    """

    def __init__(self, access: ContainerAccess, container: str | Json, field: str) -> None:
        self.container_id = container if isinstance(container, str) else ""
        self._access = access
        self._container = container
        self._opening = asyncio.Lock()
        if isinstance(container, dict) and container.get("network_policy", {"type": "disabled"})["type"] != "disabled":
            message = "Containers of this server have no network: omit 'network_policy'."
            raise UnavailableTool(message, f"{field}.network_policy")

    def choose(self, used: Iterable[str]) -> None:
        """Choose the requested container, the last one that the conversation used, or a new id."""
        self.container_id = self.container_id or self._last(list(used)) or new_id("cntr")

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
            return self._access.find(self.container_id)
        except NoContainer as error:
            if isinstance(self._container, str):
                raise ToolError(str(error)) from error
            return await self._make(self._container)

    async def _make(self, settings: Json) -> ContainerEntry:
        try:
            return await self._access.create(settings.get("file_ids", ()), container_id=self.container_id)
        except (TooManyContainers, FileNotCopied) as error:
            raise ToolError(str(error)) from error

    def _last(self, used: list[str]) -> str | None:
        try:
            return self._access.find(used[-1]).id if used else None
        except NoContainer:
            return None
