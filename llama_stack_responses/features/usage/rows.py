"""The rows of usage.

    us/p/<second>/<response>          what one response has used, until it is added to the tables; the second is that of
                                      its end, and all numbers in keys are hexadecimal
    us/<unit>/<start>/<part>          a table: what was used in one minute, hour or day of UTC by one part of the users.
                                      The start is a number of these units since the epoch
    us/s/<kind>/<day>                 what was used on a day that is over, by some of the dimensions; see `sums.py`
    us/c                              its version grows with each change of the tables

Users are divided into parts by a hash of their names, so that the tables of a day with many users are not one row, and
those of one user are found without the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from zlib import crc32

from ...logs import get_logger
from ...store import codec
from .counted import Counts, Dimensions

logger = get_logger(__name__)

PENDING: Final = "us/p/"
CHANGES: Final = "us/c"
PARTS: Final = 64


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

    def key(self, start: int, part: int) -> str:
        """Return the key of a table; `start` is in units since the epoch."""
        return f"{self.prefix}{start:08x}/{part:02x}"

    def expires_at(self, start: int, retention_days: float | None) -> float | None:
        """Return when a table is kept no longer, in seconds since the epoch; None for never.

        Args:
            start: as for `key`.
            retention_days: days for which all tables are kept at most; None for ever.
        """
        days = [each for each in (self.kept_days, retention_days) if each is not None]
        return (start + 1) * self.seconds + min(days) * 86_400.0 if days else None

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

    def key(self, day: int) -> str:
        """Return the key of the sums of a day, in days since the epoch."""
        return f"{self.prefix}{day:08x}"

    def day_of(self, key: str) -> int:
        """Return the day of the sums with this key."""
        return int(key.removeprefix(self.prefix), 16)

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


def pending_key(at: float, response_id: str) -> str:
    """Return the key of what a response has used."""
    return f"{pending_until(at)}{response_id}"


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


def part_of(tenant: str, user: str) -> int:
    """Return the part of the users to which one belongs."""
    return crc32(f"{tenant}\0{user}".encode("utf-8", "surrogatepass")) % PARTS


def table_of(stored: Sequence[Sequence[Any]]) -> Table:
    """Return the table of a decoded row."""
    return {Dimensions(*dimensions): counts for dimensions, counts in stored}


def stored_table(table: Table) -> list[Any]:
    """Return what is encoded as the row of a table."""
    return [[tuple(dimensions), counts] for dimensions, counts in table.items()]
