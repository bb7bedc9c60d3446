"""Keeps tests on this machine: nothing in their process connects to, sends to or looks up anything beyond the loopback.

    watch = Watch()
    sys.addaudithook(watch)
    watch.found      # what was tried; each attempt has failed with a `BeyondLoopbackError`

What other processes do, and code that calls the system without Python's `socket`, is not seen.
"""

from ipaddress import ip_address
from typing import Any, Final

_CONNECTS: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKS_UP: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_NAMES: Final = frozenset({"", "localhost"})


class BeyondLoopbackError(RuntimeError):
    """Something beyond the loopback was to be reached."""


class Watch:
    """An audit hook (PEP 578).

    Attributes:
        found: what was tried.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Refuses what leads beyond the loopback.

        Raises:
            BeyondLoopbackError: it does.
        """
        if event in _CONNECTS:
            is_beyond = not is_here(args[1])
        elif event in _LOOKS_UP:
            is_beyond = not is_known(args[0])
        else:
            return
        if is_beyond:
            self.found.append(f"{event} {args[:2]!r}")
            raise BeyondLoopbackError(self.found[-1])


def is_here(address: Any) -> bool:
    """Whether a socket's address is on this machine: a Unix socket, or the loopback."""
    if not isinstance(address, tuple):
        return True
    host = _text(address[0])
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host in _NAMES
    mapped = getattr(parsed, "ipv4_mapped", None)
    # To connect to the unspecified address is to connect to this machine.
    return (mapped or parsed).is_loopback or parsed.is_unspecified


def is_known(host: Any) -> bool:
    """Whether a host needs no lookup beyond this machine."""
    name = _text(host)
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return name in _NAMES
    return True


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else host or ""
