"""A stack's configuration, read by the commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import BaseModel, ValidationError

from ..config import ResponsesConfig
from ..config.provider_names import ProviderNames
from ..config.stack_file import KEYS_ENDPOINT, PROVIDER_TYPE, wrong_auth
from ..config.stores import HostStore, MemoryStore
from ..config.unknown_settings import models_in
from ..config.wrong_settings import FindSettings, HostFields, wrong_fields, wrong_settings
from ..config.yaml_text import RepeatedKey, parsed_yaml
from ..core.setting_values import WrongConfiguration
from ..store.factory import open_records
from ..store.records import Records
from ..store.tiers import with_tiers
from .keyvalue import backend
from .platform import (
    CONFIG_VARIABLE,
    Api,
    EnvVarError,
    StackConfig,
    file_provider_specs,
    initialize_storage,
    parse_and_maybe_upgrade_config,
)
from .provider_specs import provider_specs

_SHOWN_ERRORS: Final = 5
_MODULES: Final = {"llama_stack_responses", "llama_stack_openai_chat"}
_GPT_OSS: Final = "llama_stack_gpt_oss"
_OF_ONE_HOST: Final = ("registry_refresh_interval_seconds",)
"""What only OGX reads at the level `server`: templates for both hosts have it."""


class MissingFile(Exception):  # noqa: N818 (it is not this software's)
    """The file of the host's key-value backend, which the message names, does not exist."""


def _of_responses(_: str, provider_type: str) -> type[BaseModel] | None:
    """Return the settings class of the responses provider: commands need no other provider."""
    return ResponsesConfig if provider_type == PROVIDER_TYPE else None


def check_stack(path: Path) -> None:
    """Check a stack's configuration before the host starts with it: what the host reads, and this project's providers.

    Raises:
        WrongConfiguration: something is wrong.
    """
    read_stack(path, _settings_of, _provider_names())


def read_stack(path: Path, find: FindSettings = _of_responses, names: ProviderNames | None = None) -> StackConfig:
    """Read a stack's configuration, with its environment variables filled in.

    Args:
        find: returns the settings classes of the providers whose settings are checked.
        names: what the host finds; without it, names that it would not find are not checked.

    Raises:
        WrongConfiguration: it cannot be read, or something in it is wrong.
    """
    try:
        text = path.read_text()
        content = parsed_yaml(text)
        if not isinstance(content, dict):
            raise WrongConfiguration(f"{path} is not a stack's configuration: it is not a YAML mapping.")
        _refuse_wrong(text, path, find, names)
        stack: StackConfig = parse_and_maybe_upgrade_config(content)
    except OSError as error:
        raise WrongConfiguration(f"Cannot read {path}: {error.strerror or error}.") from error
    except EnvVarError as error:
        missing = f"{path} takes {error.var_name} from the environment, where it is not set or is empty"
        raise WrongConfiguration(f"{missing}.") from None
    except ValidationError as error:
        raise _wrong(path, list(wrong_fields(text, StackConfig, error))) from None
    except RepeatedKey as error:
        raise WrongConfiguration(f"{path}: {error}.") from None
    except yaml.YAMLError:
        # The error's message quotes the file, which may contain a secret.
        raise WrongConfiguration(f"{path} is not a stack's configuration: it is not YAML.") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The host's message may have several lines.
        reason = " ".join(str(error).split()).rstrip(".")
        raise WrongConfiguration(f"{path} is not a stack's configuration: {reason}.") from error
    return stack


class RunningStack:
    """Checks the settings of this project's providers in the file that the host starts from, if it starts from one.

    The host would name those of the first wrong provider only, without their places.
    """

    def __init__(self) -> None:
        self._checked: object = None

    def check(self) -> None:
        """Check the file, unless it was checked as it is now: the host asks once for each provider.

        Raises:
            WrongConfiguration: settings are wrong, or are where nothing would read them.
        """
        files, environment = list(_running_files()), dict(os.environ)
        if self._checked == (files, environment):
            return
        for text, path in files:
            if _mapping(text, path) is not None:
                _refuse_wrong(text, path, _settings_of)
        self._checked = files, environment


def _refuse_wrong(text: str, path: Path, find: FindSettings, names: ProviderNames | None = None) -> None:
    if wrong := list(wrong_settings(text, find, os.environ, _host_fields(), names)):
        raise _wrong(path, wrong)


def _wrong(path: Path, sentences: Sequence[str]) -> WrongConfiguration:
    count = f"{len(sentences)} wrong settings" if len(sentences) > 1 else "a wrong setting"
    return WrongConfiguration("\n".join([f"{path} has {count}:", *(f"  {each}" for each in sentences)]))


def check_running_auth(*, has_keys: bool) -> None:
    """Check that the host's auth asks for the keys of the store if, and only if, there are some.

    Raises:
        WrongConfiguration: it does not, so that anyone could use the server; or it does, so that nobody could.
    """
    for text, path in _running_files():
        content = _mapping(text, path) if has_keys or KEYS_ENDPOINT in text else None
        if content is not None and (wrong := wrong_auth(content, os.environ, has_keys=has_keys)):
            raise WrongConfiguration(wrong)


