"""The files of a container that the model knows in one conversation, by number."""

from __future__ import annotations

import re
from typing import Any, Final

from ...core.stream.citations import CLOSES, OPENS
from ...sandbox.jail import DATA

_HEADING: Final = re.compile(rf"^{OPENS}(f\d+){CLOSES} ({DATA}/[^\n]+)$", re.MULTILINE)


class NumberedFiles:
    """Files by marker key: `f1`, `f2` and so on. A file keeps its key."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def learn(self, result: Any) -> None:
        """Restore the files listed in an earlier output of the tool."""
        self._paths |= dict(_HEADING.findall(result)) if isinstance(result, str) else {}

    def heading(self, path: str) -> str:
        """Return the line that lists a file for the model; `learn` parses it."""
        known = (key for key, each in self._paths.items() if each == path)
        key = next(known, f"f{len(self._paths) + 1}")
        self._paths[key] = path
        return f"{OPENS}{key}{CLOSES} {path}"

    def get(self, key: str) -> str | None:
        """Return the path of the file with this key."""
        return self._paths.get(key)
