"""The addresses that this server may connect to for URLs that users and models name (against SSRF)."""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv6Address, IPv6Network, ip_address
from typing import Final

from .ip_ranges import Address, Network, is_metadata, is_public, named_by, translated

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""`(host, port) -> addresses`; raises OSError if there are none, or `UrlRefused` with the reason."""

_HOST_CHARACTERS: Final = 253
"""Maximum characters of a domain name (RFC 1035, section 2.3.4); an IP address is shorter."""

_NAME: Final = re.compile("[0-9A-Za-z_.-]+")
"""Names that are resolved: letters, digits and hyphens (RFC 1123, section 2.1), and the underscore of some names."""

_PORTS: Final = range(1, 65_536)


class UrlRefused(Exception):  # noqa: N818 (the answer, not a defect)
    """A URL is not fetched; the message gives the reason to the user or model that named it."""


class AddressPolicy:
    """Allows public addresses, and those that the operator configures.

    Args:
        allowed: networks that are allowed although they are not public; a cloud's metadata service is allowed only by
            its exact address.
        nat64: prefixes under which this network reaches IPv4 addresses (RFC 6052), in addition to `64:ff9b::/96`. The
            embedded IPv4 address decides.
        resolve: resolves names; without it, only URLs with an IP address are allowed.
    """

    def __init__(
        self,
        allowed: Sequence[Network] = (),
        nat64: Sequence[IPv6Network] = (),
        *,
        resolve: Resolve | None = None,
    ) -> None:
        self._allowed = allowed
        self._nat64 = nat64
        self._resolve = resolve or _nothing

    async def addresses(self, scheme: str, host: str, port: int) -> list[str]:
        """Return the addresses of a host that may be connected to.

        The caller must connect to these and not resolve the host again, which DNS rebinding could exploit.

        Raises:
            UrlRefused: there are none.
        """
        if scheme not in ("http", "https"):
            raise UrlRefused(f"Only http and https URLs are fetched, not '{scheme}:'.")
        if not 0 < len(host) <= _HOST_CHARACTERS or port not in _PORTS:
            raise UrlRefused("The URL has no host or port that can be connected to.")
        try:
            addresses = _written(host)
            if not addresses and _NAME.fullmatch(host):
                addresses = await self._resolve(host, port)
        except (OSError, ValueError):
            addresses = []
        if not addresses:
            raise UrlRefused(f"The host '{host}' was not found.")
        # IPv4 first: without IPv6 connectivity, a host's IPv6 address is still found but cannot be reached.
        return sorted(self._allowed_of(host, addresses), key=lambda each: ":" in each)

    def check_written(self, host: str) -> None:
        """Check a host that is written as an address. One that has to be resolved is not: its addresses may change.

        Raises:
            UrlRefused: it may not be connected to.
        """
        if addresses := _written(host):
            self._allowed_of(host, addresses)

    def _allowed_of(self, host: str, addresses: Sequence[str]) -> Sequence[str]:
        """Return those of a host's addresses that may be connected to.

        Raises:
            UrlRefused: there are none.
        """
        allowed = [each for each in dict.fromkeys(addresses) if self.allows(ip_address(each))]
        if not allowed:
            raise UrlRefused(
                f"The host '{host}' has no public address. The operator of this server can allow it with the setting "
                "'fetch.allowed_networks', which the starter template takes from the variable ALLOWED_NETWORKS."
            )
        return allowed

    def allows(self, address: Address) -> bool:
        """Return whether this address is public or allowed; a cloud's metadata service only by its exact address."""
        if isinstance(address, IPv6Address) and (prefixes := [each for each in self._nat64 if address in each]):
            embedded = [translated(address, each) for each in prefixes]
            return all(each is not None and self.allows(each) for each in embedded)
        networks = [each for each in self._allowed if named_by(address, each)]
        if is_metadata(address):
            return any(each.num_addresses == 1 for each in networks)
        return bool(networks) or is_public(address)


def _written(host: str) -> Sequence[str]:
    """Return the addresses that a host contains without a lookup; none for a name that has to be resolved.

    These are IP addresses in all the forms that connecting accepts (hexadecimal, octal, fewer than four numbers), and
    `localhost`, which stands for the loopback alone (RFC 6761, section 6.3).
    """
    plain = host.rstrip(".").lower()
    if plain == "localhost" or plain.endswith(".localhost"):
        return ["127.0.0.1", "::1"]
    try:
        return [socket.inet_ntoa(socket.inet_aton(plain))]
    except OSError:
        pass
    try:
        return [str(ip_address(plain))]
    except ValueError:
        return []


async def _nothing(_: str, __: int) -> Sequence[str]:
    return []
