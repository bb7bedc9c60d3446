"""The addresses that the address policy allows."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from llama_stack_responses.fetch.address_policy import AddressPolicy, UrlRefused


def resolving(*addresses: str) -> AddressPolicy:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return AddressPolicy(resolve=resolve)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "100.100.100.200",
        "169.254.169.254",
        "168.63.129.16",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "64:ff9b::7f00:1",
        "64:ff9b::a9fe:a9fe",
        "2002:7f00:1::",
        "fd00:ec2::254",
        "fe80::1",
        "ff02::1",
    ],
)
def test_non_public_address_is_refused(address: str) -> None:
    assert not AddressPolicy().allows(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_address_is_allowed(address: str) -> None:
    assert AddressPolicy().allows(ip_address(address))


def test_configured_networks_are_allowed() -> None:
    policy = AddressPolicy([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
    allowed = ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "192.168.0.1"]
    assert [policy.allows(ip_address(each)) for each in allowed] == [True, True, True, False]


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher", "ws", ""])
async def test_schemes_other_than_http_are_refused(scheme: str) -> None:
    with pytest.raises(UrlRefused, match="Only http and https"):
        await resolving("8.8.8.8").addresses(scheme, "a.example", 0)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost.",
        "a.localhost",
        "127.0.0.1.",
        "LOCALHOST",
        "127.1",
        "2130706433",
        "0x7f.0.0.1",
        "0x7f.1",
        "0x7f000001",
        "0177.0.0.1",
        "017700000001",
        "0",
        "0xa9fea9fe",
        "::1",
        "::10.0.0.1",
        "::ffff:0:7f00:1",
        "fe80::1%lo",
    ],
)
async def test_host_is_judged_by_its_resolved_address(host: str) -> None:
    with pytest.raises(UrlRefused, match="no public address"):
        await AddressPolicy().addresses("http", host, 80)


async def test_address_is_judged_without_dns_lookup() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    policy = AddressPolicy(resolve=resolve)
    assert await policy.addresses("http", "0x8.8.2056", 80) == ["8.8.8.8"]
    with pytest.raises(UrlRefused, match="no public address"):
        await policy.addresses("http", "localhost.", 80)


@pytest.mark.parametrize("error", [socket.gaierror(), UnicodeError(), ValueError("embedded null character")])
async def test_unresolvable_host_is_refused(error: Exception) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise error

    with pytest.raises(UrlRefused, match="was not found"):
        await AddressPolicy(resolve=resolve).addresses("http", "nowhere.example", 80)


async def test_host_with_too_long_label_is_refused() -> None:
    """The host has no IDNA form, so it is refused before a DNS lookup."""
    with pytest.raises(UrlRefused, match="was not found"):
        await AddressPolicy().addresses("http", f"{'a' * 64}.example", 80)


@pytest.mark.parametrize(
    ("host", "port"), [("", 80), ("a" * 254, 80), ("8.8.8.8", 0), ("8.8.8.8", 65_536), ("8.8.8.8", -1)]
)
async def test_impossible_host_or_port_is_refused_without_dns_lookup(host: str, port: int) -> None:
    with pytest.raises(UrlRefused, match="no host or port"):
        await resolving("8.8.8.8").addresses("http", host, port)


async def test_only_allowed_addresses_of_host_are_used() -> None:
    policy = resolving("2606:4700::1111", "127.0.0.1", "8.8.8.8", "8.8.8.8")
    assert await policy.addresses("https", "a.example", 443) == ["8.8.8.8", "2606:4700::1111"]
