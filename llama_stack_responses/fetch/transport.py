"""An HTTP transport that connects only where the guard lets it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Self

from .address_policy import Guard

_PORTS: Final = {"http": 80, "https": 443}
_NOT_CONNECTED: Final = frozenset({"ConnectError", "ConnectTimeout"})


class GuardedTransport:
    """A transport for an `AsyncClient` of httpx, or of httpx2, which is its double.

    Each request, and so each redirect too, goes to an address that was checked for it, under the name that its URL
    has: in the Host header, in the TLS handshake and for the certificate.

    Args:
        guard: says which addresses those are.
        make: makes a plain transport of the client's library. There is one a host name, so that no connection serves
            another name than the one that its certificate was checked for.
    """

    def __init__(self, guard: Guard, make: Callable[[], Any]) -> None:
        self._guard = guard
        self._make = make
        self._plain: dict[str, Any] = {}

    async def __aenter__(self) -> Self:
        """Nothing is open yet."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes all connections."""
        await self.aclose()

    async def handle_async_request(self, request: Any) -> Any:
        """Sends a request.

        Raises:
            Refused: its URL leads where nobody may go.
        """
        url = request.url
        # As it is looked up. `url.host` is its Unicode form, and raises where there is none.
        host = url.raw_host.decode("ascii")
        addresses = await self._guard.addresses(url.scheme, host, url.port or _PORTS.get(url.scheme, 0))
        transport = self._plain.get(host)
        if transport is None:
            transport = self._plain[host] = self._make()
        for left in range(len(addresses) - 1, -1, -1):
            try:
                return await transport.handle_async_request(_addressed(request, addresses[-1 - left]))
            except Exception as error:
                if not left or type(error).__name__ not in _NOT_CONNECTED:
                    raise
        raise AssertionError("a host that is let through has an address")

    async def aclose(self) -> None:
        """Closes all connections."""
        plain, self._plain = self._plain, {}
        for transport in plain.values():
            await transport.aclose()


def _addressed(request: Any, address: str) -> Any:
    """The request as it goes to an address: the name that it is for stands in its Host header already."""
    return type(request)(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.raw_host.decode("ascii")},
    )
