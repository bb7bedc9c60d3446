"""The names of hosts, in the one form in which they are compared."""

from __future__ import annotations

import re
import socket
from typing import Final

_LABEL: Final = "[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_HOST_CHARACTERS: Final = 253
_NUMBER: Final = re.compile(r"\d+|0x[0-9a-f]*")


def host_of(name: str) -> str | None:
    """Return a name in ASCII as a host name in lower case, without a last dot; None if it is none.

    IP addresses, in all forms that connecting accepts, are no host names.
    """
    host = name.lower().removesuffix(".")
    if len(host) > _HOST_CHARACTERS or not _HOST.fullmatch(host) or _NUMBER.fullmatch(host.rpartition(".")[2]):
        return None
    try:
        socket.inet_aton(host)
    except OSError:
        return host
    return None
