"""When the certificates end: those of files, and those that servers present."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509

from ..concurrency.offloading import in_thread
from ..config.stores import ClusterStore, PostgresStore, RedisStore, Store
from ..intervals import Intervals
from ..logs import get_logger
from .periodic import Periodic

logger = get_logger(__name__)

_DAY_SECONDS: Final = 86_400.0

type End = Callable[[], Awaitable[float]]
"""Returns when a certificate ends, in seconds since the epoch.

Raises:
    OSError: the file or the server cannot be read; TimeoutError and TLS errors belong to it.
    ValueError: it is no certificate.
    EOFError: the server closed the connection.
"""

_SECONDS: Final = 10.0
"""Time for the answer of a server."""

_MAX_BYTES: Final = 2**20
_SSL_REQUEST: Final = (8).to_bytes(4) + (80877103).to_bytes(4)
"""The message by which a client of PostgreSQL asks for TLS."""

_IN_FILES: Final = ("ssl_certfile", "ssl_ca_certs", "sslcert", "sslrootcert")
"""The parameters of a store's address that name files with certificates."""

_PORTS: Final = {"rediss": 6379, "rediss+sentinel": 26379, "postgresql": 5432, "postgres": 5432}


def watched(places: Sequence[str], store: Store) -> dict[str, End]:
    """Return what reads the certificates of these places and of the store, by their names.

    Args:
        places: absolute paths of files, and `HOST:PORT` of servers with TLS.
        store: with TLS, the certificates that its servers present, and the files that its address names.
    """
    found: dict[str, End] = {}
    for place in places:
        host, _, port = place.rpartition(":")
        found[place] = partial(_of_file, Path(place)) if place.startswith("/") else partial(_of_server, host, int(port))
    return found | dict(_of_store(store))


def _of_store(store: Store) -> Iterator[tuple[str, End]]:
    if not isinstance(store, RedisStore | ClusterStore | PostgresStore):
        return
    parts = urlsplit(store.url)
    query = parse_qs(parts.query)
    for path in (path for name in _IN_FILES for path in query.get(name, ())):
        yield path, partial(_of_file, Path(path))
    asks = isinstance(store, PostgresStore)
    if (
        query.get("sslmode", [""])[0] in ("require", "verify-ca", "verify-full")
        if asks
        else parts.scheme[:6] == "rediss"
    ):
        for node in parts.netloc.rpartition("@")[2].split(","):
            address = urlsplit(f"//{node}")
            host, port = address.hostname or "", address.port or _PORTS[parts.scheme]
            yield f"store {host}:{port}", partial(_of_server, host, port, asks=asks)


async def _of_file(path: Path) -> float:
    """Return when the first of the certificates of a PEM file ends."""

    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES)

    found = x509.load_pem_x509_certificates(await in_thread(read))
    return min(each.not_valid_after_utc.timestamp() for each in found)


async def _of_server(host: str, port: int, *, asks: bool = False) -> float:
    """Return when the certificate ends that a server presents.

    Args:
        asks: whether its clients ask for TLS first, as PostgreSQL's do.
    """
    # One that has ended, or is not trusted here, is read all the same. Nothing is sent to the server.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(_SECONDS):
        reader, writer = await asyncio.open_connection(
            host, port, ssl=None if asks else context, server_hostname=None if asks else host
        )
        try:
            if asks:
                writer.write(_SSL_REQUEST)
                if await reader.readexactly(1) != b"S":
                    raise ValueError("the server has no TLS")
                await writer.start_tls(context, server_hostname=host)
            presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
    return x509.load_der_x509_certificate(presented).not_valid_after_utc.timestamp()


class CertificateCheck(Periodic):
    """Reads certificates at intervals, and logs once a day which of them end soon.

    Args:
        certificates: by name, what reads when a certificate ends.
        warning_days: days before its end from which on a certificate is logged.
        intervals: how often to read them.
        clock: returns seconds since the epoch.
    """

    def __init__(
        self,
        certificates: Mapping[str, End],
        warning_days: float,
        intervals: Intervals,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(self.check, "could not check the certificates", logger, intervals.certificate_check_seconds)
        self._certificates = certificates
        self._warning_days = warning_days
        self._clock = clock
        self._ends: dict[str, float] = {}
        self._logged: dict[str, object] = {}

    def remaining(self) -> dict[str, float]:
        """Return by name the seconds until each certificate ends, negative afterwards; callable in any thread."""
        now = self._clock()
        return {name: end - now for name, end in list(self._ends.items())}

    async def check(self) -> None:
        """Read all of them once, and log what is new."""
        for name, end in self._certificates.items():
            try:
                self._ends[name] = await end()
            except (OSError, ValueError, EOFError) as error:
                reason = type(error).__name__
                if self._is_new(name, reason):
                    logger.warning("could not read a certificate: %s: %s", name, reason)
            else:
                self._log(name, int(self.remaining()[name] // _DAY_SECONDS))

    def _log(self, name: str, days: int) -> None:
        """Log how many whole days a certificate is still valid, if there are few."""
        if not self._is_new(name, days):
            return
        if days < 0:
            logger.error("a certificate has ended: %s", name)
        elif days < self._warning_days:
            logger.warning("a certificate ends soon: %s, in %d days", name, days)

    def _is_new(self, name: str, found: object) -> bool:
        """Note what was found; return whether it differs from what was found before."""
        before = self._logged.get(name)
        self._logged[name] = found
        return found != before
