"""The addresses that a test may reach."""

from typing import Any

import pytest

from tests.support.loopback import BeyondLoopbackError, LoopbackWatch

HERE = [
    ("127.0.0.1", 80),
    ("127.9.9.9", 1),
    ("::1", 80, 0, 0),
    ("::ffff:127.0.0.1", 80),
    ("localhost", 1),
    "/run/s",
    b"\0s",
]
BEYOND = [
    ("8.8.8.8", 80),
    ("10.0.0.1", 80),
    ("169.254.169.254", 80),
    ("fe80::1%lo", 80),
    ("2606:4700::1", 1),
    ("a.example", 1),
]


@pytest.mark.parametrize("address", HERE)
@pytest.mark.parametrize("event", ["socket.connect", "socket.sendto"])
def test_connection_on_this_machine_is_allowed(event: str, address: Any) -> None:
    watch = LoopbackWatch()
    watch(event, (None, address))
    assert watch.found == []


@pytest.mark.parametrize("address", BEYOND)
@pytest.mark.parametrize("event", ["socket.connect", "socket.sendto"])
def test_connection_beyond_this_machine_is_refused_and_recorded(event: str, address: Any) -> None:
    watch = LoopbackWatch()
    with pytest.raises(BeyondLoopbackError):
        watch(event, (None, address))
    assert len(watch.found) == 1


@pytest.mark.parametrize("host", ["localhost", b"localhost", "127.0.0.1", "8.8.8.8", "::1", "fe80::1%lo", None, ""])
def test_lookup_without_dns_is_allowed(host: Any) -> None:
    LoopbackWatch()("socket.getaddrinfo", (host, 80))


@pytest.mark.parametrize("host", ["a.example", "localhost.", "nowhere.invalid", b"a.example"])
def test_dns_lookup_is_refused(host: Any) -> None:
    with pytest.raises(BeyondLoopbackError):
        LoopbackWatch()("socket.getaddrinfo", (host, 80))
