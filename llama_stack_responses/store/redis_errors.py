"""Convert errors of a Redis server into API errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from ..core.errors import ApiError
from .records import NO_PRIMARY, NO_SENTINEL, SILENT, UNREACHABLE, UNTRUSTED, NoRoom
from .redis_tls import UnreadableCertificatesError

MOVING: Final = "The response store's cluster is moving these responses to another node."
_OF_MOVING: Final = ("a non local key in a cluster node", "undeclared keys were accessed during rehashing")
_IS_CLUSTER: Final = "The response store's server is part of a cluster: set the store's type to 'cluster'."
_UNREADABLE: Final = (
    "The certificates for the response store's server cannot be read: check the files that the store's url names "
    "(ssl_ca_certs, ssl_certfile, ssl_keyfile)."
)
_NO_TLS: Final = (
    "No TLS connection to the response store's server can be made: check that it has TLS at this port, and whether it "
    "requires a client certificate (ssl_certfile and ssl_keyfile in the store's url)."
)
_REFUSED: Final = "The response store's server refused a command."
_REFUSALS: Final = {
    "MISCONF": "The response store's server cannot write to its disk.",
    "cluster support disabled": "The response store's server is no cluster: set the store's type to 'redis'.",
    **dict.fromkeys(_OF_MOVING, MOVING),
}
"""What a server means by an error with a text."""


class NoAnswer(ApiError):  # noqa: N818 - a kind of 503
    """The server is unreachable, closed the connection or did not answer. It may have received the command."""


@contextmanager
def errors_as_503() -> Iterator[None]:
    """Convert errors of the server or the network into a 503.

    Raises:
        NoAnswer: no answer came.
        NoRoom: the server is full.
    """
    try:
        yield
    except RedisError as error:
        raise _kind(error)(503, _sentence(error), retry_after=1) from error


def _kind(error: RedisError) -> type[ApiError]:
    if isinstance(error, (RedisConnectionError, RedisTimeoutError)):
        return NoAnswer
    return NoRoom if isinstance(error, OutOfMemoryError) else ApiError


def is_moving(error: RedisError) -> bool:
    """Return whether a script met a row that has moved to another node already: its slot is on the way there."""
    return isinstance(error, ResponseError) and any(part in str(error) for part in _OF_MOVING)


def _sentence(error: RedisError) -> str:
    """Describe the error without details that may contain the server's address or password."""
    for kind, sentence in _TLS_TROUBLE.items():
        if isinstance(error.__context__, kind):
            return sentence
    if isinstance(error, MasterNotFoundError):
        return _of_sentinels(str(error))
    for kind, sentence in _TROUBLE.items():
        if isinstance(error, kind):
            return sentence
    if isinstance(error, ResponseError):
        told = str(error)
        return next((sentence for part, sentence in _REFUSALS.items() if part in told), _REFUSED)
    return UNREACHABLE


def _of_sentinels(answers: str) -> str:
    """Describe why no Sentinel named a primary, by the kinds of their errors, which are all that is known of them."""
    if "AuthenticationError" in answers:
        return "The response store's Sentinels do not accept the password, or require one: set 'sentinel_password'."
    return NO_SENTINEL


_TLS_TROUBLE: Final[dict[type[Exception], str]] = {
    UnreadableCertificatesError: _UNREADABLE,
    ssl.SSLCertVerificationError: UNTRUSTED,
    ssl.SSLEOFError: UNREACHABLE,
    ssl.SSLError: _NO_TLS,
}
"""By the error that the `redis` package had."""

_TROUBLE: Final[dict[type[RedisError], str]] = {
    AuthenticationError: "The response store's server does not accept the password, or requires one.",
    ClusterDownError: NO_PRIMARY,
    ClusterCrossSlotError: _IS_CLUSTER,
    MovedError: _IS_CLUSTER,
    AskError: MOVING,
    TryAgainError: MOVING,
    BusyLoadingError: "The response store's server is still loading its data.",
    NoPermissionError: "The response store's user is not allowed to run scripts on these keys, or to listen to these "
    "channels.",
    OutOfMemoryError: "The response store has no room left: its server is at its memory limit.",
    ReadOnlyError: "The response store's server is a read-only replica.",
    RedisTimeoutError: SILENT,
}
