"""The choice of the container for a request's tool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from io import BytesIO

from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.sandbox.containers import Containers, Entry, NoContainer, write_file
from llama_stack_responses.sandbox.slots import TooManyContainers

from ...core.types import Json
from ..tool import ToolError

Uploaded = Callable[[str], AbstractAsyncContextManager[tuple[str, bytes]]]
"""Yields the name and content of an uploaded file by its id. Raises `ApiError` if the user has no access to it."""


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """Access to this server's containers.

    Attributes:
        who: returns the current user.
        uploaded: reads uploaded files, to copy them into a container.
    """

    containers: Containers
    who: Callable[[], Owner]
    uploaded: Uploaded


class ContainerChoice:
    """The container of one tool.

    Args:
        asked: id of a container, or the settings of a new one: `{file_ids, network_policy}`.

    Attributes:
        container_id: its id, once chosen.
    """

    def __init__(self, access: ContainerAccess, asked: str | Json) -> None:
        self.container_id = asked if isinstance(asked, str) else ""
        self._access = access
        self._asked = asked
        self._opening = asyncio.Lock()
        if isinstance(asked, dict) and asked.get("network_policy", {"type": "disabled"})["type"] != "disabled":
            message = "Containers of this server have no network: omit 'network_policy'."
            raise bad_request(message, "tools", "unsupported_value")

    def choose(self, used: Iterable[str]) -> None:
        """Choose the requested container, the last one that the conversation used, or a new id."""
        self.container_id = self.container_id or self._last(list(used)) or new_id("cntr")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Entry]:
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

    async def _open(self) -> Entry:
        """Find the container; create a new one, with its files, if it does not exist yet."""
        try:
            return self._access.containers.find(self.container_id, self._access.who())
        except NoContainer as error:
            if isinstance(self._asked, str):
                raise ToolError(str(error)) from error
            return await self._make(self._asked)

    async def _make(self, asked: Json) -> Entry:
        try:
            entry = await self._access.containers.create(self._access.who(), container_id=self.container_id)
        except TooManyContainers as error:
            raise ToolError(str(error)) from error
        for file_id in asked.get("file_ids", ()):
            try:
                async with self._access.uploaded(file_id) as (name, content):
                    await write_file(entry, name, BytesIO(content))
            except ApiError as error:
                await self._access.containers.end(entry.id)  # it must not be reused without its files
                raise ToolError(f"The file '{file_id}' cannot be put into the container. {error.message}") from error
        return entry

    def _last(self, used: list[str]) -> str | None:
        try:
            return self._access.containers.find(used[-1], self._access.who()).id if used else None
        except NoContainer:
            return None
