"""The documentation has every setting with its default, and no others."""

import re
from collections.abc import Iterator
from typing import Any, Final, get_args

import pytest
from pydantic import BaseModel

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.services import Fetching, McpServers
from llama_stack_responses.config.stores import Store
from llama_stack_responses.features.code.settings import CodeInterpreter
from llama_stack_responses.features.images.settings import ImageGeneration
from tests.support.annotated_config import models
from tests.support.stack import REPOSITORY

DOCS: Final = REPOSITORY / "docs"
OF_GUIDES: Final = ("fetch", "code_interpreter", "image_generation", "mcp")
"""Parts whose tables are in guides, and named in the reference."""
OF_TABLES: Final = ("store", "profiles")
"""Parts with a separate table."""


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted names of all settings."""
    for name, field in model.model_fields.items():
        inner = [] if prefix + name in (*OF_GUIDES, *OF_TABLES) else models(field.annotation)
        if not inner:
            yield prefix + name
        for each in inner:
            yield from settings(each, f"{prefix}{name}.")


def rows(page: str, heading: str) -> set[str]:
    """Return the settings in the tables between this heading and the next of its level or above."""
    text = (DOCS / page).read_text()
    marks, section = re.search(rf"^(#+) {re.escape(heading)}\n(.*)", text, re.MULTILINE | re.DOTALL).groups()  # type: ignore[union-attr]
    section = re.split(rf"^#{{1,{len(marks)}}} ", section, flags=re.MULTILINE)[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", section, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def documented() -> dict[str, str]:
    """Return the settings of the provider's own part of a configuration."""
    text = (DOCS / "reference" / "configuration.md").read_text()
    own = text[: text.index("\n## The model server\n")]
    found = re.findall(r"^\| `([a-z_.]+)` \| ([^|]*) \|", own, re.MULTILINE)
    return {name: default.strip() for name, default in found}


def test_settings_of_provider_are_documented() -> None:
    named = set(settings(ResponsesConfig)) - set(OF_GUIDES)
    extra = set(documented()) - named
    assert (named - set(documented()), {name for name in extra if name.partition(".")[0] not in OF_GUIDES}) == (
        set(),
        set(),
    )


@pytest.mark.parametrize(
    ("model", "page", "heading"),
    [
        (CodeInterpreter, "guides/code-interpreter.md", "Set it up"),
        (ImageGeneration, "guides/image-generation.md", "Set up an image server"),
        (McpServers, "guides/mcp.md", "Settings"),
        (Fetching, "guides/web-search.md", "What may be fetched"),
        (Profile, "reference/configuration.md", "Profiles"),
        (OpenAIChatConfig, "reference/configuration.md", "The model server"),
    ],
)
def test_settings_table_matches_model(model: type[BaseModel], page: str, heading: str) -> None:
    expected = set(Profile.model_fields) if model is Profile else set(settings(model))
    assert rows(page, heading) == expected


def test_stores_table_matches_models() -> None:
    text = (DOCS / "reference" / "configuration.md").read_text()
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
