"""Which addresses the guard lets through."""

import socket
from collections.abc import Sequence
from ipaddress import ip_address, ip_network

import pytest

from llama_stack_responses.fetch.address_policy import Guard, Refused


def resolving(*addresses: str) -> Guard:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    return Guard(resolve=resolve)


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
def test_what_is_not_public_is_not_let_through(address: str) -> None:
    assert not Guard().allows(ip_address(address))


@pytest.mark.parametrize("address", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_what_is_public_is_let_through(address: str) -> None:
    assert Guard().allows(ip_address(address))


def test_the_operator_allows_networks() -> None:
    guard = Guard([ip_network("10.0.0.0/8"), ip_network("fd00::/8")])
    allowed = ["10.1.2.3", "::ffff:10.1.2.3", "fd00::1", "192.168.0.1"]
    assert [guard.allows(ip_address(each)) for each in allowed] == [True, True, True, False]


@pytest.mark.parametrize("scheme", ["file", "ftp", "gopher", "ws", ""])
async def test_other_schemes_are_refused(scheme: str) -> None:
    with pytest.raises(Refused, match="Only http and https"):
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
async def test_a_name_counts_by_what_it_leads_to(host: str) -> None:
    with pytest.raises(Refused, match="no public address"):
        await Guard().addresses("http", host, 80)


async def test_an_address_is_judged_without_a_lookup() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise AssertionError(host)

    guard = Guard(resolve=resolve)
    assert await guard.addresses("http", "0x8.8.2056", 80) == ["8.8.8.8"]
    with pytest.raises(Refused, match="no public address"):
        await guard.addresses("http", "localhost.", 80)


@pytest.mark.parametrize("error", [socket.gaierror(), UnicodeError(), ValueError("embedded null character")])
async def test_a_name_that_leads_nowhere(error: Exception) -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise error

    with pytest.raises(Refused, match="was not found"):
        await Guard(resolve=resolve).addresses("http", "nowhere.example", 80)


async def test_a_name_with_a_long_label_is_not_found_by_the_system() -> None:
    """It is refused before a lookup: it has no form in IDNA."""
    with pytest.raises(Refused, match="was not found"):
        await Guard().addresses("http", f"{'a' * 64}.example", 80)


@pytest.mark.parametrize(
    ("host", "port"), [("", 80), ("a" * 254, 80), ("8.8.8.8", 0), ("8.8.8.8", 65_536), ("8.8.8.8", -1)]
)
async def test_a_host_or_port_that_cannot_be_is_refused_without_a_lookup(host: str, port: int) -> None:
    with pytest.raises(Refused, match="no host or port"):
        await resolving("8.8.8.8").addresses("http", host, port)


async def test_of_several_addresses_those_remain_that_are_allowed() -> None:
    guard = resolving("2606:4700::1111", "127.0.0.1", "8.8.8.8", "8.8.8.8")
    assert await guard.addresses("https", "a.example", 443) == ["8.8.8.8", "2606:4700::1111"]
