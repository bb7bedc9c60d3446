"""The files of a container that a model knows in one conversation, by number."""

from __future__ import annotations

import re
from typing import Any, Final

from llama_stack_responses.core.stream.citing import CLOSES, OPENS
from llama_stack_responses.sandbox.jail import DATA

_HEADING: Final = re.compile(rf"^{OPENS}(f\d+){CLOSES} ({DATA}/[^\n]+)$", re.MULTILINE)


class NumberedFiles:
    """Files by the keys of their markers, `f1`, `f2` and so on; a file keeps its key."""

    def __init__(self) -> None:
        self._paths: dict[str, str] = {}

    def learn(self, told: Any) -> None:
        """Takes in the files that stand in what the model was told before."""
        self._paths |= dict(_HEADING.findall(told)) if isinstance(told, str) else {}

    def heading(self, path: str) -> str:
        """What the model is told of a file; `learn` reads it."""
        known = (key for key, each in self._paths.items() if each == path)
        key = next(known, f"f{len(self._paths) + 1}")
        self._paths[key] = path
        return f"{OPENS}{key}{CLOSES} {path}"

    def get(self, key: str) -> str | None:
        """The path of the file with this key."""
        return self._paths.get(key)
