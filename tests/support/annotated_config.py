"""The template `annotated`: a `config.yaml` with every setting, its description and its default.

`make tables` writes the settings again between the lines `--- settings of ... ---` and `--- end of settings ---` of the
template. What stands outside of them is written by hand. The descriptions are those of the classes of the settings.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from pkgutil import resolve_name
from types import MappingProxyType
from typing import Any, Final, get_args

import yaml
from pydantic import BaseModel

from llama_stack_responses.host.provider_specs import provider_specs
from tests.support.stack import REPOSITORY

TEMPLATE: Final = REPOSITORY / "templates" / "annotated" / "config.yaml"
PROVIDERS: Final[Mapping[str, str]] = {spec.provider_type: spec.config_class for spec in provider_specs()}
"""The classes of the settings of each provider."""
EXAMPLES: Final[Mapping[tuple[str, str], Any]] = MappingProxyType(
    {
        ("OpenAIChatConfig", "base_url"): "${env.INFERENCE_URL:=http://localhost:8080/v1}",
        ("OpenAIChatConfig", "api_key"): "${env.INFERENCE_API_KEY:=}",
        ("DdgsConfig", "service"): "${env.WEB_SEARCH:=ddgs}",
        ("SqliteStore", "path"): "${env.STATE_DIR:=~/.llama-stack-responses}/responses.db",
        ("CodeInterpreter", "folder"): "${env.STATE_DIR:=~/.llama-stack-responses}/containers",
    }
)
"""Values of settings that come from the environment. Others without a default have an example in their class."""
ENTRIES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {("ResponsesConfig", "teams"): "search", ("ResponsesConfig", "model_servers"): "local"}
)
"""The name of an entry of the settings that have names of the operator's own."""
COMMENT_WIDTH: Final = 100
"""Characters of a line of a description; a longer list has a line for each entry."""
UNITS: Final[Mapping[str, int]] = MappingProxyType({"GiB": 2**30, "MiB": 2**20, "KiB": 2**10})

_SECTION: Final = re.compile(
    r"^(?P<indent> *)# --- settings of (?P<provider>\S+) ---\n.*?^ *# --- end of settings ---\n",
    re.MULTILINE | re.DOTALL,
)
_DESCRIBED: Final = re.compile(r"^    (\w+): (.+(?:\n {8}.+)*)", re.MULTILINE)
_HIDDEN: Final = re.compile(r"^( *)#(?=\S)", re.MULTILINE)
_STORES: Final = re.compile(r"^ {6}#?store:\n {8}#?type: (?P<type>\w+)\n(?: {8,}.*\n)*", re.MULTILINE)


def settings_class(provider: str) -> type[BaseModel]:
    """Return the class of a provider's settings."""
    found: type[BaseModel] = resolve_name(PROVIDERS[provider])
    return found


def models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models in an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for each in get_args(annotation) for found in models(each)]


def description(model: type[BaseModel], name: str) -> str:
    """Return what the classes say of a setting, as a sentence: its field, the `Attributes`, or the class of its value.

    Raises:
        KeyError: they say nothing.
    """
    field = model.model_fields[name]
    described: dict[str, str] = {}
    for each in reversed(model.__mro__):
        described |= _DESCRIBED.findall(inspect.cleandoc(each.__doc__ or "").partition("Attributes:\n")[2])
    text = field.description or described.get(name) or next(map(summary, models(field.annotation)), None)
    if text is None:
        raise KeyError(f"{model.__name__}.{name} has no description")
    return re.sub(r"\s+", " ", text[0].upper() + text[1:]).rstrip(".") + "."


def summary(model: type[BaseModel]) -> str:
    """Return the first line of the description of a class."""
    return inspect.cleandoc(model.__doc__ or "").partition("\n")[0]


def default_of(model: type[BaseModel], name: str) -> Any:
    """Return the value of a setting that is not configured."""
    return model.model_fields[name].get_default(call_default_factory=True)


