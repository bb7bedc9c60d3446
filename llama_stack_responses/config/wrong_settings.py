"""What is wrong with the settings of several providers in a stack's configuration, each with its line in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from .stack_file import is_disabled, substituted, variables_in
from .unknown_settings import UNKNOWN_SETTING, explained
from .yaml_text import YAML_LOADER, parsed_yaml

FindSettings = Callable[[str, str], type[BaseModel] | None]
"""Returns the settings class of a provider by its `module` and its type; None if it is not known here."""


def wrong_settings(text: str, find: FindSettings, environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each wrong setting of the providers that `find` knows, without values that may be secret.

    Args:
        text: the file, which is YAML; what else is wrong with it is left to the host.
        environment: what its `${env.NAME}` are replaced by. A provider without a value for one is left to the host.
    """
    root, stack = yaml.compose(text, Loader=YAML_LOADER), parsed_yaml(text)
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
        for each in _errors(model, config):
            setting, advice = ".".join(map(str, each["loc"])) or "config", each["msg"]
            line, raw = _found(root, [*path, "config", *each["loc"]])
            names = [] if each["type"] == UNKNOWN_SETTING else variables_in(raw)
            given = f" (from {', '.join(names)} in the environment)" if names else ""
            yield f"line {line}: '{setting}' of '{name}'{given}: {advice}{'' if advice.endswith('?') else '.'}"


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
