"""The tokens of a prompt, made piece by piece until there are more than fit in the context."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from .errors import InvalidRequest
from .vocabulary import Vocabulary

_SEARCHED: Final = 1 << 14  # characters that are searched at once for such a place, with the lock held
_PIECE: Final = 1 << 16  # characters that are tokenised at once; the tokens become a list with Python's lock held
MAX_UNBROKEN: Final = 1 << 18
"""Maximum length of text without a place where it can be cut, in characters."""
# Places that the tokenizer's pattern never matches across, whatever comes before and after them.
_CUT: Final = re.compile(
    r"(?<=[A-Za-z0-9])(?=[ !-&(-/:-@\[-`{-~])"  # not before an apostrophe, which may be part of a word
    r"|(?<=[0-9])(?=[A-Za-z])|(?<=[A-Za-z])(?=[0-9])|(?<=\n)(?=[A-Za-z0-9])"
)


class Prompt:
    """The tokens of one prompt. InvalidRequest, for the field `param`, as soon as they leave no room for an answer."""

    def __init__(self, vocabulary: Vocabulary, context: int, param: str) -> None:
        self.tokens: list[int] = []
        self._vocabulary = vocabulary
        self._context = context
        self._param = param

    def add(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        if len(self.tokens) >= self._context:
            raise InvalidRequest(
                f"The prompt has at least {len(self.tokens):,} tokens, and the context of {self._context:,} tokens"
                " leaves no room for an answer",
                param=self._param,
                code="context_length_exceeded",
            )

    def add_text(self, text: str) -> None:
        """Add the tokens of a text. Names of special tokens stay text."""
        for piece in self._pieces(text):
            self._check_characters(piece)
            self.add(self._vocabulary.encode(piece))

    def _pieces(self, text: str) -> Iterator[str]:
        """Cut a text where the tokens of the parts are those of the whole."""
        start = 0
        while len(text) - start > _PIECE:
            end = _cut(text, start)
            if end is None:
                break
            yield text[start:end]
            start = end
        if len(text) - start > MAX_UNBROKEN:
            word = text[start : start + 20]
            raise InvalidRequest(
                f"The text has more than {MAX_UNBROKEN:,} characters without a break, from {word!r} on: insert spaces",
                param=self._param,
            )
        yield text[start:]

    def _check_characters(self, piece: str) -> None:
        try:
            piece.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"The text cannot be written as a gpt-oss prompt, since it is not valid Unicode: {error}",
                param=self._param,
            ) from error


def _cut(text: str, start: int) -> int | None:
    """Return where a piece that starts at `start` can end."""
    for begin in range(start + _PIECE, start + MAX_UNBROKEN, _SEARCHED):
        if found := _CUT.search(text, begin, begin + _SEARCHED):
            return found.start()
    return None
