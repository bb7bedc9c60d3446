"""Who may use the routes below `/v1/admin`, and the audit log of what they do there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from fastapi import Request

from ..config.roles import Roles
from ..core.errors import ApiError, not_found
from ..core.ids import check_response_id
from ..core.owner import Owner
from ..core.recent_counts import RecentCounts
from ..store.archive import Archive
from ..store.audit_log import Act, AuditLog, user_actor
from ..store.layout import Entry
from .request_handling import Query

_MAX_USERS: Final = 1024
_REFUSED_SECONDS: Final = 60.0
_MAX_REFUSED: Final = 20
"""Refused acts of a user that are written in `_REFUSED_SECONDS`, so that they do not fill the store."""
_HEADER_CHARACTERS: Final = 256
NAME_CHARACTERS: Final = 8192
"""Longer names than the hosts' tokens have."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A user who may act for others.

    Attributes:
        user: the user.
        team: the team to which their rights are limited; empty for an operator, who has them for all.
    """

    user: Owner
    team: str = ""


@dataclass(frozen=True, slots=True)
class Listed:
    """What is asked of a list that has what several users have.

    Attributes:
        query: the parameters.
        tenant: the tenant of the user who asks, whose owners the list has.
        owner: the only owner whose list is asked for; None for all.
    """

    query: Query
    tenant: str
    owner: Owner | None


class Operators:
    """Admits operators and leads of teams, and writes what they do, before they do it.

    Args:
        roles: who they are.
        current_user: returns the user of the current request.
        log: the audit log.

    Attributes:
        log: the audit log.
    """

    def __init__(self, roles: Roles, current_user: Callable[[], Owner], log: AuditLog) -> None:
        self._roles = roles
        self._current_user = current_user
        self.log = log
        self._refused: RecentCounts[tuple[str, str]] = RecentCounts(_REFUSED_SECONDS, _MAX_USERS)

    async def admit(self, request: Request, act: str, object_id: str = "", *, leads: bool = False) -> Admitted:
        """Return the user of a request, who may do this for others.

        Args:
            act: what they want to do, such as `response.deleted`.
            object_id: the id of the object.
            leads: whether the lead of a team may do it too, for the team.

        Raises:
            ApiError: 403, the user may not; 503, the store does not answer.
        """
        user = self._current_user()
        if self._roles.is_operator(user):
            return Admitted(user)
        if leads and (team := self._roles.leads(user)):
            return Admitted(user, team)
        await self.refuse(request, act, object_id)
        raise ApiError(403, "You have insufficient permissions for this operation.", code="insufficient_permissions")

    async def admit_list(self, request: Request, act: str) -> Listed:
        """Return what a user asks of the lists of others, who may see them. It is not written yet.

        Args:
            act: as in `admit`.

        Raises:
            ApiError: as from `admit`; 400, the name of the `owner` is too long.
        """
        query, user = Query(request), (await self.admit(request, act)).user
        name = query.text("owner", NAME_CHARACTERS)
        return Listed(query, user.tenant, None if name is None else Owner(name, tenant=user.tenant))

    async def owner_for(self, request: Request, act: str, object_id: str, found: Owner | None) -> Owner | None:
        """Return the owner of an object for whom an operator may act; None if they may not know that it exists.

        The act is written before it is done, and as refused if there is nothing to do it with.

        Args:
            act, object_id: as in `admit`, which was called.
            found: the owner of the object; None if it does not exist.

        Raises:
            ApiError: 503, the store does not answer.
        """
        owner = found if found is not None and found.tenant == self._current_user().tenant else None
        write = self.refuse if owner is None else self.record
        await write(request, act, object_id, owner)
        return owner

    async def owner_of_response(self, request: Request, act: str, response_id: str, archive: Archive) -> Owner:
        """Return the owner of a response, stored or running, for whom the user of a request may act.

        Args:
            act: as in `admit`.
            archive: the stored responses.

        Raises:
            ApiError: as from `response_for`.
        """
        await self.admit(request, act, response_id)
        found = await archive.owner_of(check_response_id(response_id, "response_id"))
        owner = await self.owner_for(request, act, response_id, found)
        if owner is None:
            raise not_found(response_id)
        return owner

    async def response_for(self, request: Request, act: str, response_id: str, archive: Archive) -> tuple[Entry, int]:
        """Return a stored response for whose owner the user of a request may act, and the version of its record.

        Args:
            act: as in `admit`.
            archive: the stored responses.

        Raises:
            ApiError: as from `admit`; 400, the id is none; 404, there is no such response for operators of the tenant.
        """
        await self.admit(request, act, response_id)
        found = await archive.entry_version(check_response_id(response_id, "response_id"))
        owner = await self.owner_for(request, act, response_id, found[0].owner if found else None)
        if found is None or owner is None:
            raise not_found(response_id)
        return found

    async def record(self, request: Request, act: str, object_id: str = "", owner: Owner | None = None) -> None:
        """Write an act that is allowed, before it is done: without an entry, nothing is done.

        Args:
            act, object_id: as in `admit`.
            owner: the owner of the object.

        Raises:
            ApiError: 503, the store does not answer.
        """
        actor = self._actor(request)
        await self.log.write(Act(act, actor, "allowed", object_id, owner))

    async def refuse(self, request: Request, act: str, object_id: str = "", owner: Owner | None = None) -> None:
        """Write an act that is refused, unless too many of this user were written moments ago."""
        if self._refused.add(self._current_user().identity) <= _MAX_REFUSED:
            await self.log.write(Act(act, self._actor(request), "refused", object_id, owner))

    def _actor(self, request: Request) -> dict[str, object]:
        address = request.client.host if request.client else ""
        claimed, agent = (_header(request, name) for name in ("x-forwarded-for", "user-agent"))
        return dict(user_actor(self._current_user(), address, claimed, agent))


def _header(request: Request, name: str) -> str:
    return request.headers.get(name, "")[:_HEADER_CHARACTERS]
