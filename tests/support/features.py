"""The tables of docs/features.md, read as the data that they are."""

import re
from dataclasses import dataclass
from typing import Final

from tests.support.stack import REPOSITORY

STATES: Final = ("yes", "partly", "accepted", "no")


@dataclass(frozen=True, slots=True)
class Feature:
    """A line: what the server does with it, and what there is to say."""

    state: str
    note: str

    @property
    def code(self) -> str | None:
        """The last word of the note that is set as code: of what is refused, the error's code."""
        words = re.findall("`([a-z_]+)`", self.note)
        return words[-1] if words else None


def features(title: str) -> dict[str, Feature]:
    """The table below this heading, by the first column."""
    text = (REPOSITORY / "docs" / "features.md").read_text()
    section = text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|(.*)\|$", section, re.MULTILINE)
    assert rows, f"there is no table '{title}'"
    found = {name: Feature(state, note.strip()) for name, state, note in rows}
    assert len(found) == len(rows), "a line is there twice"
    assert {each.state for each in found.values()} <= set(STATES)
    return found


def refused(table: dict[str, Feature]) -> set[str]:
    """What it says is refused."""
    return {name for name, each in table.items() if each.state == "no"}
