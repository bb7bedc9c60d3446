"""What is wrong with the settings of several providers in a stack's configuration, each with its line in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .provider_names import ProviderNames, unknown_names
from .stack_file import inference_ids, is_disabled, substituted, variables_in
from .stack_forms import wrong_forms
from .unknown_settings import FOREIGN_SETTING, UNKNOWN_SETTING, WRONG_VALUE, belonging_place, explained
from .wrong_values import near
from .yaml_text import parsed_with_root

FindSettings = Callable[[str, str], type[BaseModel] | None]
"""Returns the settings class of a provider by its `module` and its type; None if it is not known here."""


@dataclass(frozen=True, slots=True)
class HostFields:
    """The names that the host reads at its levels of the file; it ignores all others."""

    top: Collection[str]
    server: Collection[str]
    entry: Collection[str]


@dataclass(frozen=True, slots=True)
class _Provider:
    """A provider of the file.

    Attributes:
        path: the place of its entry.
        entry: the entry.
        name: its id.
        model: its settings class.
    """

    path: Sequence[int | str]
    entry: Mapping[str, Any]
    name: str
    model: type[BaseModel]

    @property
    def api(self) -> str:
        """The name of its API."""
        return str(self.path[1])

    @property
    def label(self) -> str:
        """What it is called in a sentence."""
        return f"the provider '{self.entry['provider_type']}' under providers.{self.api}"


def wrong_settings(
    text: str,
    find: FindSettings,
    environment: Mapping[str, str],
    host: HostFields | None = None,
    names: ProviderNames | None = None,
) -> Iterator[str]:
    """Yield a sentence for each wrong setting of the providers that `find` knows, without values that may be secret.

    Args:
        text: the file, which is YAML.
        environment: what its `${env.NAME}` are replaced by. A provider without a value for one is left to the host.
        host: what the host reads, to name entries of a wrong form, and settings where it ignores them.
        names: what the host finds, to name what it would not.
    """
    root, stack = parsed_with_root(text)
    for place, advice in unknown_names(stack, environment, names) if names else ():
        yield _sentence(root, place, place, "", {"type": WRONG_VALUE, "msg": advice})
    if host:
        for place, advice in wrong_forms(stack, environment):
            belongs = _belongs(str(place[-1]), list(_known(stack, find))) if len(place) == 2 else ""
            yield _sentence(root, place, place, "", {"type": WRONG_VALUE, "msg": belongs or advice})
        if _has_ignored(stack, host):
            yield from _misplaced(root, stack, list(_known(stack, find)), host)
    known = list(_known(stack, find, environment))
    for each in known:
        try:
            config = substituted(each.entry.get("config"), environment) or {}
        except KeyError:
            continue
        if isinstance(config, dict):
            yield from _wrong(root, each, config, known)
            yield from _unknown_providers(root, each, config, inference_ids(stack, environment))


def wrong_fields(text: str, model: type[BaseModel], error: ValidationError) -> Iterator[str]:
    """Yield a sentence for each field that the host refuses while it reads the file.

    Args:
        text: the file.
        model: the host's class.
        error: its error.
    """
    root, _ = parsed_with_root(text)
    for each in explained(model, error).errors(include_url=False, include_input=False):
        yield _sentence(root, each["loc"], each["loc"], "", each)


def _known(stack: Any, find: FindSettings, environment: Mapping[str, str] | None = None) -> Iterator[_Provider]:
    """Yield the providers that `find` knows: with an environment, those that are enabled in it, else all.

    Finding the settings class of a provider imports its module.
    """
    for path, entry in _entries(stack):
        name: Any = entry.get("provider_id")
        if environment is not None:
            try:
                name = substituted(name, environment)
            except KeyError:
                continue
            if is_disabled(name):
                continue
        if model := find(str(entry.get("module")), str(entry.get("provider_type"))):
            yield _Provider(path, entry, name, model)


def _wrong(root: Any, provider: _Provider, config: dict[str, Any], known: Sequence[_Provider]) -> Iterator[str]:
    """Yield what is wrong with the settings of one provider; `known` has the others, whose settings they may be."""
    for each in _errors(provider.model, config):
        if each["type"] == FOREIGN_SETTING and (place := _of_other(str(each["loc"][-1]), provider, known)):
            each["msg"] = f"there is no such setting here; {place}"
        yield _sentence(root, [*provider.path, "config", *each["loc"]], each["loc"], f" of '{provider.name}'", each)


def _of_other(name: str, provider: _Provider, known: Sequence[_Provider]) -> str:
    """Return to which other provider a setting belongs; empty if to none."""
    return _belongs(name, [each for each in known if each.model is not provider.model])


def _sentence(root: Any, place: Sequence[int | str], setting: Sequence[int | str], of: str, error: Any) -> str:
    """Return the sentence for an error of a value, with its line and the variables that it is from."""
    line, raw = _found(root, place)
    names = [] if error["type"] in (UNKNOWN_SETTING, FOREIGN_SETTING) else variables_in(raw)
    given = f" (from {', '.join(names)} in the environment)" if names else ""
    name, advice = ".".join(map(str, setting)) or "config", error["msg"]
    return f"line {line}: '{name}'{of}{given}: {_ended(advice)}"


def _ended(advice: str) -> str:
    return advice if advice.endswith("?") else f"{advice}."


def _unknown_providers(
    root: Any, provider: _Provider, config: Mapping[str, Any], ids: Collection[str]
) -> Iterator[str]:
    """Yield the inference providers that the settings name, and the stack does not have."""
    for place, name in _named_providers(provider.model, config):
        if name not in ids:
            meant = near(name, list(ids))
            rest = f"; did you mean '{meant}'?" if meant else f", it has {', '.join(ids) or 'none'}"
            said = {"type": WRONG_VALUE, "msg": f"the stack has no inference provider '{name}'{rest}"}
            yield _sentence(root, [*provider.path, "config", *place], place, f" of '{provider.name}'", said)


def _named_providers(model: type[BaseModel], config: Mapping[str, Any]) -> Iterator[tuple[list[int | str], str]]:
    """Yield each place in the settings that names an inference provider, and the name."""
    for setting in ("model_servers", "ready_providers"):
        value = config.get(setting) if setting in model.model_fields else None
        named: Iterable[tuple[int | str, Any]] = ()
        if isinstance(value, dict):
            named = ((name, name) for name in value)
        elif isinstance(value, list):
            named = enumerate(value)
        yield from (([setting, place], name) for place, name in named if isinstance(name, str))


def _levels(stack: Any, host: HostFields) -> Iterator[tuple[list[str], Any, Sequence[str]]]:
    """Yield the names at the levels of the host above providers that it ignores, each with its level's own names."""
    server = stack.get("server") if isinstance(stack, dict) else None
    for level, there, fields in ([], stack, host.top), (["server"], server, host.server):
        yield from (
            (level, name, list(fields)) for name in (there if isinstance(there, dict) else ()) if name not in fields
        )


