"""Counts what the inputs of running jobs hold in memory; a job whose input has no room waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ..admission import Admission, Quota, Reservation
from ..concurrency.fair_budget import FairBudget
from ..core.errors import ApiError
from ..core.owner import Owner
from ..inputs.history import Hold


class _NoRoom(Exception):  # noqa: N818 (the job waits)
    """The other jobs of the owner, or of all owners, hold too much."""


class HeldInputs:
    """The inputs of the jobs that one process runs.

    Args:
        quota: the limit in bytes. A larger input is admitted when the others of its owner hold nothing.
    """

    def __init__(self, quota: Quota) -> None:
        self._max_bytes = min(quota.per_user, quota.total)
        self._admission = Admission(quota)
        self._reading = FairBudget(1)

    def reserve(self, owner: Owner) -> Reservation:
        """Return an empty reservation for the input of a job. The caller must release it."""
        return self._admission.reserve(owner)

    async def read[Result](
        self, reservation: Reservation, read: Callable[[Hold], Awaitable[Result]], poll_seconds: float
    ) -> Result:
        """Return what `read` returns; wait before it while there is no room.

        Args:
            reservation: counts the bytes with which `read` calls its argument, before they are decoded.
            read: reads the input. Other inputs wait until it returns or fails, so it must not retry.
            poll_seconds: interval at which it is tried again while there is no room.
        """

        needed = 0

        def hold(size: int) -> None:
            nonlocal needed
            needed = max(needed, reservation.units + size)
            try:
                reservation.add(min(size, self._max_bytes - reservation.units))
            except ApiError as error:
                raise _NoRoom from error

        while True:
            # One at a time: two inputs that are read in part could wait for each other.
            async with self._reading.hold(1):
                try:
                    if needed:
                        # Not read again before there is room for what was read so far.
                        hold(needed)
                        reservation.release()
                    return await read(hold)
                except _NoRoom:
                    reservation.release()
                except ApiError:
                    # Nothing is held of what was read in part; a retry counts it again.
                    reservation.release()
                    raise
            await asyncio.sleep(poll_seconds)
