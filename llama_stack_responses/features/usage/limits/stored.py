"""Limits on stored bytes: what is stored of each user, team and key, as the last recount and the servers have counted.

The row `ub/<hash of user, team or key>` has the bytes of the last recount, and those that servers have added since.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import batched
from typing import Any, Final

from ....core.errors import ApiError
from ....core.json_values import bytes_left
from ....core.lru_cache import LruCache
from ....generation.dependencies import PlainRequest
from ....requests.request import CreateRequest
from ....store import codec
from ....store.conflict_retry import ConflictRetry
from ....store.content_names import row_key
from ....store.records import Put, Record, Records, VersionIs, committed
from ..settings import Limit

PREFIX: Final = "ub/"
_KNOWN: Final = 20_000
"""Users, teams and keys of which a server knows what is stored."""
_AT_ONCE: Final = 500
_MAX_ADDED: Final = 2**20
"""Maximum size, in bytes, with which a request or response counts until the next recount."""


def row_of(by: str, name: str) -> str:
    """Return the key of the row of a user, team or key."""
    return row_key(PREFIX, f"{by} {name}")


@dataclass(frozen=True, slots=True)
class Row:
    """A row.

    Attributes:
        counted: the bytes that the last recount has found.
        added: the bytes that were stored since.
    """

    counted: int = 0
    added: int = 0

    def encode(self) -> bytes:
        """Return the record's value."""
        return codec.encode([self.counted, self.added], small=True)

    @staticmethod
    def of(record: Record | None) -> Row:
        """Decode the result of `encode`; without a record, nothing is stored."""
        return Row(*codec.decode(record.value)) if record else Row()


class Stored:
    """What is stored of one user, team or key, as far as a server knows.

    Attributes:
        shared: the bytes of the row.
        own: bytes that this server has not added to the row yet.
    """

    __slots__ = ("own", "shared")

    def __init__(self, shared: int) -> None:
        self.shared, self.own = shared, 0

    @property
    def size(self) -> int:
        """The bytes."""
        return self.shared + self.own


class StoredQuota:
    """Knows what is stored without a call of the store for each request.

    Args:
        records: the store.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._known: LruCache[str, Stored] = LruCache(_KNOWN)
        self._changed: dict[str, Stored] = {}

    async def of(self, key: str) -> Stored:
        """Return what is stored, given the key of a row; only the first call of each asks the store.

        Raises:
            ApiError: 503, the store does not answer.
        """
        stored = self._known.get(key)
        if stored is None:
            row = Row.of((await self._records.get_many([key])).get(key))
            stored = self._known.get(key) or Stored(row.counted + row.added)
            self._known.set(key, stored)
        self._changed[key] = stored
        return stored

    def add(self, key: str, value: Any) -> None:
        """Count a JSON value as stored, given the key of a row."""
        stored = self._known.get(key)
        if stored is None:
            stored = Stored(0)
            self._known.set(key, stored)
        stored.own += _MAX_ADDED - max(0, bytes_left(value, _MAX_ADDED))
        self._changed[key] = stored

    async def settle(self) -> None:
        """Add what this server has stored to the rows, and read what others have, of those that were used.

        Raises:
            ApiError: 503, the store does not answer.
        """
        for keys in batched(list(self._changed), _AT_ONCE):
            rows = await self._records.get_many(keys)
            for key in keys:
                stored = self._changed[key]
                await self._share(key, stored, rows.get(key))
                if not stored.own:
                    del self._changed[key]

    async def _share(self, key: str, stored: Stored, record: Record | None) -> None:
        retry, own, row = ConflictRetry(), stored.own, Row.of(record)
        while own:
            await retry.wait()
            changed = Row(row.counted, row.added + own)
            if await committed(
                self._records, [Put(key, changed.encode())], [VersionIs(key, record.version if record else None)]
            ):
                row = changed
                break
            record = (await self._records.get_many([key])).get(key)
            row = Row.of(record)
        stored.own -= own
        stored.shared = row.counted + row.added


def is_stored(request: CreateRequest | PlainRequest) -> bool:
    """Return whether a request stores something."""
    return bool(request.store or request.background or request.conversation)


def refusal(limit: Limit, size: int) -> ApiError:
    """Return the error of a request that is refused."""
    message = (
        f"The limit 'stored_bytes' of {limit.whose} is reached: {size} bytes are stored, {limit.stored_bytes} are "
        "allowed. Delete responses or conversations, which counts after the next recount, wait until they expire, or "
        "send 'store': false."
    )
    final = {"x-should-retry": "false"}
    return ApiError(429, message, type="insufficient_quota", code="insufficient_quota", headers=final)