def _has_ignored(stack: Any, host: HostFields) -> bool:
    """Return whether there is a name that the host ignores."""
    return any(_levels(stack, host)) or any(name not in host.entry for _, entry in _entries(stack) for name in entry)


def _misplaced(root: Any, stack: Any, providers: Sequence[_Provider], host: HostFields) -> Iterator[str]:
    """Yield the settings at the levels of the host, which ignores them there."""
    for level, name, own in _levels(stack, host):
        meant = near(str(name), own)
        advice = f"did you mean '{meant}'?" if meant else _of_near_name(str(name), providers)
        if advice := _of_same_name(str(name), providers) or advice:
            yield _moved(root, [*level, name], advice)
    for each in providers:
        for name in each.entry:
            if name not in host.entry:
                rest = f"take it out; an entry has {', '.join(host.entry)}"
                yield _moved(root, [*each.path, name], _belongs(str(name), [each]) or rest)


def _moved(root: Any, place: Sequence[int | str], advice: str) -> str:
    return f"line {_found(root, place)[0]}: '{place[-1]}' is at a level where it is ignored: {_ended(advice)}"


def _belongs(name: str, providers: Sequence[_Provider]) -> str:
    """Return where a setting belongs; empty if it is none of these providers, nor similar to one."""
    return _of_same_name(name, providers) or _of_near_name(name, providers)


def _of_same_name(name: str, providers: Sequence[_Provider]) -> str:
    for each in providers:
        if name == "config":
            return f"move it into the entry of {each.label}"
        if name == each.api and name not in each.model.model_fields:
            return f"move its settings into the 'config' of {each.label}"
    for each in providers:
        if place := belonging_place(each.model, name):
            inner = "" if name == place else f" as '{place}'"
            return f"move it into the 'config' of {each.label}{inner}"
    return ""


def _of_near_name(name: str, providers: Sequence[_Provider]) -> str:
    for each in providers:
        if meant := near(name, list(each.model.model_fields)):
            return f"move it into the 'config' of {each.label}, where it is called '{meant}'"
    return ""


def _entries(stack: Any) -> Iterator[tuple[list[int | str], dict[str, Any]]]:
    providers = stack.get("providers") if isinstance(stack, dict) else None
    for api, entries in (providers if isinstance(providers, dict) else {}).items():
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield ["providers", api, index], entry


def _errors(model: type[BaseModel], config: dict[str, Any]) -> Sequence[Any]:
    try:
        model(**config)
    except ValidationError as error:
        return explained(model, error).errors(include_url=False, include_input=False)
    return []


def _found(node: Any, place: Sequence[int | str]) -> tuple[int, str]:
    """Return the line of the innermost part of a place that the file has, and its text if the place has one."""
    line = node.start_mark.line
    for part in place:
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == str(part):
                    line, node = key.start_mark.line, value
                    break
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line
    return line + 1, node.value if isinstance(node, yaml.ScalarNode) else ""
