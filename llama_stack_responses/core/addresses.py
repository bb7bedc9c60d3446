"""A validator for the addresses of servers."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit


def address(*schemes: str) -> Callable[[str], str]:
    """Return a validator for the address of a server."""

    def check(url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in schemes or not parts.hostname:
            raise ValueError(f"this is not an address that begins with {schemes[0]}://HOST")
        if parts.password is not None:
            raise ValueError("the host logs this setting: set the password as 'password' instead")
        return url

    return check
