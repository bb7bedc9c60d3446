"""Decode the one string in a call's arguments while the arguments still stream."""

from __future__ import annotations

import json
import re
from typing import Final, Literal

from ..core.decoded_arguments import decoded_arguments

_PLAIN: Final = re.compile(r'[^"\\]+')
_PAIR: Final = r"u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPE: Final = rf'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])[0-9a-fA-F]{{4}}|{_PAIR})'
_ESCAPES: Final = re.compile(rf'{_ESCAPE}(?:[^"\\\x00-\x1f]|{_ESCAPE})*+')
"""A run of text that begins with a valid escape and has no other ones, so that it can be decoded at once."""
_LITERAL: Final = re.compile(r'(?:\\[^"\\/bfnrtu][^"\\]*)++')
"""A run of invalid backslashes, which stand for themselves, and of the text behind them."""
_HIGH: Final = re.compile(r"\\u[dD][89abAB]")
_LOST: Final = "\ufffd"
"""Replacement character for an unpaired surrogate."""
_OPENING_CHARACTERS: Final = 256
"""Maximum characters of whitespace and braces after which arguments are no longer expected to be JSON."""


class ArgumentText:
    """Incremental decoder of `{"KEY": "text"}`, which may be cut anywhere.

    Models do not always produce this form. Text that is not a JSON object is returned as it is. An object that begins
    with another key is decoded when it is complete: it may have the key later, or only one string under some other
    name.

    Args:
        key: the member that holds the text.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        tokens = [r"\s*", r"\{", r"\s*", *map(re.escape, json.dumps(key)), r"\s*", ":", r"\s*", '"']
        self._opening = re.compile("".join(tokens))
        beginning = ""
        for token in reversed(tokens):
            beginning = f"(?:{token}{beginning})?"
        self._beginning = re.compile(beginning)
        self._state: Literal["opening", "inside", "after", "plain", "whole"] = "opening"
        self._buffered: list[str] = []
        self._whole: tuple[int, str] | None = None

    def feed(self, fragment: str) -> str:
        """Return the text that this fragment adds, often nothing."""
        match self._state:
            case "plain":
                return fragment
            case "after":
                return ""
            case "whole":
                self._buffered.append(fragment)
                return ""
            case "inside":
                return self._inside(self._take() + fragment)
            case "opening":
                return self._open(self._take() + fragment)

    def prepare(self) -> None:
        """Do what takes long in `end`; more fragments may follow."""
        if self._state == "whole":
            text = "".join(self._buffered)
            self._buffered, self._whole = [text], (len(text), self._read(text))

    def end(self) -> str:
        """Return the rest of the text when the arguments have ended."""
        rest = self._take()
        if self._whole and self._whole[0] == len(rest):
            return self._whole[1]
        if self._state in ("opening", "whole"):
            return self._read(rest)
        return _LOST if _HIGH.match(rest) else ""

    def _take(self) -> str:
        buffered, self._buffered = "".join(self._buffered), []
        return buffered

    def _open(self, text: str) -> str:
        if opening := self._opening.match(text):
            self._state = "inside"
            return self._inside(text[opening.end() :])
        if len(text) <= _OPENING_CHARACTERS and self._beginning.fullmatch(text):
            self._buffered = [text]
            return ""
        if text.lstrip().startswith("{"):
            self._state, self._buffered = "whole", [text]
            return ""
        self._state = "plain"
        return text

    def _inside(self, text: str) -> str:
        pieces: list[str] = []
        at = 0
        while at < len(text):
            if plain := _PLAIN.match(text, at):
                pieces.append(plain[0])
                at = plain.end()
            elif escapes := _ESCAPES.match(text, at):
                pieces.append(json.loads(f'"{escapes[0]}"'))
                at = escapes.end()
            elif literal := _LITERAL.match(text, at):
                pieces.append(literal[0])
                at = literal.end()
            elif text[at] == '"':
                self._state = "after"
                break
            elif (needed := _escape_length(text, at)) > len(text) - at:
                self._buffered = [text[at:]]
                break
            else:
                piece, used = _unescaped(text[at : at + needed])
                pieces.append(piece)
                at += used
        return "".join(pieces)

    def _read(self, text: str) -> str:
        """Return the text of complete arguments."""
        try:
            value = decoded_arguments(text)
        except ValueError:
            return text
        if not isinstance(value, dict):
            return text
        member = value.get(self._key, next(iter(value.values()), "") if len(value) < 2 else None)
        return member if isinstance(member, str) else text


def _escape_length(text: str, at: int) -> int:
    """Return the number of characters of `text` that are needed to decode the escape at `at`."""
    if text[at + 1 : at + 2] != "u":
        return 2
    if _HIGH.match(text, at) and "\\u".startswith(text[at + 6 : at + 8]):
        return 12
    return 6


def _unescaped(escape: str) -> tuple[str, int]:
    """Return the decoded escape and the number of characters used. An invalid backslash stands for itself."""
    try:
        value: str = json.loads(f'"{escape}"')
    except ValueError:
        return (_LOST, 6) if _HIGH.match(escape) else ("\\", 1)
    if len(value) == 2:
        return _LOST, 6
    return (_LOST if "\ud800" <= value <= "\udfff" else value), len(escape)
