"""Checks what requests say of endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from ...core.errors import ApiError, bad_request
from ...core.shapes import Location, missing
from ...fetch.address_policy import AddressPolicy, UrlRefused
from .settings import EVENT_TYPES

_NAME_CHARACTERS: Final = 256
_URL_CHARACTERS: Final = 2_048
_KEEP: Final = "keep_old_secret_active_for_24_hours"


def checked_endpoint(
    body: Mapping[str, Any], allow_http: bool, address_policy: AddressPolicy, *, whole: bool
) -> dict[str, Any]:
    """Return what a request says of an endpoint: `name`, `url` and `event_types`.

    Args:
        body: the request.
        allow_http: whether the URL may begin with `http://`.
        address_policy: which addresses the URL may have in the place of a name.
        whole: whether all are required.

    Raises:
        ApiError: 400, a value cannot be used; `param` names it.
    """
    checks = {"name": _name, "url": lambda url: _url(url, allow_http, address_policy), "event_types": _types}
    _check_names(body, checks)
    if whole:
        for name in checks:
            if name not in body:
                raise missing(Location(name))
    return {name: checks[name](value) for name, value in body.items()}


def checked_flag(body: Mapping[str, Any]) -> bool:
    """Return whether a rotation keeps the old secret.

    Raises:
        ApiError: 400, the request cannot be used.
    """
    _check_names(body, (_KEEP,))
    keep = body.get(_KEEP, False)
    if not isinstance(keep, bool):
        raise _wrong(_KEEP, "a boolean")
    return keep


def checked_type(body: Mapping[str, Any]) -> str:
    """Return the type of the sample that a request asks for.

    Raises:
        ApiError: 400, the request cannot be used.
    """
    _check_names(body, ("event_type",))
    if "event_type" not in body:
        raise missing(Location("event_type"))
    return _type(body["event_type"], "event_type")


def _check_names(body: Mapping[str, Any], known: Any) -> None:
    for name in body:
        if name not in known:
            raise bad_request(f"Unknown parameter: '{name[:80]}'.", name[:80], "unknown_parameter")


def _name(name: Any) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARACTERS or not name.isprintable():
        raise _wrong("name", f"1 to {_NAME_CHARACTERS} printable characters")
    return name


def _url(url: Any, allow_http: bool, address_policy: AddressPolicy) -> str:
    if not isinstance(url, str):
        raise _wrong("url", "a string")
    if problem := _problem_of_text(url) or _problem_of_parts(url, allow_http):
        raise bad_request(f"'url' {problem}.", "url", "invalid_value")
    try:
        address_policy.check_written(httpx.URL(url).host)
    except httpx.InvalidURL as error:
        raise bad_request(f"'url' cannot be connected to: {error}.", "url", "invalid_value") from None
    except UrlRefused as error:
        raise bad_request(str(error), "url", "invalid_value") from None
    return url


def _problem_of_text(url: str) -> str:
    if not url:
        return "is empty"
    if len(url) > _URL_CHARACTERS:
        return f"is longer than {_URL_CHARACTERS} characters"
    if not url.isprintable() or " " in url:
        return "has a space or a control character: a space is written as %20"
    return ""


def _problem_of_parts(url: str, allow_http: bool) -> str:
    begins = "https:// or http://" if allow_http else "https://"
    try:
        parts = urlsplit(url)
    except ValueError:
        return "has an IPv6 address that is not written as [ADDRESS]"
    if parts.scheme == "http" and not allow_http:
        return "begins with http://: use https://, or have the operator set 'webhooks.allow_http'"
    if parts.scheme not in ("http", "https"):
        return f"does not begin with {begins}"
    if not parts.hostname:
        return f"has no host after {parts.scheme}://"
    if parts.username is not None or parts.password is not None:
        return "has a user or a password: the signature says who sends"
    try:
        return "" if parts.port != 0 else "has the port 0"
    except ValueError:
        return "has a port that is not a number from 1 to 65535"


def _types(types: Any) -> list[str]:
    if not isinstance(types, list) or not types:
        raise _wrong("event_types", "an array of at least one type")
    return list(dict.fromkeys(_type(each, "event_types") for each in types))


def _type(kind: Any, name: str) -> str:
    if kind not in EVENT_TYPES:
        raise bad_request(
            f"Invalid value for '{name}': this server sends {', '.join(map(repr, EVENT_TYPES))}.", name, "invalid_value"
        )
    return str(kind)


def _wrong(name: str, expected: str) -> ApiError:
    return bad_request(f"Invalid value for '{name}': expected {expected}.", name, "invalid_value")
