"""The addresses that are public, in every notation."""

from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from llama_stack_responses.config.services import Fetching
from llama_stack_responses.fetch.address_policy import AddressPolicy
from llama_stack_responses.fetch.ip_ranges import is_metadata, is_public, translated

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
def test_special_ipv4_network_is_not_public(address: IPv4Address) -> None:
    assert not is_public(address)


@given(addresses_of(FORBIDDEN_IPV6))
def test_special_ipv6_network_is_not_public(address: IPv6Address) -> None:
    assert not is_public(address)


@given(addresses_of(FORBIDDEN_IPV4), st.sampled_from(sorted(EMBEDDINGS)))
def test_forbidden_ipv4_address_is_refused_in_every_embedding(address: IPv4Address, form: str) -> None:
    assert not AddressPolicy().allows(embedded(address, form))


@given(addresses_of(FORBIDDEN_IPV4))
def test_teredo_client_with_forbidden_address_is_not_public(address: IPv4Address) -> None:
    hidden = IPv4Address(int(address) ^ 0xFFFF_FFFF)
    assert not is_public(embedded(hidden, "teredo client in the clear"))


@given(st.integers(0, 2**128 - 1).map(IPv6Address))
def test_ipv6_address_outside_global_unicast_is_not_public(address: IPv6Address) -> None:
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
def test_public_internet_address_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", ["2606:4700::1111%1", "fe80::1%eth0", "::1%lo", "::ffff:8.8.8.8%1"])
def test_address_with_zone_is_not_public(address: str) -> None:
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
def test_metadata_service_must_be_allowed_by_exact_address(address: str) -> None:
    metadata = ip_address(address)
    everything = [ip_network("0.0.0.0/0"), ip_network("::/0")]
    assert is_metadata(metadata)
    assert not AddressPolicy(everything).allows(metadata)
    assert AddressPolicy([ip_network(address.partition("%")[0])]).allows(metadata)


@pytest.mark.parametrize(
    "address",
    ["2a00:1450:a9fe:a9fe::", "2a00:1450:4001:a9fe:a9:fe00::", "2a00:1450:4001:800::a9fe:a9fe", "2002:a83f:8110::"],
)
def test_translated_metadata_service_is_refused_under_any_prefix(address: str) -> None:
    assert not AddressPolicy().allows(ip_address(address))


def test_allowed_network_does_not_allow_tunnels_into_it() -> None:
    """A 6to4, Teredo or ISATAP address leads to a router on the way, not to the network."""
    policy = AddressPolicy([ip_network("10.0.0.0/8")])
    address = IPv4Address("10.1.2.3")
    allowed = [form for form in EMBEDDINGS if policy.allows(embedded(address, form))]
    assert allowed == ["mapped", "nat64"]


def nat64_address(address: IPv4Address, prefix: IPv6Network) -> IPv6Address:
    """Return the address under a prefix by the table of RFC 6052, section 2.2: octet 8 is skipped."""
    bits = f"{int(prefix.network_address):0128b}"[: prefix.prefixlen]
    for octet in f"{int(address):032b}":
        if len(bits) == 64:
            bits += "0" * 8
        bits += octet
    return IPv6Address(int(bits.ljust(128, "0"), 2))


PREFIXES = [IPv6Network(f"2a00:64:4000::/{length}") for length in (40, 48, 56, 64, 96)] + [IPv6Network("2a00:65::/32")]


@pytest.mark.parametrize(
    ("prefix", "address"),
    [
        ("2001:db8::/32", "2001:db8:c000:221::"),
        ("2001:db8:100::/40", "2001:db8:1c0:2:21::"),
        ("2001:db8:122::/48", "2001:db8:122:c000:2:2100::"),
        ("2001:db8:122:300::/56", "2001:db8:122:3c0:0:221::"),
        ("2001:db8:122:344::/64", "2001:db8:122:344:c0:2:2100::"),
        ("2001:db8:122:344::/96", "2001:db8:122:344::192.0.2.33"),
    ],
)
def test_nat64_embedding_matches_rfc_6052(prefix: str, address: str) -> None:
    """The examples are those of RFC 6052, section 2.4."""
    assert translated(IPv6Address(address), IPv6Network(prefix)) == IPv4Address("192.0.2.33")
    assert nat64_address(IPv4Address("192.0.2.33"), IPv6Network(prefix)) == IPv6Address(address)


@given(addresses_of(FORBIDDEN_IPV4), st.sampled_from(PREFIXES))
def test_forbidden_ipv4_address_is_refused_under_nat64_prefix(address: IPv4Address, prefix: IPv6Network) -> None:
    inside = nat64_address(address, prefix)
    assert not AddressPolicy(nat64=PREFIXES).allows(inside)


@pytest.mark.parametrize("prefix", [*PREFIXES, IPv6Network("64:ff9b:1::/48")])
def test_address_under_nat64_prefix_is_judged_by_its_ipv4_address(prefix: IPv6Network) -> None:
    policy = AddressPolicy([ip_network("10.0.0.0/8")], [prefix])
    judged = ["8.8.8.8", "10.1.2.3", "192.168.0.1", "169.254.169.254"]
    allowed = [each for each in judged if policy.allows(nat64_address(IPv4Address(each), prefix))]
    assert allowed == ["8.8.8.8", "10.1.2.3"]


def test_nat64_address_with_nonzero_octet_8_is_refused() -> None:
    policy = AddressPolicy(nat64=[IPv6Network("2a00:65::/32")])
    assert policy.allows(IPv6Address("2a00:65:808:808::1"))
    assert not policy.allows(IPv6Address("2a00:65:808:808:100::"))


def test_address_under_two_nat64_prefixes_must_pass_both() -> None:
    wide, narrow = IPv6Network("2a00:65::/32"), IPv6Network("2a00:65:808:808::/96")
    private = nat64_address(IPv4Address("10.1.2.3"), narrow)
    assert AddressPolicy(nat64=[wide]).allows(private)
    assert not AddressPolicy(nat64=[wide, narrow]).allows(private)
    assert not AddressPolicy(nat64=[narrow, wide]).allows(private)


@pytest.mark.parametrize("prefix", ["2a00:64::/33", "2a00:64::/128", "10.0.0.0/8"])
def test_invalid_nat64_prefix_is_refused_in_configuration(prefix: str) -> None:
    with pytest.raises(ValidationError):
        Fetching.model_validate({"nat64_prefixes": [prefix]})
