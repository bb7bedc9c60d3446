"""Validators of the settings that say under which names, and by pages of which sites, the server may be used."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator

from ..core.setting_values import listed

_NAME: Final = re.compile(r"\*|(\*\.)?[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?")
_ORIGIN: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+/?")
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}


def _host_name(given: str) -> str:
    name = given.lower()
    if not _NAME.fullmatch(name):
        raise ValueError("this is not a host name such as 'responses.example.com' or '*.example.com', without a port")
    return name.removesuffix(".")


def _origin(given: str) -> str:
    origin = given.lower()
    if not _ORIGIN.fullmatch(origin):
        raise ValueError("this is not an origin such as 'https://app.example.com', without a path")
    origin = origin.removesuffix("/")
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], ""))


def _each(check: Callable[[str], str]) -> AfterValidator:
    return AfterValidator(lambda given: frozenset(map(check, given)))


HostNames = Annotated[frozenset[str], BeforeValidator(listed), _each(_host_name)]
Origins = Annotated[frozenset[str], BeforeValidator(listed), _each(_origin)]
