"""The template `annotated` has every setting, in its place, with its description and its true default."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Final, get_args

import pytest
import yaml
from pydantic import BaseModel

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.stack_file import substituted
from llama_stack_responses.config.stores import Store
from llama_stack_responses.host.provider_specs import WEB_SEARCHES
from tests.support.annotated_config import (
    ENTRIES,
    PROVIDERS,
    TEMPLATE,
    default_of,
    models,
    settings_class,
    uncommented,
    written_again,
)
from tests.support.stack import REPOSITORY, STARTER

TEXT: Final = TEMPLATE.read_text()
STORES: Final = {get_args(each.model_fields["type"].annotation)[0]: each for each in models(Store)}


def entries(text: str) -> dict[str, dict[str, Any]]:
    """Return the `config` of each provider of this package in a configuration."""
    # The default of the variable as it is written: the host would put the home folder in place of `~`.
    unset = text.replace("${env.STATE_DIR:=~/.llama-stack-responses}", "~/.llama-stack-responses")
    providers = substituted(yaml.safe_load(unset), {})["providers"]
    found = [each for of_api in providers.values() for each in of_api]
    return {each["provider_type"]: each["config"] for each in found if each["provider_type"] in PROVIDERS}


def places(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel], str]]:
    """Yield the place of each setting with its class and its name; the store is the default one."""
    for name, field in model.model_fields.items():
        inner = models(field.annotation)
        chosen = [type(default_of(model, name))] if len(inner) > 1 else inner
        if not chosen:
            yield prefix + name, model, name
        for each in chosen:
            yield from places(each, f"{prefix}{name}.")


def leaves(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a configuration by their places; a list or named entries of blocks are the one they have."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        several = list(value.values()) if ("ResponsesConfig", f"{prefix}{name}") in ENTRIES else value
        inner = several[0] if isinstance(several, list) and several and isinstance(several[0], dict) else value
        found |= leaves(inner, f"{prefix}{name}.") if isinstance(inner, dict) and inner else {prefix + name: value}
    return found


def test_template_is_what_its_classes_say() -> None:
    assert written_again(TEXT) == TEXT, "`make tables` writes it again"


def test_template_and_guide_have_an_entry_of_each_web_search() -> None:
    guide = (REPOSITORY / "docs" / "guides" / "web-search.md").read_text()
    for text in (TEXT, guide):
        missing = WEB_SEARCHES - set(re.findall(r"provider_type: (\S+)", text))
        assert not missing, "CONTRIBUTING.md, 'A search provider', says where it belongs"


@pytest.mark.parametrize("provider", PROVIDERS)
def test_template_has_every_setting_in_its_place_and_no_other(provider: str) -> None:
    there = leaves(entries(uncommented(TEXT))[provider])
    assert sorted(there) == sorted(place for place, _, _ in places(settings_class(provider)))


@pytest.mark.parametrize("provider", PROVIDERS)
def test_template_has_true_defaults(provider: str) -> None:
    there = leaves(entries(uncommented(TEXT))[provider])
    settings = places(settings_class(provider))
    defaults = {place: default_of(model, name) for place, model, name in settings if not required(model, name)}
    assert {place: there[place] for place in defaults} == {place: plain(each) for place, each in defaults.items()}


def required(model: type[BaseModel], name: str) -> bool:
    """Return whether a setting has no default."""
    return model.model_fields[name].is_required()


def plain(value: Any) -> Any:
    """Return a default as YAML has it."""
    if isinstance(value, frozenset):
        return sorted(value)
    return value if value is None or isinstance(value, bool | int | float | list | dict) else str(value)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_template_in_force_is_what_an_empty_configuration_is(provider: str) -> None:
    model = settings_class(provider)
    needed = {name: value for name, value in entries(TEXT)[provider].items() if required(model, name)}
    assert model.model_validate(entries(TEXT)[provider]) == model.model_validate(needed)


@pytest.mark.parametrize("kind", STORES)
def test_template_with_each_store_is_valid_and_has_all_settings_of_it(kind: str) -> None:
    config = entries(uncommented(TEXT, kind))["inline::kv"]
    assert list(config["store"]) == list(STORES[kind].model_fields)
    assert type(ResponsesConfig.model_validate(config).store) is STORES[kind]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_every_setting_has_a_description_above_it(provider: str) -> None:
    section = TEXT.partition(f"--- settings of {provider} ---\n")[2].partition("# --- end of settings ---")[0]
    for above, line in pairwise(section.splitlines()):
        if re.match(r" *#?(?:- )?\w+:", line) and not re.match(r" *#?store:", above):
            assert re.match(r" *# \S", above), line


def test_template_has_the_tables_and_files_of_the_starter() -> None:
    annotated, starter = (yaml.safe_load(text) for text in (TEXT, STARTER.read_text()))
    assert annotated["storage"] == starter["storage"]
    assert set(starter["apis"]) <= set(yaml.safe_load(uncommented(TEXT))["apis"])
    assert annotated["server"] == starter["server"]
    assert annotated["providers"]["files"] == starter["providers"]["files"]


def test_template_keeps_all_data_in_the_folder_of_one_variable() -> None:
    there = substituted(yaml.safe_load(uncommented(TEXT)), {"STATE_DIR": "/data"})
    assert "~/.llama-stack-responses" not in str(there)
    assert entries(TEXT)["inline::kv"]["store"]["path"] == "~/.llama-stack-responses/responses.db"


def test_lines_of_template_are_short() -> None:
    assert [line for line in TEXT.splitlines() if len(line) > 120] == []
