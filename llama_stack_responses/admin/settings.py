"""The settings of a stack's responses provider, read without the host, whose import takes two seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from ..config import ResponsesConfig
from ..config.stores import HostStore, MemoryStore

_VARIABLE: Final = re.compile(r"\${env\.([A-Z0-9_]+)(?::([=+])([^}]*))?}")
_KIND: Final = "inline::kv"


def quick_settings(path: Path, environment: Mapping[str, str]) -> ResponsesConfig | None:
    """Return the settings in a stack's configuration.

    Returns:
        None if the host has to read them: its own store is configured, or something is wrong or unusual, which the host
        describes.
    """
    try:
        provider = _provider(yaml.safe_load(path.read_text()), environment)
        settings = (
            None if provider is None else ResponsesConfig(**(substituted(provider.get("config"), environment) or {}))
        )
    except (OSError, ValidationError, yaml.YAMLError, AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return None if settings is None or isinstance(settings.store, HostStore | MemoryStore) else settings


def _provider(stack: Any, environment: Mapping[str, str]) -> dict[str, Any] | None:
    if "routing_table" in stack:
        return None
    for each in stack["providers"]["responses"]:
        if substituted(each["provider_id"], environment) == "__disabled__":
            continue
        if substituted(each["provider_type"], environment) == _KIND:
            return dict(each)
    return None


def substituted(value: Any, environment: Mapping[str, str]) -> Any:
    """Return a part of a configuration with its `${env.NAME}` replaced, as both hosts replace them.

    Raises:
        KeyError: a variable without a default is not set.
    """
    if isinstance(value, dict):
        return {name: substituted(each, environment) for name, each in value.items()}
    if isinstance(value, list):
        return [substituted(each, environment) for each in value]
    if not isinstance(value, str):
        return value
    now = _VARIABLE.sub(lambda found: _value(found, environment), value)
    return value if now == value else _converted(now)


def _value(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name, operator, text = match.groups()
    there = environment.get(name, "")
    if operator == "+":
        there = text if there else ""
    elif operator == "=":
        there = there or text
    elif not there:
        raise KeyError(name)
    return str(Path(there).expanduser()) if there.startswith("~") else there


def _converted(text: str) -> Any:
    if text == "":
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
