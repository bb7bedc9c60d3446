"""Name resolution for URLs that users and models name, with a share for each user and a deadline.

The owner of a domain chooses how slowly it is resolved, and getaddrinfo(3) cannot be cancelled. The event loop resolves
names in a few threads that all its users share (uvloop has four), so foreign names there would delay connections to the
model servers and the store.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..concurrency.fair_budget import WAITING_PER_USER, FairBudget, QueueFull
from ..concurrency.offloading import in_own_thread
from ..concurrency.share import Share
from .address_policy import UrlRefused

LookUp = Callable[[str, int], Sequence[str]]
"""`(host, port) -> addresses`; blocks, and raises OSError if there are none."""


@dataclass(frozen=True, slots=True)
class LookupLimits:
    """Limits of name resolution.

    Attributes:
        concurrency: concurrent lookups, including those whose deadline has passed.
        concurrency_per_user: concurrent lookups of one authenticated user. Without authentication there is one user,
            who may use all.
        seconds: time limit of one lookup, including the time in the queue.
    """

    concurrency: int = 32
    concurrency_per_user: int = 4
    seconds: float = 10.0


def system_addresses(host: str, port: int) -> Sequence[str]:
    """Return the addresses that the system's resolver finds."""
    return [str(address[0]) for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


class Resolver:
    """Resolves names in its own threads. Users take turns.

    Args:
        limits: limits of the lookups.
        look_up: resolves one name.
    """

    def __init__(self, limits: LookupLimits, look_up: LookUp = system_addresses) -> None:
        self._limits = limits
        self._look_up = look_up
        self._queue = FairBudget(limits.concurrency, limits.concurrency_per_user, WAITING_PER_USER)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host.

        Raises:
            OSError: it has none.
            UrlRefused: they were not found in time, or too many lookups of this user wait.
        """
        try:
            async with asyncio.timeout(self._limits.seconds):
                share = await self._queue.enter()
                return await asyncio.shield(self._started(host, port, share))
        except TimeoutError:
            seconds = self._limits.seconds
            raise UrlRefused(f"The address of '{host}' was not found within {seconds:g} seconds.") from None
        except QueueFull:
            raise UrlRefused("Too many host names of your requests are being resolved. Try again later.") from None

    def _started(self, host: str, port: int, share: Share) -> asyncio.Future[Sequence[str]]:
        """Start a lookup. Its slot is given back when its thread ends, even if no caller waits for it any longer."""
        looking = asyncio.ensure_future(in_own_thread(partial(self._look_up, host, port)))

        def ended(_: object) -> None:
            self._queue.leave(share)
            if not looking.cancelled():
                looking.exception()  # otherwise asyncio reports an exception that the deadline preceded

        looking.add_done_callback(ended)
        return looking
