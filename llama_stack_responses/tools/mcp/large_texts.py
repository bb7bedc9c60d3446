"""Keeps large strings out of messages while the `mcp` package decodes and checks them in the event loop."""

from __future__ import annotations

from secrets import token_hex
from typing import Any, Final

_LARGE: Final = 4_096
"""Characters of a string that is put aside."""


class LargeTexts:
    """The large strings of one session. A stand-in is a string that no server can guess."""

    def __init__(self) -> None:
        self._secret = token_hex(16)
        self._texts: dict[str, str] = {}

    def put_aside(self, value: Any) -> Any:
        """A JSON value with a stand-in for each large string."""
        match value:
            case str() if len(value) >= _LARGE:
                stand_in = f"{self._secret}-{len(self._texts)}"
                self._texts[stand_in] = value
                return stand_in
            case list():
                return [self.put_aside(each) for each in value]
            case dict():
                return {name: self.put_aside(each) for name, each in value.items()}
        return value

    def put_back(self, value: Any) -> Any:
        """The value, or each of a tuple, with its large strings."""
        if not self._texts:
            return value
        match value:
            case str():
                return self._texts.get(value, value)
            case list():
                return [self.put_back(each) for each in value]
            case tuple():
                return tuple(self.put_back(each) for each in value)
            case dict():
                return {name: self.put_back(each) for name, each in value.items()}
        return value
