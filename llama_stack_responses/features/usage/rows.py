"""The rows of usage.

    us/p/<second>/<response>          what one response has used, until it is added to the tables; the second is that of
                                      its end, and all numbers in keys are hexadecimal
    us/<unit>/<start>/<part>          a table: what was used in one minute, hour or day of UTC by one part of the users.
                                      The start is a number of these units since the epoch
    us/s/<kind>/<day>                 what was used on a day that is over, by some of the dimensions; see `sums.py`
    us/c                              its version grows with each change of the tables

Users are divided into parts by a hash of their names, so that the tables of a day with many users are not one row, and
those of one user are found without the others. In a store with several partitions, all rows of a user are in the home
partition of the user, and end with its tag. Each partition has tables, sums and changes of its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from ...core.owner import Owner
from ...logs import get_logger
from ...store import codec
from ...store.content_names import Hasher, home_of
from ...store.layout import with_tag
from ...store.records import Records, VersionIs, replicated, server_of
from .counted import Counts, Dimensions, counted_identity

logger = get_logger(__name__)

PENDING: Final = "us/p/"
CHANGES: Final = "us/c"
PARTS: Final = 64
TAGGED_PARTS: Final = 1_024
"""Parts of the users of a store with several partitions: as many as it may have."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A length of time for which there are tables.

    Attributes:
        prefix: of the keys of its tables.
        seconds: its length.
        kept_days: days for which its tables are kept at most; None if there is no such bound.
    """

    prefix: str
    seconds: int
    kept_days: float | None = None

    def key(self, start: int, part: str) -> str:
        """Return the key of a table; `start` is in units since the epoch."""
        return f"{self.prefix}{start:08x}/{part}"

    def expires_at(self, start: int, retention_days: float | None) -> float | None:
        """Return when a table is kept no longer, in seconds since the epoch; None for never.

        Args:
            start: as for `key`.
            retention_days: days for which all tables are kept at most; None for ever.
        """
        days = [each for each in (self.kept_days, retention_days) if each is not None]
        return (start + 1) * self.seconds + min(days) * 86_400.0 if days else None

    def may_be_kept(self, start: int, now: float) -> bool:
        """Return whether there may still be a table, however long all tables are kept; `start` is as for `key`."""
        expires_at = self.expires_at(start, None)
        return expires_at is None or expires_at > now

    def start_of(self, key: str) -> int:
        """Return the start of the table with this key, in seconds since the epoch."""
        return int(key.removeprefix(self.prefix).partition("/")[0], 16) * self.seconds


MINUTES: Final = Unit("us/m/", 60, kept_days=3)
HOURS: Final = Unit("us/h/", 3600)
DAYS: Final = Unit("us/d/", 86_400)
UNITS: Final = (MINUTES, HOURS, DAYS)

type Table = dict[Dimensions, Counts]


class SumKind(NamedTuple):
    """Sums of days by some of the dimensions.

    Attributes:
        prefix: of their keys.
        without: the names of the dimensions that they lack, which are empty.
    """

    prefix: str
    without: frozenset[str]

    def key(self, day: int, partition: int = 0) -> str:
        """Return the key of the sums of a day, in days since the epoch, in a partition of the store."""
        return with_tag(f"{self.prefix}{day:08x}", partition)

    def day_of(self, key: str) -> int:
        """Return the day of the sums with this key."""
        return int(key.removeprefix(self.prefix)[:8], 16)

    def of(self, usage: Dimensions) -> Dimensions:
        """Return the dimensions under which usage is summed."""
        return usage._replace(**dict.fromkeys(self.without, ""))


SUMS: Final = (
    SumKind("us/s/m/", frozenset({"user", "key"})),
    SumKind("us/s/u/", frozenset({"key", "metadata"})),
)
"""The sums of each day: by model and metadata without the users, and by user."""


class Pending(NamedTuple):
    """What one response has used, before it is in the tables.

    Attributes:
        at: when it ended, in seconds since the epoch.
    """

    at: int
    dimensions: Dimensions
    counts: Counts


def pending_key(at: float, response_id: str, tag: int) -> str:
    """Return the key of what a response has used; the tag is that of its owner."""
    return with_tag(f"{pending_until(at)}{response_id}", tag)


def pending_until(at: float) -> str:
    """Return the key after those of all responses that ended before this second."""
    return f"{PENDING}{max(int(at), 0):08x}/"


def encode_pending(dimensions: Dimensions, counts: Counts) -> bytes:
    """Return the value of a row of what one response has used."""
    # The fast encoder knows no named tuples.
    return codec.encode_small([tuple(dimensions), counts])


def read_pending(key: str, value: bytes) -> Pending | None:
    """Return the row that `encode_pending` encoded; log and return None if it is damaged."""
    try:
        dimensions, counts = codec.decode(value)
    except codec.UnreadableError as error:
        logger.error("could not read what a response has used, it is not counted: %s: %s", key, error)
        return None
    return Pending(int(key.removeprefix(PENDING).partition("/")[0], 16), Dimensions(*dimensions), counts)


def part_of(tenant: str, user: str, tag: int) -> str:
    """Return the part of the users to which one belongs, given the tag of the rows of the user, or 0."""
    if tagged := tag % TAGGED_PARTS:
        return with_tag("00", tagged)
    return f"{crc32(f'{tenant}\0{user}'.encode('utf-8', 'surrogatepass')) % PARTS:02x}"


def parts_of(owner: Owner) -> dict[str, int]:
    """Return the parts in which a user's usage may be, with their tags: it may come from a store with one partition."""
    tags = (0, home_of(Hasher(owner).owner))
    return {part_of(*counted_identity(owner), tag): tag for tag in tags}


def changes_of(partition: int) -> str:
    """Return the key of the row whose version grows with each change of the tables in a partition of the store."""
    return with_tag(CHANGES, partition)


async def changed(records: Records, partition: int) -> int | None:
    """Return the version of that row; None if there is none."""
    key = changes_of(partition)
    found = (await records.get_many([key])).get(key)
    return found.version if found else None


async def read_unchanged[Found](
    records: Records, partition: int, read: Callable[[], Awaitable[Found]]
) -> tuple[Found, VersionIs]:
    """Return what is read of the tables in a partition, and the condition that they are still so.

    After a failover that has lost a change, another change may give them the version that was read. So a primary that
    dies meanwhile is noticed, and what is returned is not lost with one, where the store waits for replicas.

    Args:
        read: reads, several times if servers fail meanwhile.

    Raises:
        ApiError: 503, the store does not answer, or not enough replicas have it in time.
    """
    while True:
        server, version = server_of(records, partition), await changed(records, partition)
        found = await read()
        if server_of(records, partition) == server and await replicated(records, partition, server):
            return found, VersionIs(changes_of(partition), version)


def table_of(stored: Sequence[Sequence[Any]]) -> Table:
    """Return the table of a decoded row."""
    return {Dimensions(*dimensions): counts for dimensions, counts in stored}


def stored_table(table: Table) -> list[Any]:
    """Return what is encoded as the row of a table."""
    return [[tuple(dimensions), counts] for dimensions, counts in table.items()]
