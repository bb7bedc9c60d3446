"""The containers of the current user, and their creation with uploaded files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from io import BytesIO

from ..core.errors import ApiError
from ..core.owner import Owner
from .containers import ContainerEntry, ContainerFile, Containers, write_file

Uploaded = Callable[[str], AbstractAsyncContextManager[tuple[str, bytes]]]
"""Yields the name and content of an uploaded file by its id. Raises `ApiError` if the user has no access to it."""


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


@dataclass(frozen=True, slots=True)
class ContainerAccess:
    """Access to this server's containers.

    Attributes:
        current_user: returns the current user.
        uploaded: reads uploaded files, to copy them into a container.
    """

    containers: Containers
    current_user: Callable[[], Owner]
    uploaded: Uploaded

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
        *,
        name: str = "auto",
        container_id: str = "",
        idle_seconds: float | None = None,
    ) -> ContainerEntry:
        """Create a container of the user with copies of these uploaded files. If one cannot be copied, none is left.

        Args:
            container_id: its id; a new one by default.
            idle_seconds: it expires after this time without use.

        Raises:
            TooManyContainers: the maximum number of containers is reached.
            FileNotCopied: a file does not exist, does not fit, or its name is not valid.
        """
        user = self.current_user()
        entry = await self.containers.create(user, name=name, container_id=container_id, idle_seconds=idle_seconds)
        try:
            for number, file_id in enumerate(file_ids):
                try:
                    await self.copy(entry, file_id)
                except ApiError as error:
                    raise FileNotCopied(number, file_id, error) from error
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
