"""Replacement of large strings in messages while the `mcp` package decodes and validates them in the event loop."""

from __future__ import annotations

from secrets import token_hex
from typing import Any, Final

_LARGE_CHARACTERS: Final = 4_096
"""Minimum length of a replaced string, in characters."""


class LargeTexts:
    """The large strings of one session. Their placeholders contain a secret, so that servers cannot guess them."""

    def __init__(self) -> None:
        self._secret = token_hex(16)
        self._texts: dict[str, str] = {}

    def replace_large(self, value: Any) -> Any:
        """Replace each large string of a JSON value with a placeholder."""
        match value:
            case str() if len(value) >= _LARGE_CHARACTERS:
                stand_in = f"{self._secret}-{len(self._texts)}"
                self._texts[stand_in] = value
                return stand_in
            case list():
                return [self.replace_large(each) for each in value]
            case dict():
                return {name: self.replace_large(each) for name, each in value.items()}
        return value

    def restore_large(self, value: Any) -> Any:
        """Restore the large strings of a JSON value, or of each value of a tuple."""
        if not self._texts:
            return value
        match value:
            case str():
                return self._texts.get(value, value)
            case list():
                return [self.restore_large(each) for each in value]
            case tuple():
                return tuple(self.restore_large(each) for each in value)
            case dict():
                return {name: self.restore_large(each) for name, each in value.items()}
        return value
