"""What a client's Idempotency-Key leads to.

    y/<name>    the response that was made under the key, and what was asked of it

A key is its owner's, and good for a day. Neither the key nor the request is kept: the row is named by a hash of the
key, and holds a MAC of the request under the key, which only the client knows.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Any, Final

from ..core.errors import ApiError
from ..core.owner import Owner
from ..store import codec
from ..store.hashing import Hasher
from ..store.records import Put, Records, VersionIs

Json = dict[str, Any]

_LIFE: Final = 86_400.0
"""Seconds for which a key leads to its response."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A request under a key.

    Attributes:
        row: the key's row, of which there is one however often the request is made.
        asked: the MAC of what is asked.
    """

    row: str
    asked: str

    @staticmethod
    def of(owner: Owner, key: str, body: Json) -> Claim:
        """The claim of a request's decoded JSON; the order of its fields does not count."""
        asked = hmac.new(key.encode(), codec.dumps(body, ordered=True), "sha256").hexdigest()
        return Claim(f"y/{Hasher(owner).key(key)}", asked)


class Keys:
    """Which response each key leads to.

    Args:
        records: where the rows are.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def find(self, claim: Claim) -> str | None:
        """The id of the response that was made under the key; None if the key is free.

        Raises:
            ApiError: 409, if something else was asked under the key.
        """
        record = (await self._records.get_many([claim.row])).get(claim.row)
        if record is None:
            return None
        known = codec.decode(record.value)
        if not hmac.compare_digest(known["asked"], claim.asked):
            raise ApiError(
                409,
                "This Idempotency-Key was used for another request within the last 24 hours. "
                "Send each new request with a key of its own.",
                code="idempotency_key_reused",
            )
        response_id: str = known["response"]
        return response_id

    async def take(self, claim: Claim, response_id: str) -> tuple[Put, VersionIs]:
        """What makes the key lead to a response, in the commit that stores it, and that the key is free until then."""
        value = codec.encode({"response": response_id, "asked": claim.asked})
        return Put(claim.row, value, await self._records.now() + _LIFE), VersionIs(claim.row, None)
