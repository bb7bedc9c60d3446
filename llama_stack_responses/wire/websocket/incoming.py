"""A WebSocket below ASGI: messages that have arrived and count for the user, and messages that are sent at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, Protocol, cast

from starlette.types import Scope

from ...admission import Reservation

INCOMING: Final = "llama_stack_responses.incoming"
"""Key of the incoming data in the scope of a WebSocket whose server counts them."""


class Incoming(Protocol):
    """The data of one connection."""

    def count_for(self, user: Hashable, reservation: Reservation, seconds: float) -> None:
        """Count the data for a user from now on.

        Args:
            user: with whom other connections take turns.
            reservation: counts the bytes of messages until the connection's handler has received them.
            seconds: time limit for a message that arrives more slowly than 16 KiB a second.
        """
        ...

    def write(self, messages: Sequence[bytes]) -> bool:
        """Send text messages without waiting; return False if the client does not read, or the connection ends."""
        ...

    async def drained(self) -> None:
        """Wait until the client has read most of the sent data."""
        ...


def incoming_of(scope: Scope) -> Incoming | None:
    """Return the incoming data of a connection; None if its server does not count them."""
    return cast("Incoming | None", scope.get(INCOMING))
