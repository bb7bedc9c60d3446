"""The model servers that the command examines: one by its URL, or those of a stack's configuration."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from ...commands.command_error import CommandError
from ...config.stack_file import UnreadableStack, inference_providers
from ...core.types import Json
from ...model_server.client import Access, ModelServerClient, access_of


@dataclass(frozen=True, slots=True)
class Target:
    """A model server to examine.

    Attributes:
        name: the id of its provider; empty if it is named by its URL.
        access: its URL, key and network settings.
        client: asks it.
        model: the model to examine; None for the only one.
    """

    name: str
    access: Access
    client: ModelServerClient
    model: str | None = None

    @property
    def key(self) -> str:
        """The key of the model server; empty if it needs none."""
        return self.access.api_key.get_secret_value() if self.access.api_key else ""


def targets_of(arguments: Namespace, environment: Mapping[str, str]) -> list[Target]:
    """Return what the arguments of the command name.

    Raises:
        CommandError: it cannot be asked; the message says what to do.
    """
    network: Json = {"timeout": {"connect": min(10.0, arguments.seconds), "read": arguments.seconds}}
    if arguments.ca:
        if not arguments.ca.is_file():
            raise CommandError(f"There is no file {arguments.ca}: name the certificates of the authority with --ca.", 2)
        network["tls"] = {"verify": str(arguments.ca)}
    if is_alone(arguments):
        return [_of_url(arguments, _key(arguments, environment), network)]
    if not arguments.config.is_file():
        missing = f"there is no {arguments.config}"
        raise CommandError(f"Name the URL of a model server, or with --config a stack's configuration: {missing}.", 2)
    try:
        providers = inference_providers(arguments.config, environment)
    except UnreadableStack as error:
        raise CommandError(str(error), 2) from error
    found = [_of_provider(each, network) for each in providers]
    targets = [each for each in found if each]
    if arguments.url:
        return [_named(arguments.url, targets)]
    if not targets:
        raise CommandError(
            f"{arguments.config} has no inference provider with the URL of a model server: name one with URL.", 2
        )
    return targets


def is_alone(arguments: Namespace) -> bool:
    """Return whether the arguments name the URL of a model server, and no configuration takes part."""
    return "://" in (arguments.url or "")


def _named(model: str, targets: list[Target]) -> Target:
    """Return the model server of a model that is named as in the stack."""
    for target in targets:
        if model.startswith(f"{target.name}/"):
            return replace(target, model=model.removeprefix(f"{target.name}/"))
    names = ", ".join(f"'{each.name}/'" for each in targets) or "none"
    raise CommandError(
        f"'{model}' is no URL, which begins with http:// or https://, and no model of a provider of the configuration, "
        f"which begins with one of: {names}.",
        2,
    )


def _key(arguments: Namespace, environment: Mapping[str, str]) -> str | None:
    if not arguments.key_env:
        key: str | None = arguments.key
        return key
    if not environment.get(arguments.key_env):
        raise CommandError(f"The environment variable {arguments.key_env} is not set: set it to the key.", 2)
    return environment[arguments.key_env]


def _of_url(arguments: Namespace, key: str | None, network: Json) -> Target:
    url: str = arguments.url
    if not urlsplit(url).path.strip("/"):
        url = f"{url.rstrip('/')}/v1"
    if "@" in urlsplit(url).netloc:
        form = "it has to be of the form https://HOST:PORT/PATH; the variable with a key is named with --key-env"
        raise CommandError(f"The URL cannot be used: {form}.", 2)
    access = _access({"base_url": url, "api_key": key, "network": network}, "URL")
    return Target(
        "", access, ModelServerClient(access, "name the variable with the right one with --key-env"), arguments.model
    )


def _of_provider(provider: Json, network: Json) -> Target | None:
    """Return the model server of a provider; None if the configuration has no URL of it."""
    name, settings = provider["provider_id"], provider["config"]
    url = settings.get("base_url") or settings.get("url")
    if not isinstance(url, str):
        return None
    key = settings.get("api_key") or settings.get("api_token")
    given = settings.get("network")
    merged = {
        **network,
        **{each: value for each, value in (given or {}).items() if each in ("tls", "proxy", "headers")},
    }
    access = _access({"base_url": url, "api_key": key and str(key), "network": merged}, f"provider '{name}'")
    return Target(name, access, ModelServerClient(access, f"check 'api_key' of the provider '{name}'"))


def _access(settings: Mapping[str, Any], what: str) -> Access:
    try:
        return access_of(settings)
    except ValueError as error:
        raise CommandError(f"The {what} cannot be used: {str(error).rstrip('.')}.", 2) from None
