"""Token masks from grammars: an adapter of llguidance to the engine's TokenMask protocol."""

from functools import cached_property

from llguidance import LLMatcher, LLTokenizer

from .engine.errors import RequestError
from .vocabulary import SPLIT, Vocabulary


class GrammarMasks:
    """Creates the masks of requests. The tokenizer tables are built on first use.

    A grammar may take half a second to compile, during which the engine waits, and one request may have 128 answers
    with it. So the last one is kept, and each answer gets a copy.
    """

    def __init__(self, vocabulary: Vocabulary, size: int) -> None:
        self._vocabulary = vocabulary
        self._size = size
        self._last: tuple[str, LLMatcher] | None = None

    def open(self, grammar: str) -> "GrammarMask":
        """Create a mask. RequestError: the grammar cannot be used."""
        if self._last is None or self._last[0] != grammar:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
            if matcher.is_error():
                raise RequestError(f"The grammar cannot be used: {matcher.get_error().splitlines()[0]}")
            self._last = grammar, matcher
        return GrammarMask(self._last[1].deep_copy())

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        special = dict(self._vocabulary.special)
        return LLTokenizer.from_tiktoken(
            encoder={word: rank for rank, word in enumerate(self._vocabulary.words)},
            special_tokens=special,
            pattern=SPLIT,
            eos_token=special["<|return|>"],
            n_vocab=self._size,
        )


class GrammarMask:
    """The grammar state of one request."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def allowed(self) -> bytes:
        """Return a bit for each token, the lowest bit of a byte first."""
        return self._matcher.compute_bitmask()

    def accept(self, token: int) -> None:
        """Advance by a token that was allowed."""
        self._matcher.consume_token(token)

    def rollback(self, count: int) -> None:
        """Go back by the last tokens that were accepted."""
        self._matcher.rollback(count)
