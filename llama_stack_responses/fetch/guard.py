"""Which addresses this server connects to where users and models name them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""`(host, port) -> addresses`; raises OSError where there are none."""

_NAT64: Final = ip_network("64:ff9b::/96")
_OF_CLOUDS: Final = frozenset({ip_address("168.63.129.16")})
"""Public by their number, and yet a cloud's own: they hand out a machine's secrets to whoever runs on it."""


class Refused(Exception):  # noqa: N818 (it is the answer, and no error of ours)
    """What a URL names is not fetched; the message says why, in words for whoever named it."""


class Guard:
    """Lets through what is public, and what the operator allows.

    Args:
        allowed: networks that are let through though they are not public.
        resolve: looks names up; None asks the system.
    """

    def __init__(self, allowed: Sequence[Network] = (), resolve: Resolve | None = None) -> None:
        self._allowed = allowed
        self._resolve = resolve or _of_system

    async def addresses(self, scheme: str, host: str, port: int) -> list[str]:
        """The addresses of a host that may be connected to; whoever connects must use these and not ask again.

        Raises:
            Refused: there are none.
        """
        if scheme not in ("http", "https"):
            raise Refused(f"Only http and https URLs are fetched, not '{scheme}:'.")
        try:
            found = await self._resolve(host, port)
        except (OSError, UnicodeError):
            raise Refused(f"The host '{host}' was not found.") from None
        allowed = [each for each in found if self.allows(ip_address(each))]
        if not allowed:
            raise Refused(f"The host '{host}' has no public address. Only the operator of this server can allow it.")
        # Where there is no IPv6, a host's IPv6 address is found and cannot be reached.
        return sorted(dict.fromkeys(allowed), key=lambda each: ":" in each)

    def allows(self, address: Address) -> bool:
        """Whether this address is public, or allowed."""
        inner = [address, *_within(address)]
        return any(each in network for network in self._allowed for each in inner) or all(map(_is_public, inner))


def _is_public(address: Address) -> bool:
    is_mapping = address in _NAT64 or (isinstance(address, IPv6Address) and address.ipv4_mapped is not None)
    return (is_mapping or address.is_global) and not address.is_multicast and address not in _OF_CLOUDS


def _within(address: Address) -> Iterator[Address]:
    """The IPv4 address that an IPv6 address leads to."""
    if isinstance(address, IPv6Address):
        if inner := address.ipv4_mapped or address.sixtofour:
            yield inner
        if address in _NAT64:
            yield IPv4Address(address.packed[-4:])


async def _of_system(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]
