"""The fenced code blocks of README.md, CONTRIBUTING.md, the READMEs of providers/ and docs/, by stable names.

A name has the file and the heading, and does not depend on the surrounding text.

found = blocks()
found["docs/guides/web-search.md, Web search, python"].text
found["docs/guides/clients.md, Vercel AI SDK, js 2"]       # the second one of its language in that section
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.stack import REPOSITORY

FENCE: Final = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+)(?P<language>\S*)")
HEADING: Final = re.compile(r"^#+ (?P<words>.*?)(?: \(.*\))?$")
"""A heading, without a suffix in parentheses (the version of a client)."""
PROMPT: Final = re.compile(r"^\$ ", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        name: its file, heading and language, with a number from the second one on.
        language: the word after the fence; "text" if there is none.
        text: its lines.
    """

    name: str
    language: str
    text: str

    @property
    def shell(self) -> str:
        """The commands of a `console` or `sh` block, without prompts."""
        return PROMPT.sub("", self.text)


def documents(root: Path = REPOSITORY) -> list[Path]:
    """Return README.md, CONTRIBUTING.md, the READMEs of providers/ and all pages of docs/."""
    providers = sorted((root / "providers").glob("*/README.md"))
    return [root / "README.md", root / "CONTRIBUTING.md", *providers, *sorted((root / "docs").rglob("*.md"))]


def blocks(root: Path = REPOSITORY) -> dict[str, Block]:
    """Return all blocks of the documentation, by name, in the order of the files."""
    pages = documents(root)
    return {block.name: block for page in pages for block in _of(page, str(page.relative_to(root)))}


def substituted(text: str, replacements: Mapping[str, str]) -> str:
    """Replace documented addresses and paths in a text, longer ones first."""
    for documented in sorted(replacements, key=len, reverse=True):
        text = text.replace(documented, replacements[documented])
    return text


def _of(page: Path, path: str) -> Iterator[Block]:
    seen: Counter[str] = Counter()
    heading = ""
    lines = iter(page.read_text().splitlines())
    for line in lines:
        if match := HEADING.match(line):
            heading = match["words"]
        if match := FENCE.match(line):
            language = match["language"] or "text"
            name = f"{path}, {heading}, {language}"
            seen[name] += 1
            number = f" {seen[name]}" if seen[name] > 1 else ""
            yield Block(name + number, language, _inside(lines, match["ticks"], len(match["indent"]), page))


def _inside(lines: Iterator[str], ticks: str, indent: int, page: Path) -> str:
    found: list[str] = []
    for line in lines:
        if line.strip() == ticks:
            return "\n".join(found) + "\n"
        found.append(line[indent:])
    raise ValueError(f"{page} has a code block without an end")
