"""When a certificate ends: that of a file, or the one that a server presents."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

from cryptography import x509

from ..concurrency.offloading import in_thread
from ..config.stores import PostgresStore, RedisStore, Store

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
    if not isinstance(store, RedisStore | PostgresStore):
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
