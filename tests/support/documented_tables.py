"""What the documentation lists of settings and metrics, and the program that adds what is new.

    make tables

It writes the settings of the template `annotated` again, and adds a row for each setting and metric that a table of the
documentation lacks, with its default and its description from the code. The words of a row may then be improved.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Final

from pydantic import BaseModel

from llama_stack_openai_chat.config import OpenAIChatConfig
from llama_stack_responses.chat.profile import Profile
from llama_stack_responses.config import ResponsesConfig
from llama_stack_responses.config.services import Fetching, McpServers
from llama_stack_responses.features.code.settings import CodeInterpreter
from llama_stack_responses.features.images.settings import ImageGeneration
from tests.support.annotated_config import TEMPLATE, default_of, description, models, written_again
from tests.support.sources import trees
from tests.support.stack import REPOSITORY

DOCS: Final = REPOSITORY / "docs"
PACKAGE: Final = REPOSITORY / "llama_stack_responses"
OF_GUIDES: Final = ("fetch", "code_interpreter", "image_generation", "mcp")
"""Parts whose tables are in guides, and named in the reference."""
OF_TABLES: Final = ("store", "profiles")
"""Parts with a separate table."""
REFERENCE: Final = "reference/configuration.md"
METRICS: Final = "guides/operations.md"

TABLES: Final[Sequence[tuple[type[BaseModel], str, str]]] = (
    (CodeInterpreter, "guides/code-interpreter.md", "Set it up"),
    (ImageGeneration, "guides/image-generation.md", "Set up an image server"),
    (McpServers, "guides/mcp.md", "Settings"),
    (Fetching, "guides/web-search.md", "What may be fetched"),
    (Profile, REFERENCE, "Profiles"),
    (OpenAIChatConfig, REFERENCE, "The model server"),
)
"""Classes of settings with a table of their own: its page and the heading above it."""

Row = tuple[str, str, str]
"""A name, what is in the cell after it, and what it means. A metric has no second cell."""


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, type[BaseModel], str]]:
    """Yield the dotted name of each setting, with its class and its name there."""
    for name, field in model.model_fields.items():
        inner = [] if prefix + name in (*OF_GUIDES, *OF_TABLES) or model is Profile else models(field.annotation)
        if not inner:
            yield prefix + name, model, name
        for each in inner:
            yield from settings(each, f"{prefix}{name}.")


def names(model: type[BaseModel]) -> set[str]:
    """Return the dotted names of all settings."""
    return {name for name, _, _ in settings(model)}


def section(text: str, heading: str) -> str:
    """Return what is between this heading and the next of its level or above."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no heading '{heading}'"
    return re.split(rf"^#{{1,{len(found[1])}}} ", found[2], flags=re.MULTILINE)[0]


def rows(text: str) -> set[str]:
    """Return what the tables of a text have: the names in their first cells."""
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def of_provider(text: str) -> str:
    """Return the part of the reference that has the settings of the responses provider."""
    return text[: text.index("\n## The model server\n")]


def declared_metrics() -> Iterator[Row]:
    """Yield all `Metric(...)` of the package."""
    for tree in trees(PACKAGE).values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Metric":
                yield ast.literal_eval(node.args[0]), "", _lowered(ast.literal_eval(node.args[2]))


def table_of_metrics(text: str) -> str:
    """Return the table of metrics."""
    return text.partition("| metric | meaning |")[2].partition("\n\n")[0]


def completed(text: str, wanted: Sequence[Row]) -> str:
    """Return a text whose table has all these rows: each that it lacks comes after the one before it.

    Raises:
        ValueError: the table has no row before a missing one, so its place is not known.
    """
    for number, (name, cell, meaning) in enumerate(wanted):
        if name in rows(text):
            continue
        before = next((each for each, _, _ in reversed(wanted[:number]) if each in rows(text)), None)
        if before is None:
            raise ValueError(f"'{name}' is the first of its table: write its row by hand")
        row = f"| `{name}` | {cell}{' | ' if cell else ''}{meaning} |\n"
        text = re.sub(rf"^\| [^|]*`{re.escape(before)}`.*\n", lambda found: found[0] + row, text, count=1, flags=re.M)  # noqa: B023
    return text


def _rows_of(model: type[BaseModel]) -> list[Row]:
    return [
        (name, _default(owner, inner), _lowered(description(owner, inner)))
        for name, owner, inner in settings(model)
        if name not in OF_GUIDES
    ]


def _default(model: type[BaseModel], name: str) -> str:
    value = default_of(model, name)
    if model.model_fields[name].is_required():
        return "required"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:,}" if isinstance(value, int | float) else f"`{value}`"


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:].rstrip(".")


def main() -> None:
    """Write the template and the missing rows."""
    TEMPLATE.write_text(written_again(TEMPLATE.read_text()))
    for model, page, heading in TABLES:
        text = (DOCS / page).read_text()
        table = section(text, heading)
        (DOCS / page).write_text(text.replace(table, completed(table, _rows_of(model))))
    text = (DOCS / REFERENCE).read_text()
    own = of_provider(text)
    (DOCS / REFERENCE).write_text(text.replace(own, completed(own, _rows_of(ResponsesConfig))))
    text = (DOCS / METRICS).read_text()
    table = table_of_metrics(text)
    wanted = sorted(declared_metrics(), key=lambda row: row[0] not in rows(table))
    (DOCS / METRICS).write_text(text.replace(table, completed(table, wanted)))


if __name__ == "__main__":
    main()
