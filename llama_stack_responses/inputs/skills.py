"""The archives of skills that a request contains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from ..admission import Admission
from ..concurrency.large_base64 import decoded, decoded_bytes
from ..core.owner import Owner
from ..sandbox.skill_archive import InvalidSkill, SkillArchive
from ..sandbox.skills import OpenArchive


def archives_with(contents: Admission, current_user: Callable[[], Owner]) -> OpenArchive:
    """Return a context manager that opens the archive of a skill.

    The archive and its uncompressed files count as held by the current user until the block ends.
    """

    @asynccontextmanager
    async def opened(data: str) -> AsyncIterator[SkillArchive]:
        with contents.reserve(current_user()) as reservation:

            def count(size: int) -> None:
                if reservation.units + size > contents.per_user:
                    raise InvalidSkill(f"Its archive and files have more than {contents.per_user} bytes, the maximum.")
                reservation.add(size)

            if not data:
                raise InvalidSkill("Its data is empty, as in the tools of a response. Send its archive.")
            count(decoded_bytes(data))
            try:
                content = await decoded(data)
            except ValueError:
                raise InvalidSkill("Its data is not base64.") from None
            archive = await asyncio.to_thread(SkillArchive, content)
            count(archive.bytes)
            yield archive

    return opened
