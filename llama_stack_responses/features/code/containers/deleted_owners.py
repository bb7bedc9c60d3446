"""Ends the containers of users of whom everything was deleted: their files are on the servers, not in the store.

The command that deletes writes the row `ce/<of>`, whose key has a hash of the user, for a day, with its time. Each
server looks for the rows of the users of its containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ....core.owner import Owner
from ....lifecycle.periodic import Periodic
from ....logs import get_logger
from ....store.clock import MAX_DIFFERENCE_SECONDS
from ....store.content_names import Hasher
from ....store.records import Put, Records

if TYPE_CHECKING:
    from .entries import Containers

logger = get_logger(__name__)

_PREFIX: Final = "ce/"
_SECONDS: Final = 15.0
_KEPT_SECONDS: Final = 86_400.0


def _key(owner: Owner) -> str:
    return f"{_PREFIX}{Hasher(owner).owner}"


async def end_containers_of(records: Records, owner: Owner) -> None:
    """Have all servers of the store end the containers that a user has now.

    Raises:
        ApiError: 503, the store does not answer.
    """
    now = await records.now()
    await records.commit([Put(_key(owner), b"%d" % now, now + _KEPT_SECONDS)])


class DeletedOwners(Periodic):
    """Ends the containers of deleted users on this server.

    Args:
        records: the store.
        containers: the containers of this server.
    """

    def __init__(self, records: Records, containers: Containers) -> None:
        super().__init__(self.end, "could not look for deleted users of containers", logger, _SECONDS)
        self._records, self._containers = records, containers

    async def end(self) -> None:
        """End them.

        Raises:
            ApiError: 503, the store does not answer.
        """
        keys = {_key(each.owner): None for each in self._containers.all()}
        rows = await self._records.get_many(list(keys)) if keys else {}
        for entry in self._containers.all() if rows else ():
            row = rows.get(_key(entry.owner))
            # The clocks of the store and of this machine may differ.
            if row and entry.created_at <= int(row.value) + MAX_DIFFERENCE_SECONDS:
                await self._containers.end(entry.id)
