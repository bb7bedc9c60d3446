"""Token masks from grammars: an adapter of llguidance to the engine's TokenMask protocol."""

import threading
from collections import OrderedDict
from collections.abc import Callable

from llguidance import LLMatcher, LLTokenizer

from .engine.errors import RequestError
from .grammar import LIMITS
from .vocabulary import SPLIT, Vocabulary


class GrammarMasks:
    """Creates the masks of requests. The tokenizer tables are built on first use, which takes seconds.

    A grammar may take a second to compile, so that is done in a thread before the request is added to the engine, and
    the last grammars are kept: each answer gets a copy.
    """

    def __init__(self, read: Callable[[], Vocabulary], size: int, kept: int) -> None:
        """Create the masks of a vocabulary, which is read on first use, for `size` logits.

        kept: number of compiled grammars that are kept; at least that of the grammars for which requests may wait, or
        one that is compiled is dropped before its request opens its mask.
        """
        self._kept = kept
        self._read = read
        self._size = size
        self._tokenizer: LLTokenizer | None = None
        self._loading = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()  # least recently used first
        self._keeping = threading.Lock()

    def load(self) -> None:
        """Build the tokenizer tables. CheckpointError: the checkpoint has no vocabulary."""
        with self._loading:
            if self._tokenizer is None:
                self._tokenizer = self._tables(self._read())

    def compile(self, grammar: str) -> None:
        """Compile a grammar, from any thread, and keep it. RequestError: it cannot be used."""
        self._matcher(grammar)

    def open(self, grammar: str) -> "GrammarMask":
        """Create a mask, at once if its grammar is kept. RequestError: the grammar cannot be used."""
        return GrammarMask(self._matcher(grammar).deep_copy())

    def _matcher(self, grammar: str) -> LLMatcher:
        with self._keeping:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar]
        self.load()
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise RequestError(f"The grammar cannot be used: {matcher.get_error().splitlines()[0]}")
        with self._keeping:
            self._compiled[grammar] = matcher
            if len(self._compiled) > self._kept:
                self._compiled.popitem(last=False)
        return matcher

    def _tables(self, vocabulary: Vocabulary) -> LLTokenizer:
        special = dict(vocabulary.special)
        return LLTokenizer.from_tiktoken(
            encoder={word: rank for rank, word in enumerate(vocabulary.words)},
            special_tokens=special,
            pattern=SPLIT,
            eos_token=special["<|return|>"],
            n_vocab=self._size,
        )


class GrammarMask:
    """The grammar state of one request."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    @property
    def failed(self) -> bool:
        """Whether a limit was exceeded. From then on, only the token that ends the turn is allowed."""
        return self._matcher.is_error()

    def allowed(self) -> bytes:
        """Return a bit for each token, the lowest bit of a byte first."""
        return self._matcher.compute_bitmask()

    def accept(self, token: int) -> None:
        """Advance by a token that was allowed."""
        self._matcher.consume_token(token)

    def rollback(self, count: int) -> None:
        """Go back by the last tokens that were accepted."""
        self._matcher.rollback(count)
