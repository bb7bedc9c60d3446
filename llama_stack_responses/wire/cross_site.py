"""Which web pages may use the server: the answer to cross-site request forgery and to DNS rebinding.

A browser sends requests of any page to any server, also to one on the user's own machine. Two headers, which no page
can set, tell them apart:

- `Host` is the name in the page's URL. A page that has its own name resolve to this server (DNS rebinding) is of one
  origin with it for the browser, and reads every answer; only the name gives it away. An IP address cannot be rebound.
- `Sec-Fetch-Site`, or else `Origin`, says that a page of another site sends the request. Browsers leave
  `Sec-Fetch-Site` out for a server without TLS that is not on the own machine.

A client that is no browser sends neither of the last two, and is let in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address
from typing import Any, Final

from starlette.types import Scope

from ..core.errors import ApiError, bad_request
from ..core.shapes import excerpt

Headers = Mapping[bytes, bytes]

_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::[0-9]{0,5})?", re.IGNORECASE)
"""A `Host` header: a name or an address, perhaps with a dot at its end, and a port."""
_HOST_BYTES: Final = 300
_KNOWN_HOSTS: Final = 256
"""Hosts whose judgement is remembered."""
_PRIVATE: Final = (".local", ".internal", ".home.arpa")
"""Domains that are reserved for private networks, below which no name can be registered."""
_READ: Final = frozenset({b"host", b"origin", b"sec-fetch-site", b"sec-fetch-mode", b"sec-fetch-dest"})
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


class CrossSitePolicy:
    """Decides which requests, by their headers, are answered at all.

    Args:
        hosts: further names under which the server is reached; `*.NAME` stands for all names below one, `*` for all.
        origins: origins of other sites whose pages may use the server, such as `https://app.example.com`.
        allows_origin: whether the host's CORS settings allow an origin.
        authenticated: whether each request needs a token, which pages of other sites do not have. The name does not
            matter then, nor does the origin of a request with a token.
    """

    def __init__(
        self,
        hosts: Collection[str],
        origins: Collection[str],
        allows_origin: Callable[[str], bool],
        *,
        authenticated: bool,
    ) -> None:
        self._names = frozenset(hosts)
        self._suffixes = (".localhost", *(name[1:] for name in hosts if name.startswith("*.")))
        self._origins = frozenset(origins)
        self._allows_origin = allows_origin
        self._authenticated = authenticated
        self._every_name = authenticated or "*" in self._names
        self._is_own = lru_cache(_KNOWN_HOSTS)(self._judge)

    def check(self, scope: Scope) -> None:
        """Check a request or a WebSocket handshake.

        Raises:
            ApiError: 403, it may come from a page of another site; 400, it has one of the headers twice.
        """
        read = [header for header in scope["headers"] if header[0] in _READ]
        headers: Headers = dict(read)
        if len(headers) < len(read):
            raise bad_request(
                "The request has one of the headers Host, Origin, Sec-Fetch-* several times. Send it once."
            )
        host = headers.get(b"host")
        # HTTP/1.0 has none; every browser sends one.
        if host is not None and not self._every_name:
            self._check_host(host, scope.get("server"))
        if self._is_foreign(scope.get("method"), headers) and not self._has_token(scope):
            raise _foreign(headers.get(b"origin"))

    def _check_host(self, host: bytes, server: Any) -> None:
        if len(host) > _HOST_BYTES or not self._is_own(host, server[0] if server else ""):
            raise ApiError(
                403,
                f"This server has no authentication and does not answer to the host name '{_shown(host)}', so that a "
                "web page cannot reach it under a name of its own: add the name to the variable ALLOWED_HOSTS of the "
                "templates, or to the setting 'allowed_hosts' of the responses provider.",
                code="host_not_allowed",
            )

    def _judge(self, host: bytes, address: str) -> bool:
        """Return whether this server answers to a host, on a connection to this address of it."""
        match = _HOST.fullmatch(host.decode("latin-1"))
        if match is None:
            return False
        name = match[1].lower()
        if name.startswith("["):
            return _is_ipv6(name[1:-1])
        # A browser takes a name whose last label is a number as an IPv4 address.
        if name == "localhost" or name in self._names or name.rpartition(".")[2].isdigit():
            return True
        # The public DNS has no such names. Who can make them up is in the server's network, and can reach it directly,
        # unless it serves this machine only.
        private = "." not in name or name.endswith(_PRIVATE)
        return name.endswith(self._suffixes) or (private and not _is_loopback(address))

    def _is_foreign(self, method: str | None, headers: Headers) -> bool:
        """Return whether a request comes from a page of another origin that may not use the server."""
        site, origin = headers.get(b"sec-fetch-site"), headers.get(b"origin")
        if (site is None and origin is None) or site in (b"same-origin", b"none"):
            return False
        # A preflight does nothing but ask, and a link to this server shows its answer to the user only.
        if method == "OPTIONS" or (method in ("GET", "HEAD") and _is_link(headers)):
            return False
        if origin is None:
            return True
        named = origin.decode("latin-1")
        own = site is None and _is_same(named, headers.get(b"host", b"").decode("latin-1"))
        return not (own or named.lower() in self._origins or self._allows_origin(named))

    def _has_token(self, scope: Scope) -> bool:
        """Return whether a request has a token that is going to be checked. Browsers add passwords, and no token."""
        return self._authenticated and any(
            name == b"authorization" and value[:7].lower() == b"bearer " for name, value in scope["headers"]
        )


def _is_link(headers: Headers) -> bool:
    return headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"


def _is_same(origin: str, host: str) -> bool:
    """Return whether the origin is that of the host. A proxy may have removed TLS, so the scheme does not count."""
    scheme, _, authority = origin.lower().partition("://")
    port = _DEFAULT_PORTS.get(scheme, "")
    return bool(authority) and authority.removesuffix(port) == host.lower().removesuffix(port)


def _is_loopback(address: str) -> bool:
    """Return whether an address of the server is reached from this machine only; so is the path of a socket."""
    try:
        found = ip_address(address)
    except ValueError:
        return True
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def _is_ipv6(address: str) -> bool:
    try:
        return bool(IPv6Address(address))
    except ValueError:
        return False


def _foreign(origin: bytes | None) -> ApiError:
    pages = f"Web pages of the origin '{_shown(origin)}'" if origin else "Web pages of other sites"
    return ApiError(
        403,
        f"{pages} may not use this server: add the page's origin to the variable ALLOWED_ORIGINS of the templates, or "
        "to the setting 'allowed_origins' of the responses provider.",
        code="origin_not_allowed",
    )


def _shown(header: bytes) -> str:
    return excerpt(header.decode("latin-1"))
