"""Pages are never lost, never used twice, and only shared where the tokens before them are the same."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llama_stack_gpt_oss.engine.cache import PAGE, Cache, Holding, Pages

SALTS = st.sampled_from(["", "a"])
TOKENS = st.integers(0, 1)  # few, so that prefixes meet


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow, are computed and close, in any order, over a store that is too small for all of them."""

    PAGES = 6
    holdings: Bundle[int] = Bundle("holdings")

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(self.PAGES)
        self.open_: dict[int, tuple[Holding, list[int], str]] = {}
        self.content: dict[int, tuple[str, tuple[int, ...]]] = {}  # what each page was last computed for
        self.number = 0

    @rule(target=holdings, kinds=st.lists(TOKENS, min_size=1, max_size=4), salt=SALTS)
    def open(self, kinds: list[int], salt: str) -> int:
        tokens = [kind for kind in kinds for _ in range(PAGE)]
        holding, found = self.cache.open(tokens, salt)
        assert found < len(tokens)
        for place, page in enumerate(holding.pages):
            assert self.content[page] == (salt, tuple(tokens[: (place + 1) * PAGE]))
        self.number += 1
        self.open_[self.number] = (holding, tokens, salt)
        return self.number

    @rule(name=holdings, extra=st.integers(0, 3 * PAGE))
    def grow(self, name: int, extra: int) -> None:
        holding, tokens, _ = self.open_[name]
        wanted = min(len(holding.pages) * PAGE + extra, len(tokens) + PAGE)
        before, available = list(holding.pages), self.cache.pages.available
        grown = self.cache.grow(holding, wanted)
        assert grown == (-(-wanted // PAGE) - len(before) <= available)
        assert holding.pages[: len(before)] == before
        assert len(holding.pages) == (max(-(-wanted // PAGE), len(before)) if grown else len(before))

    @rule(name=holdings)
    def compute(self, name: int) -> None:
        holding, tokens, salt = self.open_[name]
        computed = min(len(tokens), len(holding.pages) * PAGE)
        for place in range(len(holding.keys), computed // PAGE):
            self.content[holding.pages[place]] = (salt, tuple(tokens[: (place + 1) * PAGE]))
        self.cache.commit(holding, tokens, computed)
        assert len(holding.keys) == computed // PAGE

    @rule(name=consumes(holdings))
    def close(self, name: int) -> None:
        holding, _, _ = self.open_.pop(name)
        self.cache.close(holding)
        assert not holding.pages

    @invariant()
    def no_page_is_lost(self) -> None:
        held = {page for holding, _, _ in self.open_.values() for page in holding.pages}
        assert self.cache.pages.used == len(held)
        assert self.cache.pages.available == self.PAGES - len(held)

    @invariant()
    def a_page_that_is_written_is_its_sequences_own(self) -> None:
        """Only pages that were computed in full are shared."""
        for name, (holding, _, _) in self.open_.items():
            for page in holding.pages[len(holding.keys) :]:
                others = (other for number, (other, _, _) in self.open_.items() if number != name)
                assert not any(page in other.pages for other in others)


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase


def test_the_unused_page_that_waited_longest_is_given_up_first() -> None:
    pages = Pages(2)
    first, second = pages.take(), pages.take()
    pages.publish(first, b"1")
    pages.publish(second, b"2")
    pages.release(second)
    pages.release(first)
    assert pages.take() == second
    assert (pages.share(b"2"), pages.share(b"1")) == (None, first)


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning() -> None:
    cache = Cache(3)
    tokens = list(range(3 * PAGE))
    holding, _ = cache.open(tokens, "")
    assert cache.grow(holding, len(tokens))
    cache.commit(holding, tokens, len(tokens))
    cache.close(holding)
    other, _ = cache.open([5], "")
    assert cache.grow(other, 1)
    assert cache.open(tokens, "")[1] == 2 * PAGE


def test_the_last_token_is_always_computed_again() -> None:
    cache = Cache(4)
    tokens = list(range(2 * PAGE))
    holding, _ = cache.open(tokens, "")
    cache.grow(holding, len(tokens))
    cache.commit(holding, tokens, len(tokens))
    assert cache.open(tokens, "")[1] == PAGE
    assert cache.open([*tokens, 7], "")[1] == 2 * PAGE


def test_salts_share_nothing() -> None:
    cache = Cache(4)
    tokens = list(range(PAGE + 1))
    holding, _ = cache.open(tokens, "one")
    cache.grow(holding, len(tokens))
    cache.commit(holding, tokens, len(tokens))
    assert cache.open(tokens, "two")[1] == 0
    assert cache.open(tokens, "one")[1] == PAGE


def test_no_page_is_an_error_for_who_did_not_ask() -> None:
    with pytest.raises(IndexError):
        Pages(0).take()
