"""The log lines that the guide for operators lists."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Final

from tests.support.stack import REPOSITORY

GUIDE: Final = REPOSITORY / "docs" / "guides" / "operations.md"
HEADING: Final = "### Lines to act on\n"


@cache
def documented() -> Mapping[str, set[str]]:
    """Return the levels of each line of the tables, by its constant text."""
    section = GUIDE.read_text().partition(HEADING)[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]+`) \| ([A-Z, ]+) \|", section, re.MULTILINE)
    return {line: set(levels.split(", ")) for lines, levels in rows for line in re.findall(r"`([^`]+)`", lines)}
