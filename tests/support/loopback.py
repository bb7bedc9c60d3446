"""An audit hook that keeps tests on this machine: connections and name lookups beyond the loopback fail.

    watch = Watch()
    sys.addaudithook(watch)
    watch.found      # the attempts; each has failed with a `BeyondLoopbackError`

Other processes, and code that makes system calls without Python's `socket`, are not covered.
"""

from ipaddress import ip_address
from typing import Any, Final

_CONNECTS: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKS_UP: Final = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"})
_NAMES: Final = frozenset({"", "localhost"})


class BeyondLoopbackError(RuntimeError):
    """An attempt to reach something beyond the loopback."""


class LoopbackWatch:
    """An audit hook (PEP 578).

    Attributes:
        found: the attempts.
    """

    def __init__(self) -> None:
        self.found: list[str] = []

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        """Reject events that lead beyond the loopback.

        Raises:
            BeyondLoopbackError: the event does.
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
    """Whether a socket address is on this machine: a Unix socket, or the loopback."""
    if not isinstance(address, tuple):
        return True
    host = _text(address[0])
    try:
        parsed = ip_address(host.partition("%")[0])
    except ValueError:
        return host in _NAMES
    mapped = getattr(parsed, "ipv4_mapped", None)
    # A connection to the unspecified address reaches this machine.
    return (mapped or parsed).is_loopback or parsed.is_unspecified


def is_known(host: Any) -> bool:
    """Whether a host name needs no lookup beyond this machine."""
    name = _text(host)
    try:
        ip_address(name.partition("%")[0])
    except ValueError:
        return name in _NAMES
    return True


def _text(host: Any) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else host or ""
