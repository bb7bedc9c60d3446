"""A stack configuration with the YAML blocks of the documentation inserted, as a reader would."""

from collections.abc import Iterable
from typing import Any, Final

import yaml

from llama_stack_responses.host.provider_specs import provider_specs
from tests.support.variants import responses_config

type Json = dict[str, Any]

ENTRY: Final = {"provider_id", "provider_type", "module", "config"}
OWN_MODULES: Final = {
    **{spec.provider_type: "llama_stack_responses" for spec in provider_specs()},
    "inline::gpt-oss": "llama_stack_gpt_oss",
}
"""Providers that no host has built in: an entry without its module does not start."""


def put_in(config: Json, block: str) -> None:
    """Insert a block: a part of a configuration, or settings of the responses provider.

    An existing provider gets the block's settings; a new one is added.
    """
    said: Json = yaml.safe_load(block)
    if not said.keys() & {"providers", "apis"}:
        _merge(responses_config(config), said)
        return
    for api, entries in said.pop("providers", {}).items():
        _put_providers(config["providers"].setdefault(api, []), entries)
    config["apis"] += [api for api in said.pop("apis", []) if api not in config["apis"]]
    _merge(config, said)


def provider_ids(blocks: Iterable[str]) -> set[str]:
    """Return the ids of all providers in these blocks."""
    texts = [yaml.safe_load(block).get("providers", {}) for block in blocks]
    return {entry["provider_id"] for each in texts for entries in each.values() for entry in entries}


def check_entry(entry: Json) -> None:
    """Check that an entry is complete: a host does not start without its id, type and module."""
    assert {"provider_id", "provider_type"} <= entry.keys() <= ENTRY, entry
    assert entry.get("module") == OWN_MODULES.get(entry["provider_type"]), entry


def _put_providers(there: list[Json], entries: list[Json]) -> None:
    for entry in entries:
        check_entry(entry)
        found = next((each for each in there if each["provider_id"] == entry["provider_id"]), None)
        if found is None:
            there.append(entry)
        else:
            _merge(found, entry)


def _merge(into: Json, addition: Json) -> None:
    for key, value in addition.items():
        there = into.get(key)
        if isinstance(there, dict) and isinstance(value, dict):
            _merge(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            there += value
        else:
            into[key] = value
