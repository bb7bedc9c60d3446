"""YAML of which no key is ignored."""

from __future__ import annotations

import pytest
import yaml

from llama_stack_responses.config.yaml_text import RepeatedKey, parsed_yaml


@pytest.mark.parametrize(
    "text", ["config:\n  fetch: {a: 1}\n  files: {}\n  fetch: {b: 2}\n", "- b\n- {fetch: 1,\n\n  fetch: 2}\n"]
)
def test_key_twice_in_one_mapping_is_refused_with_both_lines(text: str) -> None:
    with pytest.raises(RepeatedKey, match=r"lines 2 and 4 both have 'fetch' in the same block"):
        parsed_yaml(text)


def test_same_key_in_several_mappings_is_read() -> None:
    text = "a: &a {x: 1, y: 1}\nb: {c: &c {<<: *a, x: 2}}\nd: {<<: *c, y: 3}\n"
    assert parsed_yaml(text) == yaml.safe_load(text)


def test_empty_document_is_null() -> None:
    assert parsed_yaml("") is None
