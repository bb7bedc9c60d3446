"""Failures of requests to an MCP server."""

from __future__ import annotations

from typing import Final

from ...core.types import Json

BAD_GATEWAY: Final = 502
GATEWAY_TIMEOUT: Final = 504
REFUSED: Final = frozenset({401, 403})
"""HTTP statuses for missing or rejected credentials."""


class Failure(Exception):  # noqa: N818 (it is one of the expected results)
    """A failed request.

    Args:
        status: the HTTP status of the server, or the one that a gateway would return.
        message: sent to the client and the model.
        error: the server's JSON-RPC `error`; None if it sent none.
    """

    def __init__(self, status: int, message: str, error: Json | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.error = error


class BrokenConnection(Failure):
    """A broken connection; a stream may be resumed."""


def too_large() -> Failure:
    """Create the failure for an answer, message or session over its size limit."""
    return Failure(BAD_GATEWAY, "The server's answer is larger than this server allows.")


def no_protocol(error: Json | None = None) -> Failure:
    """Create the failure for an answer that is not valid JSON-RPC, or not to this request."""
    return Failure(BAD_GATEWAY, "The server's answer does not follow the protocol.", error)
