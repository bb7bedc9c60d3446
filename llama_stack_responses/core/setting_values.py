"""Values of settings: addresses of servers, lists, which a variable has as a text with commas, and what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit


class WrongConfiguration(Exception):  # noqa: N818 (it is the user's)
    """A configuration cannot be used; the message is for the user, and says what to do."""


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


def listed(given: Any) -> Any:
    """Return the entries of a list, or those of a text with commas; none for null."""
    if given is None:
        return []
    return [each for part in given.split(",") if (each := part.strip())] if isinstance(given, str) else given