def uncommented(text: str, store: str = "sqlite") -> str:
    """Return the template with all settings in force, and one of the stores."""
    chosen = _STORES.sub(lambda found: found[0] if found["type"] == store else "", text)
    return _HIDDEN.sub(r"\1", chosen)


def written_again(text: str) -> str:
    """Return the template with the settings as the classes have them now."""

    def section(found: re.Match[str]) -> str:
        indent, provider = found["indent"], found["provider"]
        lines = [f"# --- settings of {provider} ---", *_settings(settings_class(provider)), "# --- end of settings ---"]
        return "".join(f"{indent}{line}\n" for line in lines)

    return _SECTION.sub(section, text)


def _settings(model: type[BaseModel], hidden: str = "") -> Iterator[str]:
    """Yield the lines of all settings of a model; `hidden` is `#` if the whole block is commented out."""
    for name, field in model.model_fields.items():
        inner = models(field.annotation)
        if len(inner) > 1:
            yield from _kinds(model, name, inner)
        elif inner:
            yield from _block(model, name, inner[0])
        else:
            yield from _setting(model, name, hidden)


def _setting(model: type[BaseModel], name: str, hidden: str) -> Iterator[str]:
    mark = hidden if _example(model, name) else "#"
    required = "  # required" if model.model_fields[name].is_required() else ""
    value = _example(model, name) or default_of(model, name)
    yield from _comment(description(model, name))
    yield from (f"{mark}{line}{required}" for line in _lines(name, value))


def _example(model: type[BaseModel], name: str) -> Any:
    return EXAMPLES.get((model.__name__, name)) or next(iter(model.model_fields[name].examples or ()), None)


def _block(model: type[BaseModel], name: str, inner: type[BaseModel]) -> Iterator[str]:
    """Yield the lines of a setting that has settings of its own, or a list or entries of such."""
    none = " There is none by default." if default_of(model, name) is None else ""
    yield from _comment(description(model, name) + none)
    yield f"#{name}:"
    lines = "".join(f"  {line}\n" for line in _settings(inner, "#"))
    if entry := ENTRIES.get((model.__name__, name)):
        lines = f"  # By its name.\n  #{entry}:\n{textwrap.indent(lines, '  ')}"
    if isinstance(default_of(model, name), list):
        lines = _HIDDEN.sub("#- ", lines, count=1)
    yield from lines.splitlines()


def _kinds(model: type[BaseModel], name: str, kinds: list[type[BaseModel]]) -> Iterator[str]:
    """Yield the lines of a setting that has one of several kinds of values; the default is in force."""
    yield from _comment(f"{description(model, name)} One of these:")
    default = type(default_of(model, name))
    for kind in sorted(kinds, key=lambda each: each is not default):
        mark = "" if kind is default else "#"
        yield from _comment(summary(kind))
        yield f"{mark}{name}:"
        [value] = get_args(kind.model_fields["type"].annotation)
        yield f"  {mark}type: {value}"
        yield from (f"  {line}" for each in kind.model_fields if each != "type" for line in _setting(kind, each, mark))


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, COMMENT_WIDTH)]


def _lines(name: str, value: Any) -> Iterator[str]:
    """Yield a setting with its value as YAML."""
    value = sorted(value) if isinstance(value, frozenset) else value
    if isinstance(value, list) and len(str(value)) > COMMENT_WIDTH:
        yield f"{name}:"
        yield from (f"- {each}" for each in value)
        return
    yield f"{name}: {_yaml(value)}{_size(value) if 'bytes' in name and value else ''}"


def _yaml(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    plain = str(value) if isinstance(value, PurePath) else value
    return yaml.safe_dump(plain, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _size(count: int) -> str:
    """Return a comment with a number of bytes in the largest unit of which it is a multiple; none for bytes."""
    units = (f"  # {count // size} {unit}" for unit, size in UNITS.items() if count % size == 0)
    return next(units, "")
