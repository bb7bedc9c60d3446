"""The settings in a stack's configuration, read without the host.

The import of the host takes several times as long as that of the commands. It reads what is unusual or wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from . import ResponsesConfig
from .stores import HostStore, MemoryStore
from .unknown_settings import belonging_place
from .yaml_text import RepeatedKey, parsed_yaml

_VARIABLE: Final = re.compile(r"\${env\.([A-Z0-9_]+)(?::([=+])([^}]*))?}")
PROVIDER_TYPE: Final = "inline::kv"
KEYS_ENDPOINT: Final = "llama-stack-responses:keys"
"""The `endpoint` of the host's `custom` auth that stands for the keys of this store. It is no URL: nothing is sent."""


def quick_settings(path: Path, environment: Mapping[str, str]) -> ResponsesConfig | None:
    """Return the settings in a stack's configuration.

    Returns:
        None if the host has to read them: its own store is configured, or something is wrong or unusual, which the host
        describes.
    """
    try:
        stack = parsed_yaml(path.read_text())
        provider = _provider(stack, environment)
        if provider is None or _may_be_misplaced({**stack, **provider}):
            return None
        settings = ResponsesConfig(**(substituted(provider.get("config"), environment) or {}))
    except (OSError, ValidationError, yaml.YAMLError, AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return None if isinstance(settings.store, HostStore | MemoryStore) else settings


def wrong_auth(stack: Mapping[str, Any], environment: Mapping[str, str], *, has_keys: bool) -> str:
    """Return what is wrong with the auth of a stack, in one sentence; empty if it fits the setting `keys`.

    Args:
        has_keys: whether the setting is there.
    """
    provider: Any = stack
    for name in ("server", "auth", "provider_config"):
        provider = provider.get(name) if isinstance(provider, dict) else None
    try:
        asked = substituted(provider, environment) if isinstance(provider, dict) else {}
    except KeyError:
        return ""  # the host names the variable
    asks_for_keys = asked.get("endpoint") == KEYS_ENDPOINT
    entry = f"server.auth.provider_config: {{type: custom, endpoint: '{KEYS_ENDPOINT}'}}"
    if has_keys and not asks_for_keys:
        return f"'keys' is configured, but the server does not ask for keys: add {entry}, or take 'keys' out."
    if asks_for_keys and not has_keys:
        return (
            f"The server's auth asks for keys, but they are off: add 'keys: {{}}' to the config, or take out {entry}."
        )
    return ""


def _provider(stack: Any, environment: Mapping[str, str]) -> dict[str, Any] | None:
    if "routing_table" in stack:
        return None
    for each in stack["providers"]["responses"]:
        if is_disabled(substituted(each["provider_id"], environment)):
            continue
        if substituted(each["provider_type"], environment) == PROVIDER_TYPE:
            return dict(each)
    return None


def _may_be_misplaced(names: Collection[str]) -> bool:
    """Return whether a setting of the provider may be among names outside of its `config`, where the host reads."""
    return any(belonging_place(ResponsesConfig, str(each)) for each in names)


def inference_ids(stack: Any, environment: Mapping[str, str]) -> list[str]:
    """Return the ids of the inference providers that are not disabled."""
    providers = stack.get("providers")
    entries = providers.get("inference") if isinstance(providers, dict) else None
    ids = []
    for each in entries if isinstance(entries, list) else ():
        with suppress(KeyError):
            ids.append(substituted(each.get("provider_id"), environment) if isinstance(each, dict) else None)
    return [str(each) for each in ids if not is_disabled(each)]


class UnreadableStack(Exception):  # noqa: N818 (it is the user's)
    """A stack's configuration cannot be read; the message is one sentence for the user."""


def inference_providers(path: Path, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the inference providers in a stack's configuration that are not disabled, each with its `config`.

    Raises:
        UnreadableStack: it cannot be read.
    """
    try:
        stack = parsed_yaml(path.read_text())
        entries = substituted(stack["providers"]["inference"], environment)
        return [
            {**each, "config": each.get("config") or {}} for each in entries if not is_disabled(each.get("provider_id"))
        ]
    except OSError as error:
        raise UnreadableStack(f"Cannot read {path}: {error.strerror or error}.") from error
    except RepeatedKey as error:
        raise UnreadableStack(f"{path}: {error}.") from None
    except yaml.YAMLError:
        # The error's message quotes the file, which may contain a secret.
        raise UnreadableStack(f"{path} is not a stack's configuration: it is not YAML.") from None
    except KeyError as error:
        name = str(error.args[0])
        if name.isupper():
            missing = f"{path} takes {name} from the environment, where it is not set or is empty"
            raise UnreadableStack(f"{missing}.") from None
        raise UnreadableStack(f"{path} is not a stack's configuration: it has no providers.inference.") from None
    except (AttributeError, TypeError, ValueError):
        raise UnreadableStack(f"{path} is not a stack's configuration: providers.inference is no list.") from None


def is_disabled(provider_id: Any) -> bool:
    """Return whether the hosts leave out a provider with this id."""
    return provider_id in (None, "", "__disabled__")


def variables_in(text: str) -> list[str]:
    """Return the environment variables that a part of a configuration refers to."""
    return [name for name, _, _ in _VARIABLE.findall(text)]


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
