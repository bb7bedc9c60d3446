"""Which addresses are public, however they are written."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.fetch.address_policy import Guard
from llama_stack_responses.fetch.addresses import is_metadata, is_public

FORBIDDEN_IPV4 = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
]
FORBIDDEN_IPV6 = [
    "::/127",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]


def _at(prefix: str, *octets: int) -> list[tuple[int, tuple[int, ...]]]:
    return [(int(IPv6Address(prefix)), octets)]


EMBEDDINGS = {
    "mapped": _at("::ffff:0:0", 12, 13, 14, 15),
    "compatible": _at("::", 12, 13, 14, 15),
    "translated": _at("::ffff:0:0:0", 12, 13, 14, 15),
    "nat64": _at("64:ff9b::", 12, 13, 14, 15),
    "nat64 local /48": _at("64:ff9b:1::", 6, 7, 9, 10),
    "nat64 local /56": _at("64:ff9b:1::", 7, 9, 10, 11),
    "nat64 local /64": _at("64:ff9b:1::", 9, 10, 11, 12),
    "nat64 local /96": _at("64:ff9b:1::", 12, 13, 14, 15),
    "6to4": _at("2002::", 2, 3, 4, 5),
    "teredo server": _at("2001::", 4, 5, 6, 7),
    "teredo client in the clear": _at("2001::", 12, 13, 14, 15),
    "isatap": _at("2a00:1450:4001:800:0:5efe::", 12, 13, 14, 15),
    "isatap with u": _at("2a00:1450:4001:800:200:5efe::", 12, 13, 14, 15),
    "isatap with g": _at("2a00:1450:4001:800:100:5efe::", 12, 13, 14, 15),
}


def embedded(address: IPv4Address, form: str) -> IPv6Address:
    [(number, octets)] = EMBEDDINGS[form]
    packed = bytearray(number.to_bytes(16, "big"))
    for at, octet in zip(octets, address.packed, strict=True):
        packed[at] = octet
    return IPv6Address(bytes(packed))


@st.composite
def addresses_of(draw: st.DrawFn, networks: list[str]) -> IPv4Address | IPv6Address:
    network = ip_network(draw(st.sampled_from(networks)))
    return network[draw(st.integers(0, network.num_addresses - 1))]


@given(addresses_of(FORBIDDEN_IPV4))
def test_an_ipv4_address_of_a_special_network_is_not_public(address: IPv4Address) -> None:
    assert not is_public(address)


@given(addresses_of(FORBIDDEN_IPV6))
def test_an_ipv6_address_of_a_special_network_is_not_public(address: IPv6Address) -> None:
    assert not is_public(address)


@given(addresses_of(FORBIDDEN_IPV4), st.sampled_from(sorted(EMBEDDINGS)))
def test_a_forbidden_ipv4_address_is_forbidden_in_every_embedding(address: IPv4Address, form: str) -> None:
    assert not Guard().allows(embedded(address, form))


@given(addresses_of(FORBIDDEN_IPV4))
def test_the_hidden_client_of_teredo_is_forbidden(address: IPv4Address) -> None:
    hidden = IPv4Address(int(address) ^ 0xFFFF_FFFF)
    assert not is_public(embedded(hidden, "teredo client in the clear"))


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_no_ipv6_address_outside_of_global_unicast_is_public(address: IPv6Address) -> None:
    inside = ["2000::/3", "::ffff:0:0/96", "64:ff9b::/96"]
    assert not is_public(address) or any(address in IPv6Network(each) for each in inside)


@pytest.mark.parametrize(
    "address",
    [
        "1.1.1.1",
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.1.0",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:4860:4860::8888",
        "2a00:1450:4001:800:0:5efe:808:808",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
    ],
)
def test_an_address_of_the_public_internet_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", ["2606:4700::1111%1", "fe80::1%eth0", "::1%lo", "::ffff:8.8.8.8%1"])
def test_an_address_with_a_zone_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


METADATA = [
    "169.254.169.254",
    "169.254.170.2",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "fd00:ec2::254",
    "fd20:ce::254",
]


@pytest.mark.parametrize("address", [*METADATA, "fd00:ec2::254%1", "::ffff:168.63.129.16"])
def test_a_metadata_service_needs_its_own_address_to_be_allowed(address: str) -> None:
    metadata = ip_address(address)
    everything = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert is_metadata(metadata)
    assert not Guard(everything).allows(metadata)
    assert Guard([ip_network(address.partition("%")[0])]).allows(metadata)


@pytest.mark.parametrize(
    "address",
    ["2a00:1450:a9fe:a9fe::", "2a00:1450:4001:a9fe:a9:fe00::", "2a00:1450:4001:800::a9fe:a9fe", "2002:a83f:8110::"],
)
def test_a_metadata_service_behind_a_translation_under_any_prefix_is_forbidden(address: str) -> None:
    assert not Guard().allows(ip_address(address))


def test_an_allowed_network_lets_no_tunnel_into_it_through() -> None:
    """An address of 6to4, Teredo or ISATAP goes to a router on the way, and not to the network."""
    guard = Guard([ip_network("10.0.0.0/8")])
    address = IPv4Address("10.1.2.3")
    allowed = [form for form in EMBEDDINGS if guard.allows(embedded(address, form))]
    assert allowed == ["mapped", "nat64"]
