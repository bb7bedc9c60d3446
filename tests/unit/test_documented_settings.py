"""The documentation has every setting with its default, and no others."""

import re
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.stores import Store
from tests.support.annotated_config import models
from tests.support.documented_tables import (
    DOCS,
    OF_GUIDES,
    REFERENCE,
    TABLES,
    completed,
    names,
    of_provider,
    rows,
    section,
)


def documented() -> dict[str, str]:
    """Return the settings of the provider's own part of a configuration."""
    own = of_provider((DOCS / REFERENCE).read_text())
    found = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \|", own, re.MULTILINE)
    return {name: default.strip() for name, default in found}


def test_settings_of_provider_are_documented() -> None:
    named = names(ResponsesConfig) - set(OF_GUIDES)
    extra = {name for name in documented().keys() - named if name.partition(".")[0] not in OF_GUIDES}
    assert (named - documented().keys(), extra) == (set(), set()), "`make tables` adds what is missing"


@pytest.mark.parametrize(("model", "page", "heading"), TABLES)
def test_settings_table_matches_model(model: type[BaseModel], page: str, heading: str) -> None:
    assert rows(section((DOCS / page).read_text(), heading)) == names(model), "`make tables` adds what is missing"


def test_stores_table_matches_models() -> None:
    text = (DOCS / REFERENCE).read_text()
    table = text.partition("\n## Stores\n")[2].partition("\n\nThe host logs")[0]
    cells = dict(re.findall(r"^\| `(\w+)` \| (`[^|]+) \|", table, re.MULTILINE))
    named = {kind: re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cell)) for kind, cell in cells.items()}
    stores = models(Store)
    assert named == {get_args(each.model_fields["type"].annotation)[0]: list(each.model_fields)[1:] for each in stores}


NUMBER: Final = re.compile(r"^([\d,.]+)(?: (KiB|MiB))?$")
UNITS: Final = {"": 1, "KiB": 2**10, "MiB": 2**20}


def value_of(model: type[BaseModel], name: str) -> Any:
    """Return the default of a setting."""
    first, _, rest = name.partition(".")
    field = model.model_fields[first]
    return value_of(models(field.annotation)[0], rest) if rest else field.default


@pytest.mark.parametrize(("name", "default"), documented().items())
def test_documented_default_matches_setting(name: str, default: str) -> None:
    if match := NUMBER.match(default):
        assert float(match[1].replace(",", "")) * UNITS[match[2] or ""] == value_of(ResponsesConfig, name)


def test_missing_row_is_added_after_the_one_before_it() -> None:
    table = "| setting | default | meaning |\n|---|---|---|\n| `a.b`, `a.c` | 1 | first |\n| `d` | 2 | last |\n"
    new = completed(
        table, [("a.b", "1", "x"), ("a.c", "1", "x"), ("e", "3", "new"), ("f", "`on`", "newer"), ("d", "2", "x")]
    )
    assert new.splitlines()[2:] == [
        "| `a.b`, `a.c` | 1 | first |", "| `e` | 3 | new |", "| `f` | `on` | newer |", "| `d` | 2 | last |"
    ]  # fmt: skip
    assert completed("| `d` | what it counts |\n", [("d", "", "x"), ("e", "", "new")]).endswith("\n| `e` | new |\n")
    with pytest.raises(ValueError, match="by hand"):
        completed(table, [("e", "3", "new"), ("d", "2", "x")])
