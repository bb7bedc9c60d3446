"""Classification of IP addresses as public, from the special-purpose registries of IANA, including embedded IPv4.

The lists are part of this package because those of the `ipaddress` module change between versions of Python and omit
networks that lead into a private network. Sources: the IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC
6890).
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_RESERVED_IPV4: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # "this network": RFC 791
            "10.0.0.0/8",  # private use: RFC 1918
            "100.64.0.0/10",  # shared address space of carriers: RFC 6598
            "127.0.0.0/8",  # loopback: RFC 1122
            "169.254.0.0/16",  # link-local: RFC 3927
            "172.16.0.0/12",  # private use: RFC 1918
            "192.0.0.0/24",  # IETF protocol assignments: RFC 6890
            "192.0.2.0/24",  # documentation: RFC 5737
            "192.88.99.0/24",  # relays of 6to4, deprecated: RFC 7526
            "192.168.0.0/16",  # private use: RFC 1918
            "198.18.0.0/15",  # benchmarks: RFC 2544
            "198.51.100.0/24",  # documentation: RFC 5737
            "203.0.113.0/24",  # documentation: RFC 5737
            "224.0.0.0/4",  # multicast: RFC 5771
            "240.0.0.0/4",  # reserved: RFC 1112; broadcast: RFC 919
        ),
    )
)

_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""The only part of IPv6 that is assigned for the public (RFC 4291). Outside of it are `::`, `::1`, IPv4-compatible
addresses, `::ffff:0:0:0/96` (RFC 2765), `64:ff9b:1::/48` (RFC 8215), `100::/64` (RFC 6666), `5f00::/16` (RFC 9602),
`fc00::/7` (RFC 4193), `fe80::/10` (RFC 4291), `fec0::/10` (RFC 3879) and `ff00::/8` (RFC 4291)."""

_RESERVED_IPV6: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # IETF protocol assignments: RFC 2928; in it Teredo: RFC 4380
            "2001:db8::/32",  # documentation: RFC 3849
            "2002::/16",  # 6to4: RFC 3056, deprecated: RFC 7526
            "3ffe::/16",  # 6bone, returned: RFC 3701
            "3fff::/20",  # documentation: RFC 9637
        ),
    )
)

_MAPPED: Final = IPv6Network("::ffff:0:0/96")  # RFC 4291
_NAT64: Final = IPv6Network("64:ff9b::/96")  # RFC 6052
_LEADS_TO_IPV4: Final = (_MAPPED, _NAT64)
"""The IPv6 forms of an IPv4 address that reach it from any host, and so are public if the IPv4 address is."""

_ISATAP: Final = bytes.fromhex("005efe")
"""Octets 1 to 3 of the interface identifier (RFC 5214); octet 0 is zero except for the bits `u` and `g`."""

_NAT64_OCTETS: Final = {
    32: (4, 5, 6, 7),
    40: (5, 6, 7, 9),
    48: (6, 7, 9, 10),
    56: (7, 9, 10, 11),
    64: (9, 10, 11, 12),
    96: (12, 13, 14, 15),
}
"""Octets of the IPv4 address in a NAT64 address, by the length of the prefix (RFC 6052, section 2.2)."""

_IPV4_OCTETS: Final = (
    (2, 3, 4, 5),  # 6to4: RFC 3056
    *_NAT64_OCTETS.values(),
)
"""Octets of an IPv6 address that may hold an IPv4 address, under any prefix."""

_METADATA_IPV4: Final = frozenset(
    map(
        IPv4Address,
        (
            "100.100.100.200",  # Alibaba Cloud
            "168.63.129.16",  # Azure; a public address by the registry
            "169.254.42.42",  # Scaleway
            "169.254.169.254",  # AWS, Azure, Google Cloud, OpenStack and most others
            "169.254.170.2",  # AWS ECS
            "169.254.170.23",  # AWS EKS
            "192.0.0.192",  # Oracle Cloud
        ),
    )
)
_METADATA_IPV6: Final = frozenset(
    map(
        IPv6Address,
        (
            "fd00:42::42",  # Scaleway
            "fd00:ec2::23",  # AWS EKS
            "fd00:ec2::254",  # AWS
            "fd20:ce::254",  # Google Cloud
        ),
    )
)
"""The metadata services of clouds, which give a machine's secrets to every process on it."""


def is_public(address: Address) -> bool:
    """Return whether an address, and each IPv4 address embedded in it, belongs to the public Internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _RESERVED_IPV4)
    if address.scope_id is not None:
        # A zone (RFC 4007) selects one of this machine's links.
        return False
    if not all(map(is_public, _within(address))):
        return False
    if any(address in network for network in _LEADS_TO_IPV4):
        return True
    return address in _GLOBAL_UNICAST and not any(address in network for network in _RESERVED_IPV6)


def is_metadata(address: Address) -> bool:
    """Return whether an address leads to the metadata service of a cloud, also by a translation under any prefix."""
    if isinstance(address, IPv4Address):
        return address in _METADATA_IPV4
    plain = IPv6Address(address.packed)
    return plain in _METADATA_IPV6 or any(_held(plain, octets) in _METADATA_IPV4 for octets in _IPV4_OCTETS)


def named_by(address: Address, network: Network) -> bool:
    """Return whether a network contains an address, or the IPv4 address that it stands for."""
    if isinstance(address, IPv6Address) and any(address in each for each in _LEADS_TO_IPV4):
        return address in network or IPv4Address(address.packed[-4:]) in network
    return address in network


def translated(address: IPv6Address, prefix: IPv6Network) -> IPv4Address | None:
    """Return the IPv4 address that an address of a NAT64 prefix stands for, or None.

    Octet 8 is zero in each of them, and the octets after the IPv4 address are ignored (RFC 6052, section 2.2).
    """
    if prefix.prefixlen != 96 and address.packed[8]:
        return None
    return _held(address, _NAT64_OCTETS[prefix.prefixlen])


def _within(address: IPv6Address) -> Iterator[IPv4Address]:
    """Yield the IPv4 addresses embedded in an address, for all forms at a known position.

    6to4, Teredo, and local translation (RFC 8215) are not public, regardless of the embedded address.
    """
    packed = address.packed
    is_isatap = packed[8] & 0b1111_1100 == 0 and packed[9:12] == _ISATAP
    if is_isatap or any(address in network for network in _LEADS_TO_IPV4):
        yield IPv4Address(packed[-4:])


def _held(address: IPv6Address, octets: tuple[int, ...]) -> IPv4Address:
    return IPv4Address(bytes(address.packed[each] for each in octets))
