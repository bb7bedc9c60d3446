"""Names of APIs, provider types and modules in a stack's configuration that the host would not find when it starts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .stack_file import PROVIDER_TYPE, is_disabled, substituted
from .wrong_values import near

type _WrongName = tuple[list[int | str], str]
"""A place in the file, and what is said of the name there."""

_API = "responses"


@dataclass(frozen=True, slots=True)
class ProviderNames:
    """The names that the installed host finds.

    Attributes:
        apis: its APIs.
        types: returns its own provider types of an API.
        modules: modules whose provider types are known, with these. For other modules the host may take any.
        packages: names of modules that may be meant.
        has_module: returns whether the provider of a module is installed.
    """

    apis: Collection[str]
    types: Callable[[str], Collection[str]]
    modules: Mapping[str, Collection[str]]
    packages: Sequence[str]
    has_module: Callable[[str], bool]


def unknown_names(stack: Any, environment: Mapping[str, str], names: ProviderNames) -> Iterator[_WrongName]:
    """Yield each name that the host does not find, and the API of this project if it is not served.

    Args:
        stack: the content of the file. Names that its folders of external APIs and providers may have are left out.
        environment: what its `${env.NAME}` are replaced by. An entry without a value for one is left to the host.
    """
    providers = stack.get("providers") if isinstance(stack, dict) else None
    if not isinstance(providers, dict):
        return
    if not stack.get("external_apis_dir"):
        yield from _unknown_apis(stack.get("apis"), providers, list(names.apis))
    for api, entries in providers.items():
        for index, entry in enumerate(entries if isinstance(entries, list) and api in names.apis else ()):
            read = _enabled(entry, environment)
            place: list[int | str] = ["providers", api, index]
            if read and (
                wrong := _wrong_entry(api, *read, names, has_folder=bool(stack.get("external_providers_dir")))
            ):
                yield [*place, wrong[0]], wrong[1]
            if read and read[0] == PROVIDER_TYPE and api == _API and _is_unserved(stack.get("apis"), names.apis):
                yield ["apis"], f"'{_API}' is missing here, so that its provider does not serve"


def _is_unserved(served: Any, apis: Collection[str]) -> bool:
    """Return whether the API of this project is not served, and no misspelt name may be meant for it."""
    listed = _list(served)
    return bool(listed) and _API not in listed and all(each in apis for each in listed)


def _unknown_apis(served: Any, providers: Mapping[Any, Any], apis: Sequence[str]) -> Iterator[_WrongName]:
    listed: list[_WrongName] = [(["apis", index], each) for index, each in enumerate(_list(served))]
    for place, name in [
        *listed,
        *((["providers", api], api) for api, each in providers.items() if isinstance(each, list)),
    ]:
        if isinstance(name, str) and name not in apis:
            yield list(place), _other("the host has no API", name, apis)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []


def _enabled(entry: Any, environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the type and the module of an entry; None if it is disabled, or cannot be read here."""
    try:
        found = [substituted(entry.get(each), environment) for each in ("provider_id", "provider_type", "module")]
    except (AttributeError, KeyError):
        return None
    name, kind, module = found
    return None if is_disabled(name) or not isinstance(kind, str) else (kind, str(module or ""))


def _wrong_entry(api: str, kind: str, module: str, names: ProviderNames, *, has_folder: bool) -> tuple[str, str] | None:
    """Return the setting of an entry whose name is not found, and what is said of it."""
    package = module.partition("==")[0]
    if package and package not in names.modules:
        known = names.has_module(package)
        return None if known else ("module", _other("no provider is installed in the module", package, names.packages))
    if package:
        source, types = f"the module '{package}'", names.modules[package]
    else:
        source, types = "the host", [kind] if has_folder else names.types(api)
    if kind in types:
        return None
    missing = [each for each, others in names.modules.items() if kind in others]
    if missing:
        return "provider_type", f"'module: {missing[0]}' is missing beside this type"
    known_types = [*types, *(each for others in names.modules.values() for each in others)]
    return "provider_type", _other(f"{source} has no provider type", kind, known_types)


def _other(said: str, name: str, known: Sequence[str]) -> str:
    meant = near(name, [each for each in known if each != name])
    return f"{said} '{name}'; did you mean '{meant}'?" if meant else f"{said} '{name}'"
