"""The links to a response, and the tokens that are in them.

A token is a seal of the server, which only servers of this store make and open; nothing of it is stored. The row
`sl/<response>` has the links that were made and not revoked, so that a token alone is not enough. The row is deleted
with its response, and expires with the last link.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from ....core.errors import ApiError, bad_request
from ....core.ids import new_id
from ....core.owner import Owner
from ....core.types import Json
from ....sealing.sealer import Sealer, Unopened
from ....store import codec
from ....store.conflict_retry import ConflictRetry
from ....store.layout import Entry, links_of
from ....store.records import Delete, Put, Records, VersionIs, committed

_PURPOSE: Final = "shared link"
_EVERYONE: Final = Owner()
"""Whose token it is: whoever has it opens it."""
_TOKEN_CHARACTERS: Final = 512
_MAX_LINKS: Final = 20
"""Links of a response that hold at a time."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to a response.

    Attributes:
        id: its id, which is no secret.
        by: the name of the user who made it; empty without authentication.
        created_at, expires_at: in seconds since the epoch.
    """

    id: str
    by: str
    created_at: int
    expires_at: int

    def fields(self) -> Json:
        """Return the fields, as JSON."""
        return {"id": self.id, "by": self.by, "created_at": self.created_at, "expires_at": self.expires_at}


class Links:
    """Makes, finds and revokes the links of responses.

    Args:
        records: the store.
        sealer: seals the tokens.

    Every method raises `ApiError` 503 when the store is unavailable.
    """

    def __init__(self, records: Records, sealer: Sealer) -> None:
        self._records, self._sealer = records, sealer

    async def of(self, response_id: str) -> list[Link]:
        """Return the links of a response that hold, oldest first."""
        links, _ = await self._read(response_id)
        return _holding(links, await self._records.now())

    async def make(self, entry: Entry, version: int, by: str, seconds: int) -> tuple[Link, str] | None:
        """Make a link to a response.

        Args:
            entry, version: the response, and the version of its record.
            by: the name of the user who makes it.
            seconds: the time for which it holds.

        Returns:
            The link and its token; None if the response has changed meanwhile, or was deleted.

        Raises:
            ApiError: also 400, the response has many links.
        """
        await self._sealer.load()
        retry = ConflictRetry()
        while True:
            known, row = await self._read(entry.id)
            now = await self._records.now()
            links = _holding(known, now)
            if len(links) >= _MAX_LINKS:
                raise bad_request(f"The response has {_MAX_LINKS} links that hold: revoke them first.", "response_id")
            link = Link(new_id("link"), by, int(now), int(now) + seconds)
            links.append(link)
            value = codec.encode({"links": [each.fields() for each in links]})
            put = Put(links_of(entry.id), value, float(max(each.expires_at for each in links)))
            unchanged = [VersionIs(f"r/{entry.id}", version), VersionIs(links_of(entry.id), row)]
            if await committed(self._records, [put], unchanged):
                return link, self._token(entry.id, link)
            if (await self._read(entry.id))[1] == row:
                return None
            await retry.wait()

    async def revoke(self, response_id: str) -> None:
        """Revoke all links of a response."""
        await self._records.commit([Delete(links_of(response_id))])

    async def opened(self, token: str) -> tuple[str, Link]:
        """Return the id of the response to which a token leads, and its link.

        Raises:
            ApiError: also 404, the token is none of this server, has expired, or was revoked.
        """
        await self._sealer.load()
        try:
            if len(token) > _TOKEN_CHARACTERS:
                raise Unopened("It is too long.")
            sealed = orjson.loads(self._sealer.open(token, purpose=_PURPOSE, owner=_EVERYONE))
        except Unopened:
            raise invalid_link() from None
        if sealed["expires_at"] <= await self._records.now():
            raise ApiError(404, "This link has expired: ask for a new one.", code="link_expired")
        links, _ = await self._read(sealed["response"])
        link = next((each for each in links if each.id == sealed["link"]), None)
        if link is None:
            raise invalid_link()
        return str(sealed["response"]), link

    def _token(self, response_id: str, link: Link) -> str:
        value = {"response": response_id, "link": link.id, "expires_at": link.expires_at}
        return self._sealer.seal(orjson.dumps(value), purpose=_PURPOSE, owner=_EVERYONE)

    async def _read(self, response_id: str) -> tuple[list[Link], int | None]:
        """Return all links in the row of a response, and the version of the row; None if there is none."""
        key = links_of(response_id)
        record = (await self._records.get_many([key])).get(key)
        if record is None:
            return [], None
        return [Link(**codec.known(Link, each)) for each in codec.decode(record.value)["links"]], record.version


def _holding(links: Sequence[Link], now: float) -> list[Link]:
    return [each for each in links if each.expires_at > now]


def invalid_link() -> ApiError:
    """Return the 404 of a link that leads nowhere."""
    return ApiError(404, "This link does not lead to a response: it was revoked, or is not whole.", code="invalid_link")
