"""How a request to an MCP server fails."""

from __future__ import annotations

from typing import Any, Final

Json = dict[str, Any]

BAD_GATEWAY: Final = 502
GATEWAY_TIMEOUT: Final = 504
REFUSED: Final = frozenset({401, 403})
"""What a server answers that refuses the credentials, or wants some."""


class Failure(Exception):  # noqa: N818 (it is an answer as good as any)
    """A request that failed.

    Args:
        status: the HTTP status, or the one that a gateway would give.
        message: for the client and the model.
        error: what the server said of it, as JSON-RPC's `error`; None if it does not speak that.
    """

    def __init__(self, status: int, message: str, error: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error = error


class Broken(Failure):
    """A connection that broke: a stream may be taken up again."""


def too_large() -> Failure:
    """An answer, a message or a session that is over its bound."""
    return Failure(BAD_GATEWAY, "The server's answer is larger than this server takes.")


def no_protocol(error: Json | None = None) -> Failure:
    """An answer that is no JSON-RPC, or none to the request."""
    return Failure(BAD_GATEWAY, "The server's answer is not what the protocol says.", error)
