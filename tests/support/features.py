"""A parser of the tables in docs/reference/features.md."""

import re
from dataclasses import dataclass
from typing import Final

from tests.support.stack import REPOSITORY

STATES: Final = ("yes", "partly", "accepted", "no")


@dataclass(frozen=True, slots=True)
class Feature:
    """A row: the state of the feature, and a note."""

    state: str
    note: str

    @property
    def code(self) -> str | None:
        """The last code word of the note: for a refused feature, the error's code."""
        words = re.findall("`([a-z_]+)`", self.note)
        return words[-1] if words else None


def section(title: str) -> str:
    """Return what is below this heading."""
    text = (REPOSITORY / "docs" / "reference" / "features.md").read_text()
    return text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def features(title: str) -> dict[str, Feature]:
    """Return the table below this heading, by its first column."""
    rows = re.findall(r"^\| `([^`]+)` \| (\w+) \|(.*)\|$", section(title), re.MULTILINE)
    assert rows, f"there is no table '{title}'"
    found = {name: Feature(state, note.strip()) for name, state, note in rows}
    assert len(found) == len(rows), "a line is there twice"
    assert {each.state for each in found.values()} <= set(STATES)
    return found


def refused(table: dict[str, Feature]) -> set[str]:
    """Return the refused features of a table."""
    return {name for name, each in table.items() if each.state == "no"}
