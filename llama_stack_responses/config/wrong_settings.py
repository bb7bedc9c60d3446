"""What is wrong with the settings of several providers in a stack's configuration, each with its line in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .stack_file import is_disabled, substituted, variables_in
from .unknown_settings import UNKNOWN_SETTING, explained, near, places_of
from .yaml_text import YAML_LOADER, parsed_yaml

FindSettings = Callable[[str, str], type[BaseModel] | None]
"""Returns the settings class of a provider by its `module` and its type; None if it is not known here."""


@dataclass(frozen=True, slots=True)
class HostFields:
    """The names that the host reads at its levels of the file; it ignores all others."""

    top: Collection[str]
    server: Collection[str]
    entry: Collection[str]


def wrong_settings(
    text: str, find: FindSettings, environment: Mapping[str, str], host: HostFields | None = None
) -> Iterator[str]:
    """Yield a sentence for each wrong setting of the providers that `find` knows, without values that may be secret.

    Args:
        text: the file, which is YAML; what else is wrong with it is left to the host.
        environment: what its `${env.NAME}` are replaced by. A provider without a value for one is left to the host.
        host: what the host reads, to name settings of the providers where it ignores them.
    """
    root, stack = yaml.compose(text, Loader=YAML_LOADER), parsed_yaml(text)
    if host:
        yield from _misplaced(root, stack, find, host)
    for path, entry in _entries(stack):
        try:
            name = substituted(entry.get("provider_id"), environment)
            if is_disabled(name):
                continue
            # Finding the settings class of a provider imports its module.
            model = find(str(entry.get("module")), str(entry.get("provider_type")))
            config = substituted(entry.get("config"), environment) or {}
        except KeyError:
            continue
        if model is None or not isinstance(config, dict):
            continue
        yield from _wrong(root, path, name, model, config)


def _wrong(
    root: Any, path: list[int | str], name: str, model: type[BaseModel], config: dict[str, Any]
) -> Iterator[str]:
    """Yield what is wrong with the settings of one provider."""
    for each in _errors(model, config):
        setting, advice = ".".join(map(str, each["loc"])) or "config", each["msg"]
        line, raw = _found(root, [*path, "config", *each["loc"]])
        names = [] if each["type"] == UNKNOWN_SETTING else variables_in(raw)
        given = f" (from {', '.join(names)} in the environment)" if names else ""
        yield f"line {line}: '{setting}' of '{name}'{given}: {advice}{'' if advice.endswith('?') else '.'}"


def _misplaced(root: Any, stack: Any, find: FindSettings, host: HostFields) -> Iterator[str]:
    """Yield the settings at the levels of the host, which ignores them there."""
    found = [
        (path, entry, find(str(entry.get("module")), str(entry.get("provider_type"))))
        for path, entry in _entries(stack)
    ]
    own = [(_label(path, entry), model) for path, entry, model in found if model]
    server = stack.get("server") if own else None
    for level, there, known in ([], stack if own else {}, host.top), (["server"], server, host.server):
        for name in there if isinstance(there, dict) else ():
            if name not in known and (place := _belongs(str(name), own)):
                yield _moved(root, [*level, name], place)
    for path, entry, model in found:
        for name in entry if model else ():
            if model and name not in host.entry:
                if place := _belongs(str(name), [(_label(path, entry), model)]):
                    yield _moved(root, [*path, name], place)
                else:
                    rest = f"take it out; an entry has {', '.join(host.entry)}"
                    yield f"line {_found(root, [*path, name])[0]}: '{name}' is at a level where it is ignored: {rest}."


def _label(path: Sequence[int | str], entry: Mapping[str, Any]) -> str:
    return f"the provider '{entry['provider_type']}' under providers.{path[1]}"


def _moved(root: Any, place: Sequence[int | str], advice: str) -> str:
    return f"line {_found(root, place)[0]}: '{place[-1]}' is at a level where it is ignored: {advice}."


def _belongs(name: str, own: Sequence[tuple[str, type[BaseModel]]]) -> str:
    """Return where a setting belongs; empty if it is none of these providers, nor similar to one."""
    for label, model in own:
        if name == "config":
            return f"move it into the entry of {label}"
        if name == label.rpartition(".")[2] and name not in model.model_fields:
            return f"move its settings into the 'config' of {label}"
    for label, model in own:
        places = list(dict.fromkeys(places_of(model, name)))
        if name in places or ("_" in name and len(places) == 1):
            inner = "" if name in places else f" as '{places[0]}'"
            return f"move it into the 'config' of {label}{inner}"
    for label, model in own:
        if meant := near(name, list(model.model_fields)):
            return f"move it into the 'config' of {label}, where it is called '{meant}'"
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
    """Return the line of the innermost part of a place that the file has, and its text if the place has one.

    A place also has the kinds of blocks (`sqlite`), which the file does not have.
    """
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
