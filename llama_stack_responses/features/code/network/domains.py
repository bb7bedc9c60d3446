"""The domains that operators and clients name, as host names, and the patterns of operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import httpx

from .host_names import host_of

_ANY: Final = "*"
_BELOW: Final = "*."


def host_of_domain(domain: str) -> str | None:
    """Return a domain in the form of `host_of`; None if it is none. Its name may be international."""
    try:
        # The same form of international names as that of URLs.
        return host_of(httpx.URL(scheme="https", host=domain).raw_host.decode("ascii"))
    except (httpx.InvalidURL, UnicodeError):
        return None


def pattern_of(given: str) -> str:
    """Return a pattern of hosts in the form of `matches`.

    Raises:
        ValueError: it is none.
    """
    if given == _ANY:
        return given
    below = _BELOW if given.startswith(_BELOW) else ""
    host = host_of_domain(given.removeprefix(below))
    if host is None:
        raise ValueError("this is not a domain such as example.com, nor *.example.com for all below it, nor * for all")
    return below + host


def matches(host: str, patterns: Iterable[str]) -> bool:
    """Return whether a host is one of these patterns: a host, `*.example.com` for all below a host, `*` for all."""
    return any(
        each in (_ANY, host) or (each.startswith(_BELOW) and host.endswith(each.removeprefix(_ANY)))
        for each in patterns
    )
