"""The connections to the model server."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx2

from .config import Network, OpenAIChatConfig, Tls

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Pool:
    """Connections that are kept from request to request, all of one event loop.

    The host initialises its providers in a loop that ends before the one that serves begins, so the first request
    makes them; should the loop change after that, so do they.
    """

    def __init__(self, config: OpenAIChatConfig) -> None:
        self._network = config.network
        self._tls = tls_context(config.network.tls) if config.base_url.startswith("https:") else False
        self._proxy = proxy_url(config.network, config.base_url)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._kept: httpx2.AsyncHTTPTransport | None = None

    @property
    def transport(self) -> httpx2.AsyncHTTPTransport:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        if self._kept is None or self._loop is not loop:
            self._kept, self._loop = self.another(), loop
        return self._kept

    def another(self) -> httpx2.AsyncHTTPTransport:
        """One for a single use, to be closed after it."""
        limits = httpx2.Limits(
            max_connections=None, max_keepalive_connections=None, keepalive_expiry=self._network.idle_seconds
        )
        return httpx2.AsyncHTTPTransport(verify=self._tls, trust_env=False, limits=limits, proxy=self._proxy)

    async def close(self) -> None:
        """Closes what the running loop has."""
        if self._kept is not None and self._loop is asyncio.get_running_loop():
            await self._kept.aclose()
        self._kept = None


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What TLS connections are made with."""
    context = ssl.create_default_context(cafile=str(tls.verify) if isinstance(tls.verify, Path) else None)
    context.minimum_version = _VERSIONS[tls.min_version]
    if tls.verify is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.client_cert and tls.client_key:
        context.load_cert_chain(tls.client_cert, tls.client_key)
    return context


def proxy_url(network: Network, base_url: str) -> str | None:
    """The proxy between, if there is one."""
    if network.proxy:
        return network.proxy.url
    address = urlsplit(base_url)
    proxies = getproxies()
    if proxy_bypass(address.netloc):
        return None
    return proxies.get(address.scheme) or proxies.get("all")
