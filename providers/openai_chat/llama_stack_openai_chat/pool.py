"""The pool of connections to the model server."""

from __future__ import annotations

import asyncio
import base64
import ssl
from contextvars import Context
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from .config import Network, OpenAIChatConfig, Tls
from .connection import Connection

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_PORTS: Final = {"http": 80, "https": 443}

_MAX_IDLE: Final = 256
"""Maximum number of idle connections; a burst of requests would leave one of each."""


class Pool:
    """A pool of keep-alive connections in one event loop.

    The host initialises its providers in an event loop that ends before the serving one begins. So no connection is
    opened before the first request, and connections of another loop are dropped.

    Args:
        config: the server's address and network settings.
    """

    def __init__(self, config: OpenAIChatConfig) -> None:
        self._network = config.network
        self._server = urlsplit(config.base_url)
        self._tls = tls_context(config.network.tls) if self._server.scheme == "https" else None
        self._proxy = proxy_of(config.network, self._server)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: list[tuple[Connection, float]] = []

    @property
    def prefix(self) -> str:
        """The prefix of request targets: a plain HTTP proxy requires the absolute form."""
        return f"http://{self._server.netloc}" if self._proxy and not self._tls else ""

    @property
    def proxy_authorization(self) -> str | None:
        """The `proxy-authorization` header for a plain HTTP proxy."""
        return _authorization(self._proxy) if self._proxy and not self._tls else None

    def reuse(self) -> Connection | None:
        """Return the most recently used idle connection; None if there is none."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._idle = loop, []
        while self._idle:
            connection, _ = self._idle.pop()
            if not connection.closed:
                return connection
        return None

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool after its response; close it if it cannot be reused."""
        loop = asyncio.get_running_loop()
        if not connection.finish():
            return
        if len(self._idle) >= _MAX_IDLE:
            connection.close()
            return
        self._idle.append((connection, loop.time() + self._network.idle_seconds))
        if len(self._idle) == 1:
            loop.call_later(self._network.idle_seconds, self._sweep, context=Context())

    async def connect(self) -> Connection:
        """Open a new connection.

        Raises:
            TimeoutError: it took too long.
            OSError: it failed.
        """
        # The transport holds the context that it is opened in, and a request's context has the data of its user.
        opening = asyncio.create_task(self._open(), context=Context())
        try:
            return await opening
        except asyncio.CancelledError:
            if opening.done() and not opening.cancelled() and not opening.exception():
                opening.result().close()
            raise

    def close(self) -> None:
        """Close the idle connections."""
        idle, self._idle = self._idle, []
        if self._loop is not None and not self._loop.is_closed():
            for connection, _ in idle:
                connection.close()

    def _sweep(self) -> None:
        """Close connections that have been idle for too long; the oldest come first."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._idle and (self._idle[0][1] <= now or self._idle[0][0].closed):
            self._idle.pop(0)[0].close()
        if self._idle:
            loop.call_later(self._idle[0][1] - now, self._sweep)

    async def _open(self) -> Connection:
        async with asyncio.timeout(self._network.timeout.connect):
            if self._proxy and self._tls:
                return await self._through_tunnel(self._proxy)
            nearest = self._proxy or self._server
            return await self._to(nearest, self._tls)

    async def _to(self, address: SplitResult, tls: ssl.SSLContext | None) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._network.timeout.read),
            address.hostname or "",
            address.port or _PORTS[address.scheme],
            ssl=tls,
        )
        return connection

    async def _through_tunnel(self, proxy: SplitResult) -> Connection:
        """Open a TLS connection through a tunnel, whose content the proxy cannot read."""
        assert self._tls
        outer = await self._to(proxy, None)
        target = f"{self._server.hostname}:{self._server.port or _PORTS['https']}"
        try:
            return await outer.tunnel(target, _authorization(proxy), self._tls, self._server.hostname or "")
        except BaseException:
            outer.close()
            raise


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Create the TLS context."""
    context = ssl.create_default_context(cafile=str(tls.verify) if isinstance(tls.verify, Path) else None)
    context.minimum_version = _VERSIONS[tls.min_version]
    if tls.ciphers:
        context.set_ciphers(":".join(tls.ciphers))
    if tls.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert and tls.client_key:
        context.load_cert_chain(tls.client_cert, tls.client_key)
    return context


def proxy_of(network: Network, server: SplitResult) -> SplitResult | None:
    """Return the proxy, if any.

    Raises:
        ValueError: its kind is not supported.
    """
    url: str | None
    if network.proxy:
        url = network.proxy.url
    else:
        proxies = getproxies()
        url = None if proxy_bypass(server.netloc) else proxies.get(server.scheme) or proxies.get("all")
    if url is None:
        return None
    # In the environment it may be just HOST:PORT.
    proxy = urlsplit(url if "://" in url else f"http://{url}")
    if proxy.scheme != "http" or not proxy.hostname:
        raise ValueError("A proxy to the model server must have the form http://HOST:PORT.")
    return proxy


def _authorization(proxy: SplitResult) -> str | None:
    if proxy.username is None:
        return None
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"
