"""Checks what requests say of endpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from ...core.errors import ApiError, bad_request
from ...core.shapes import Location, missing
from .settings import EVENT_TYPES

_NAME_CHARACTERS: Final = 256
_URL_CHARACTERS: Final = 2_048
_KEEP: Final = "keep_old_secret_active_for_24_hours"


def checked_endpoint(body: Mapping[str, Any], allow_http: bool, *, whole: bool) -> dict[str, Any]:
    """Return what a request says of an endpoint: `name`, `url` and `event_types`.

    Args:
        body: the request.
        allow_http: whether the URL may begin with `http://`.
        whole: whether all are required.

    Raises:
        ApiError: 400, a value cannot be used; `param` names it.
    """
    checks = {"name": _name, "url": lambda url: _url(url, allow_http), "event_types": _types}
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


def _url(url: Any, allow_http: bool) -> str:
    expected = "a URL that begins with https:// and has a host"
    if not isinstance(url, str) or len(url) > _URL_CHARACTERS or not url.isprintable():
        raise _wrong("url", expected)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise _wrong("url", expected) from None
    if parts.scheme == "http" and not allow_http:
        message = "'url' begins with http://: use https://, or have the operator set 'webhooks.allow_http'."
        raise bad_request(message, "url", "invalid_value")
    if parts.scheme not in ("http", "https") or not host:
        raise _wrong("url", expected)
    if parts.username is not None or parts.password is not None:
        raise bad_request("'url' has a user or a password: the signature says who sends.", "url", "invalid_value")
    return url


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
