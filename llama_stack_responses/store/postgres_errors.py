"""Convert errors of a PostgreSQL server into API errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import asyncpg

from ..core.errors import ApiError
from .records import SILENT, UNREACHABLE, UNTRUSTED, NoRoom

_GONE: Final = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
)
"""Errors of a server that is unreachable or restarting."""


_REFUSED: Final = (ConnectionRefusedError, asyncpg.CannotConnectNowError, asyncpg.TooManyConnectionsError)
"""Errors that are raised before anything is sent."""


class Unreachable(ApiError):  # noqa: N818 - a kind of 503
    """The server is unreachable or closed the connection; a retry may help.

    Attributes:
        sent: whether the server may have received the command.
    """

    def __init__(self, *, sent: bool) -> None:
        super().__init__(503, UNREACHABLE, retry_after=1)
        self.sent = sent


class TimedOut(ApiError):  # noqa: N818 - a kind of 503
    """The server did not answer in time. It may have received the command. Not retried: the wait was long enough."""

    def __init__(self) -> None:
        super().__init__(503, SILENT, retry_after=1)


@contextmanager
def errors_as_503() -> Iterator[None]:
    """Convert errors of the server or the network into a 503.

    Raises:
        Unreachable: a retry may help.
    """
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise ApiError(503, UNTRUSTED, retry_after=1) from error
    except TimeoutError as error:
        raise TimedOut from error
    except _GONE as error:
        raise Unreachable(sent=not isinstance(error, _REFUSED)) from error
    except asyncpg.PostgresError as error:
        kind = NoRoom if isinstance(error, asyncpg.DiskFullError) else ApiError
        raise kind(503, _sentence(error), retry_after=1) from error


def _sentence(error: asyncpg.PostgresError) -> str:
    """Describe the error without details that may contain the server's address or password."""
    for kind, sentence in _REFUSALS.items():
        if isinstance(error, kind):
            return sentence
    return f"The response store's server refused a command ({type(error).__name__})."


_DROPPED: Final = (
    "The response store's schema is no longer in its database: restore it, or restart the servers to create an empty "
    "one."
)

_REFUSALS: Final[dict[type[asyncpg.PostgresError], str]] = {
    asyncpg.DiskFullError: "The response store has no room left: its server's disk is full.",
    asyncpg.OutOfMemoryError: "The response store's server has no memory left.",
    asyncpg.InvalidPasswordError: "The response store's server does not accept the password, or requires one.",
    asyncpg.InvalidAuthorizationSpecificationError: "The response store's server does not accept the store's user.",
    asyncpg.InvalidCatalogNameError: "The response store's database does not exist on its server.",
    asyncpg.InsufficientPrivilegeError: "The response store's user is not allowed to use, create or change its tables.",
    asyncpg.ReadOnlySQLTransactionError: "The response store's server is a read-only replica.",
    asyncpg.InvalidSchemaNameError: _DROPPED,
    asyncpg.UndefinedTableError: _DROPPED,
    asyncpg.UndefinedFunctionError: _DROPPED,
}
