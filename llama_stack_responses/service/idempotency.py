"""Idempotency keys: a retried request with the same Idempotency-Key gets the same response or batch.

    y/<name>          the id of the response or batch that was created with the key, and a MAC of its request
    y/<name>/<tag>    the same, in the partition of what the request continues, if there are several

A key belongs to its owner and is valid for a day. Neither the key nor the request is stored: the row is named by a hash
of the key, and the MAC of the request is computed with the key, which only the client knows.
"""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass
from typing import Final

from ..concurrency.offloading import INLINE_BYTES
from ..core.errors import ApiError
from ..core.json_blocks import ordered_blocks, ordered_dumps
from ..core.json_values import is_large
from ..core.owner import Owner
from ..core.types import Json
from ..store import codec
from ..store.content_names import Hasher
from ..store.placement import ONE_PARTITION, Placement
from ..store.records import Put, Records, VersionIs, read_replicated

_LIFETIME_SECONDS: Final = 86_400.0
"""Seconds for which a key is valid."""


@dataclass(frozen=True, slots=True)
class IdempotencyClaim:
    """A request with an Idempotency-Key.

    Attributes:
        row: the row that the commit of the response writes, the same for all requests with the key that continue the
            same.
        asked: the MAC of the request.
        name: the key's row in the store, the same for all requests with the key; it is written with the other one.
        tag: the tag of the response.
    """

    row: str
    asked: str
    name: str
    tag: int = 0

    @staticmethod
    def of(
        owner: Owner, key: str, body: Json, placement: Placement = ONE_PARTITION, tag: int | None = None
    ) -> IdempotencyClaim:
        """Return the claim of a request's decoded JSON; the order of its fields does not matter.

        For a large request this takes long, and belongs in a thread.

        Args:
            tag: the tag of what the request continues; None if the key chooses that of the response.
        """
        mac, name = _mac(key, body), Hasher(owner).key(key)
        row = f"y/{name}"
        if tag is None:
            return IdempotencyClaim(row, mac, row, placement.of_key(name))
        return IdempotencyClaim(row if placement.partitions == 1 else f"{row}/{tag:03x}", mac, row, tag)


def _mac(key: str, body: Json) -> str:
    if not is_large(body, INLINE_BYTES):
        return hmac.new(key.encode(), ordered_dumps(body), "sha256").hexdigest()
    mac = hmac.new(key.encode(), digestmod="sha256")
    for block in ordered_blocks(body):
        mac.update(block)
        time.sleep(0)  # The event loop may run.
    return mac.hexdigest()


class IdempotencyKeys:
    """The stored keys and their responses.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records

    async def find(self, claim: IdempotencyClaim) -> str | None:
        """Return the id of the response that was created with the key; None if the key is free.

        Raises:
            ApiError: 409, the key was used for another request.
        """
        rows = list(dict.fromkeys([claim.row, claim.name]))
        # A key that a primary has alone may be lost, with its response: then it is free.
        found = await read_replicated(self._records, claim.tag, lambda: self._records.get_many(rows), bool)
        record = found.get(claim.row) or found.get(claim.name)
        if record is None:
            return None
        known = codec.decode(record.value)
        if not hmac.compare_digest(known["asked"], claim.asked):
            raise ApiError(
                409,
                "This Idempotency-Key was used for another request within the last 24 hours. "
                "Send each new request with a new key.",
                code="idempotency_key_reused",
            )
        response_id: str = known["response"]
        return response_id

    async def claim_ops(self, claim: IdempotencyClaim, response_id: str) -> tuple[list[Put], VersionIs]:
        """Return the ops that store the key with its response, and the condition that the key is free.

        They belong to the commit that stores the response.
        """
        value = codec.encode({"response": response_id, "asked": claim.asked})
        ends = await self._records.now() + _LIFETIME_SECONDS
        rows = dict.fromkeys([claim.row, claim.name])
        return [Put(row, value, ends) for row in rows], VersionIs(claim.row, None)