def _running_files() -> Iterator[tuple[str, Path]]:
    """Yield the text and the path of the file that the host has started from."""
    # OGX writes what it has read to the file of its variable, without what it ignores.
    arguments = [each for each in sys.argv[1:] if each.endswith((".yaml", ".yml"))]
    for path in dict.fromkeys(map(Path, [*arguments, os.environ.get(CONFIG_VARIABLE) or "/"])):
        with suppress(OSError, ValueError):  # the host has read it somehow
            yield path.read_text(), path


def _mapping(text: str, path: Path) -> dict[str, Any] | None:
    """Return the content of a file that the host has started from; None if it is none that this can read."""
    try:
        content = parsed_yaml(text)
    except RepeatedKey as error:
        raise WrongConfiguration(f"{path}: {error}.") from None
    except (ValueError, yaml.YAMLError):
        return None  # the host has read it somehow
    return content if isinstance(content, dict) else None


def _host_fields() -> HostFields:
    fields = StackConfig.model_fields
    [provider] = models_in(fields["providers"].annotation)
    [server] = models_in(fields["server"].annotation)
    of_server = dict.fromkeys([*server.model_fields, *_OF_ONE_HOST])
    return HostFields(top=list(fields), server=list(of_server), entry=list(provider.model_fields))


def _provider_names() -> ProviderNames:
    # The host takes any type for a module with one provider.
    modules = {"llama_stack_responses": [spec.provider_type for spec in provider_specs()]}
    packages = [*sorted(_MODULES), _GPT_OSS]
    return ProviderNames([each.value for each in Api], _own_types, modules, packages, _has_provider)


def _own_types(api: str) -> list[str]:
    """Return the host's own provider types of an API; none if it has no provider of its own."""
    registry = file_provider_specs.__module__.rpartition(".")[0]
    try:
        module = import_module(f"{registry}.{api}")
    except ImportError:
        return []
    return [each.provider_type for each in module.available_providers()]


def _has_provider(module: str) -> bool:
    try:
        return find_spec(f"{module}.provider") is not None
    except (ImportError, ValueError):
        return False


def _settings_of(module: str, provider_type: str) -> type[BaseModel] | None:
    """Return the settings class of a provider; None if it is not of this project."""
    name = module.partition("==")[0]
    if name == _GPT_OSS and _has_provider(name):
        specs = [import_module(f"{_GPT_OSS}.provider").get_provider_spec()]
    else:
        specs = provider_specs() if name in _MODULES else []
    for spec in specs:
        if spec.provider_type == provider_type:
            path, _, name = spec.config_class.rpartition(".")
            found: type[BaseModel] = getattr(import_module(path), name)
            return found
    return None


def responses_config(stack: StackConfig, path: Path, purpose: str) -> ResponsesConfig:
    """Return the settings of the stack's responses provider.

    Args:
        purpose: what the provider's store is wanted for, for the error.

    Raises:
        WrongConfiguration: there is no such provider, or its store ends with its process.
    """
    providers = stack.providers.get("responses", [])
    provider = next((each for each in providers if each.provider_type == PROVIDER_TYPE), None)
    if provider is None:
        raise WrongConfiguration(f"{path} has no provider 'inline::kv' under providers.responses {purpose}.")
    config = ResponsesConfig(**(provider.config or {}))
    if isinstance(config.store, MemoryStore):
        ends = "names the store 'memory', which is lost when the process ends: choose a persistent store"
        raise WrongConfiguration(f"{path} {ends}.")
    return config


def open_configured(path: Path, *, new: bool) -> tuple[Records, ResponsesConfig]:
    """Open the store of the stack with this configuration.

    Args:
        new: whether a file of the host's store that does not exist is made.

    Raises:
        WrongConfiguration: the configuration cannot be used.
        MissingFile: there is no such file.
    """
    stack = read_stack(path)
    config = responses_config(stack, path, "to read the store of")
    if isinstance(config.store, HostStore):
        if not new and (file := missing_file(stack, config.store.backend)):
            raise MissingFile(file)
        initialize_storage(stack)
    return with_tiers(open_records(config.store, backend), config), config


def missing_file(stack: StackConfig, name: str) -> str | None:
    """Return the file of a backend of the host's if it has one that does not exist. Opening it would make it."""
    file: str | None = getattr(stack.storage.backends.get(name), "db_path", None)
    if not file or file.startswith((":memory:", "file:")) or Path(file).exists():
        return None
    return file


def listed(error: ValidationError) -> str:
    """Return the locations and messages of the first errors, without the values, which may be secret."""
    found = error.errors(include_input=False, include_url=False)
    shown = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found[:_SHOWN_ERRORS]]
    more = [f"and {len(found) - _SHOWN_ERRORS} more"] if len(found) > _SHOWN_ERRORS else []
    return "; ".join([*shown, *more])
