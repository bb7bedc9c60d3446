"""What has arrived on a WebSocket and is not yet handled: it counts for the user of the connection."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Protocol, cast

from starlette.types import Scope

from llama_stack_responses.admission import Reservation

INCOMING: Final = "llama_stack_responses.incoming"
"""Key of the incoming data in the scope of a WebSocket whose server counts them."""


class Incoming(Protocol):
    """The data of one connection."""

    def count_for(self, user: Hashable, lease: Reservation, seconds: float) -> None:
        """Count the data for a user from now on.

        Args:
            user: with whom other connections take turns.
            lease: counts the bytes of messages until the connection's handler has received them.
            seconds: time limit for a message that arrives more slowly than 16 KiB a second.
        """
        ...

    async def drained(self) -> None:
        """Wait until the client has read most of the sent data."""
        ...


def incoming_of(scope: Scope) -> Incoming | None:
    """Return the incoming data of a connection; None if its server does not count them."""
    return cast("Incoming | None", scope.get(INCOMING))
