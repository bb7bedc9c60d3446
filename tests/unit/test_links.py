"""The repository's Markdown files: links lead to files and headings, paths named in code exist, lines are short."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.stack import REPOSITORY

PAGES: Final = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *REPOSITORY.glob("providers/*/README.md"),
        *REPOSITORY.joinpath("docs").rglob("*.md"),
    ]
)
LINK: Final = re.compile(r"\]\((?P<target>[^)\s]+)\)")
NAMED: Final = re.compile(r"\bdocs/[a-z0-9/-]+\.md\b")
CODE: Final = ("llama_stack_responses", "providers", "templates", "demo", "benchmarks", "scripts", "tests")


def slug(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and mkdocs build it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading.replace("`", "")).strip().lower())


def without_code(text: str) -> str:
    """Return the text without its fenced blocks."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2$", "", text, flags=re.MULTILINE | re.DOTALL)


def headings(page: Path) -> list[str]:
    """Return the anchors of a page's headings."""
    return [slug(found) for found in re.findall(r"^#+ (.+)$", without_code(page.read_text()), re.MULTILINE)]


def broken(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links of a page that lead nowhere."""
    for match in LINK.finditer(without_code(text)):
        path, _, anchor = match["target"].partition("#")
        if re.match("[a-z]+:", path):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in headings(target)):
            yield match["target"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert list(broken(page, page.read_text())) == []


def test_broken_links_are_found() -> None:
    readme = REPOSITORY / "README.md"
    text = "[a](docs/none.md) [b](#nowhere) [c](docs/reference/errors.md#none) [d](LICENSE) [e](https://x.y/z)"
    assert list(broken(readme, text)) == ["docs/none.md", "#nowhere", "docs/reference/errors.md#none"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_headings_of_page_have_unique_anchors(page: Path) -> None:
    repeated = {name for name, count in Counter(headings(page)).items() if count > 1}
    assert page.name == "CHANGELOG.md" or repeated == set()


MAX_LINE_CHARACTERS: Final = 120
"""Characters in a line of prose, as in a line of code."""
UNBREAKABLE: Final = re.compile(r" *(\||!\[|\S+$)")
"""A row of a table, a picture, a single word."""


def long_lines(text: str) -> list[str]:
    """Return the beginnings of the lines of prose that are too long."""
    lines = without_code(text).splitlines()
    return [line[:40] for line in lines if len(line) > MAX_LINE_CHARACTERS and not UNBREAKABLE.match(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_of_prose_are_short(page: Path) -> None:
    assert long_lines(page.read_text()) == []


def test_long_lines_are_found() -> None:
    long = "word " * 30
    assert long_lines(f"{long}\n- {long}\n| {long}|\n```sh\n{long}\n```\n{'x' * 130}\nshort") == [
        long[:40],
        f"- {long}"[:40],
    ]


@pytest.mark.parametrize("folder", CODE)
def test_documents_named_in_code_exist(folder: str) -> None:
    files = [path for path in (REPOSITORY / folder).rglob("*") if path.suffix in (".py", ".yaml", ".md", ".conf", "")]
    named = {
        (str(path.relative_to(REPOSITORY)), name)
        for path in files
        if path.is_file() and path != Path(__file__)
        for name in NAMED.findall(path.read_text(errors="replace"))
    }
    assert [each for each in sorted(named) if not (REPOSITORY / each[1]).is_file()] == []


PATH: Final = re.compile(r"`((?:[a-z_]+/)+(?:[a-z0-9_]+\.(?:py|md|json|yml))?)`")
ROOTS: Final = ("", "llama_stack_responses/", "providers/gpt_oss/llama_stack_gpt_oss/")
"""Documented paths begin at the repository or at a package."""
ABOUT_THE_CODE: Final = [
    page for page in PAGES if page.name in ("CONTRIBUTING.md", "glossary.md") or "explanation" in page.parts
]


@pytest.mark.parametrize("page", ABOUT_THE_CODE, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_paths_named_in_documentation_exist(page: Path) -> None:
    named = set(PATH.findall(without_code(page.read_text())))
    missing = {path for path in named if not any((REPOSITORY / start / path).exists() for start in ROOTS)}
    assert missing == set()


def test_classes_named_in_glossary_exist() -> None:
    named = re.findall(r"\| `([A-Z]\w+)` in `([a-z_/]+\.py)` \|", (REPOSITORY / "docs" / "glossary.md").read_text())
    assert named
    sources = {path: (REPOSITORY / "llama_stack_responses" / path).read_text() for _, path in named}
    assert [name for name, path in named if f"class {name}" not in sources[path]] == []
