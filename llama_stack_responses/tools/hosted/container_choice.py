"""Which container a tool of a request works in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from llama_stack_responses.core.errors import ApiError, bad_request
from llama_stack_responses.core.ids import new_id
from llama_stack_responses.core.owner import Owner
from llama_stack_responses.sandbox.containers import Containers, Entry, NoContainer, write_file
from llama_stack_responses.sandbox.places import TooMany

from ..tool import ToolError

Json = dict[str, Any]
Uploaded = Callable[[str], Awaitable[tuple[str, bytes]]]
"""Gives the name and content of an uploaded file by its id; an `ApiError` if the user may not see it."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where this server's containers are.

    Attributes:
        who: the user who asks.
        uploaded: reads files that are to be put into a container.
    """

    containers: Containers
    who: Callable[[], Owner]
    uploaded: Uploaded


class ContainerChoice:
    """The container of one tool.

    Args:
        asked: the id of a container, or what a new one is to be like: `{file_ids, network_policy}`.

    Attributes:
        container_id: its id, once it is chosen.
    """

    def __init__(self, site: Site, asked: str | Json) -> None:
        self.container_id = asked if isinstance(asked, str) else ""
        self._site = site
        self._asked = asked
        self._opening = asyncio.Lock()
        if isinstance(asked, dict) and asked.get("network_policy", {"type": "disabled"})["type"] != "disabled":
            message = "Containers of this server have no network: leave 'network_policy' out."
            raise bad_request(message, "tools", "unsupported_value")

    def choose(self, used: Iterable[str]) -> None:
        """Chooses: the one that is asked for, or the last one that the conversation used, or a new one."""
        self.container_id = self.container_id or self._last(list(used)) or new_id("cntr")

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Entry]:
        """The container, which does not expire meanwhile.

        Raises:
            ToolError: it is not there, or there is no room for it.
        """
        # Calls of one round run at once, and the first one makes the container.
        async with self._opening:
            entry = await self._open()
        entry.users += 1
        try:
            yield entry
        finally:
            entry.users -= 1

    async def _open(self) -> Entry:
        """The container; one that is new is made now, with the files that it is to have."""
        try:
            return self._site.containers.find(self.container_id, self._site.who())
        except NoContainer as error:
            if isinstance(self._asked, str):
                raise ToolError(str(error)) from error
            return await self._make(self._asked)

    async def _make(self, asked: Json) -> Entry:
        try:
            entry = await self._site.containers.create(self._site.who(), container_id=self.container_id)
        except TooMany as error:
            raise ToolError(str(error)) from error
        for file_id in asked.get("file_ids", ()):
            try:
                name, content = await self._site.uploaded(file_id)
                await write_file(entry, name, BytesIO(content))
            except ApiError as error:
                await self._site.containers.end(entry.id)  # one without its files would be taken for whole
                raise ToolError(f"The file '{file_id}' cannot be put into the container. {error.message}") from error
        return entry

    def _last(self, used: list[str]) -> str | None:
        try:
            return self._site.containers.find(used[-1], self._site.who()).id if used else None
        except NoContainer:
            return None
