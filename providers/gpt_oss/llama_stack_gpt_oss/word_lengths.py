"""A bound on the long words of tools: the time of Harmony's renderer grows with the square of a word's length.

It holds Python's lock meanwhile, and so the whole server.
"""

import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

from .errors import InvalidRequest

MAX_SQUARES: Final = 1 << 23
"""Maximum sum of the squares of the long words' lengths in bytes."""
_SHORT: Final = 64  # characters; the time for words that are not longer is that for reading the text
_LONG: Final = f"{{{_SHORT + 1},}}"
_BLANKS: Final = re.compile(rf"[\s/]{_LONG}")
_LONG_ASCII: Final = re.compile(rf"[A-Za-z]{_LONG}|[^A-Za-z0-9 \t-\r]{_LONG}|{_BLANKS.pattern}")
_SEPARATORS: Final = re.compile(r"[\x1c-\x1f]")  # white space in Python, and not in the tokenizer


def prepare_words() -> None:
    """Make the table of Unicode's marks, which takes half a second, before the first request needs it."""
    _runs()


def check_words(value: Any, param: str) -> None:
    """Raise InvalidRequest if the words of all texts in JSON take the tokenizer too long."""
    squares = 0
    for text in _texts(value):
        for word in _long_words(text):
            squares += len(word.encode(errors="replace")) ** 2
            if squares > MAX_SQUARES:
                raise InvalidRequest(
                    f"The text has too many characters without a break, such as {word[:20]!r}: insert spaces",
                    param=param,
                )


def _long_words(text: str) -> Iterator[str]:
    """Yield the words that are not short. Most texts have none, and are not searched for words one by one."""
    if _SEPARATORS.search(text):
        parts = [text]
    else:
        parts = [part for part in text.split() if len(part) > _SHORT] + _BLANKS.findall(text)
    for part in parts:
        if not part.isascii() or _LONG_ASCII.search(part):
            yield from (word for word in _runs().findall(part) if len(word) > _SHORT)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _texts(key)
            yield from _texts(each)
    elif isinstance(value, Sequence):
        for each in value:
            yield from _texts(each)


@cache
def _runs() -> re.Pattern[str]:
    """Return a pattern of what the tokenizer takes as one word at most; digits are split into threes.

    Separators of Python's `str` that are not white space in Unicode count as punctuation, as in the tokenizer.
    """
    marks = "".join(chr(code) for code in range(sys.maxunicode) if unicodedata.category(chr(code)).startswith("M"))
    letters = rf"(?:[^\W\d_]|[{marks}])++"  # possessive: no memory for each character
    return re.compile(rf"{letters}|(?:[^\w\s]|[_\x1c-\x1f])++[\r\n/]*|[^\S\x1c-\x1f]+")
