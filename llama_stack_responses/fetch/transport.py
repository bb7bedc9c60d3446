"""An HTTP transport that connects only to addresses that the address policy allows."""

from __future__ import annotations

import socket
from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from .address_policy import AddressPolicy

_PORTS: Final = {"http": 80, "https": 443}
_RECEIVED_BYTES: Final = 128 * 1024

SOCKET_OPTIONS: Final = ((socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVED_BYTES),)
"""Options of the plain transports. With larger buffers, uvloop reads up to 8 MB from a socket before a pause."""

_NOT_CONNECTED: Final = frozenset({"ConnectError", "ConnectTimeout"})


class GuardedTransport:
    """A transport for an `AsyncClient` of httpx, or of httpx2, which has the same interface.

    Each request, including each redirect, connects to an address that was checked for it. The Host header, the TLS
    handshake and the certificate check use the host name of its URL.

    Args:
        address_policy: which addresses may be connected to.
        make: creates a plain transport of the client's library. There is one for each host name, so that a connection
            is never reused for a name other than the one its certificate was checked for.
    """

    def __init__(self, address_policy: AddressPolicy, make: Callable[[], Any]) -> None:
        self._address_policy = address_policy
        self._make = make
        self._plain: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        """Return itself; connections are opened on demand."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        await self.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """Send a request.

        Raises:
            UrlRefused: the address policy does not allow its URL.
        """
        url = request.url
        # The form used for the lookup. `url.host` is the Unicode form, and raises if there is none.
        host = url.raw_host.decode("ascii")
        addresses = await self._address_policy.addresses(url.scheme, host, url.port or _PORTS.get(url.scheme, 0))
        transport = self._plain.get(host)
        if transport is None:
            transport = self._plain[host] = self._make()
        for left in range(len(addresses) - 1, -1, -1):
            try:
                return await transport.handle_async_request(_addressed(request, addresses[-1 - left]))
            except Exception as error:
                if not left or type(error).__name__ not in _NOT_CONNECTED:
                    raise
        raise AssertionError("an allowed host has an address")

    async def aclose(self) -> None:
        """Close all connections."""
        plain, self._plain = self._plain, {}
        for transport in plain.values():
            await transport.aclose()


def _addressed(request: Any, address: str) -> Any:
    """Return the request with the host replaced by an address; its Host header already has the host name."""
    return type(request)(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )
