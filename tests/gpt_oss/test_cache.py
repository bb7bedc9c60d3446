"""Pages are never lost, never used twice, and only shared where the tokens before them are the same."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llama_stack_gpt_oss.engine.cache import PAGE, Cache, Holding, Pages, Windows, longest_sequence, pages_needed

SALTS = st.sampled_from(["", "a"])
TOKENS = st.integers(0, 1)  # few, so that prefixes meet
WINDOW = 100
KINDS: Windows = (WINDOW, None)
Content = tuple[int, str, tuple[int, ...]]  # kind, salt, and the tokens up to the end of the page


def seen_from(computed: int, window: int | None) -> int:
    """The first place that tokens after so many see."""
    return min(place for place in range(computed + 1) if window is None or (place + 1) * PAGE > computed - window + 1)


@dataclass
class Opened:
    holding: Holding
    tokens: list[int]
    salt: str
    computed: int
    pages: dict[tuple[int, int], int] = field(default_factory=dict)  # by kind and place


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow, are computed and close, in any order, over a store that is too small for all of them."""

    PAGES = 14
    names: Bundle[int] = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(self.PAGES, KINDS)
        self.opened: dict[int, Opened] = {}
        self.content: dict[int, Content] = {}  # the model: what each page was last computed for, if that can be shared
        self.number = 0

    def content_of(self, salt: str, tokens: list[int], kind: int, place: int) -> Content:
        return kind, salt, tuple(tokens[: (place + 1) * PAGE])

    def expected_prefix(self, tokens: list[int], salt: str) -> int:
        """The most places whose tokens are known as far as the next token sees them."""
        known = set(self.content.values())
        return max(
            places
            for places in range(-(-len(tokens) // PAGE))
            if all(
                self.content_of(salt, tokens, kind, place) in known
                for kind, window in enumerate(KINDS)
                for place in range(seen_from(places * PAGE, window), places)
            )
        )

    @rule(target=names, kinds=st.lists(TOKENS, min_size=1, max_size=5), salt=SALTS)
    def open(self, kinds: list[int], salt: str) -> int:
        tokens = [kind for kind in kinds for _ in range(PAGE)]
        expected = self.expected_prefix(tokens, salt)
        holding, found = self.cache.open(tokens, salt)
        assert found == expected * PAGE
        opened = Opened(holding, tokens, salt, found)
        for kind, window in enumerate(KINDS):
            for place in range(seen_from(found, window), expected):
                page = holding.tables[kind].pages[place]
                assert self.content[page] == self.content_of(salt, tokens, kind, place)
                opened.pages[kind, place] = page
        self.number += 1
        self.opened[self.number] = opened
        return self.number

    @rule(name=names, extra=st.integers(0, 3 * PAGE))
    def grow(self, name: int, extra: int) -> None:
        each = self.opened[name]
        wanted = min(each.computed + extra, len(each.tokens))
        before, available = each.holding.places, self.cache.pages.available
        more = range(before, max(before, -(-wanted // PAGE)))
        grown = self.cache.grow(each.holding, wanted)
        assert grown == (len(more) * len(KINDS) <= available)
        if grown:
            for kind, table in enumerate(each.holding.tables):
                for place in more:
                    each.pages[kind, place] = table.pages[place]
                    self.content.pop(table.pages[place], None)
        assert each.holding.places == (more.stop if grown else before)

    @rule(name=names, most=st.integers(1, 3 * PAGE))
    def compute(self, name: int, most: int) -> None:
        each = self.opened[name]
        each.computed = min(each.computed + most, len(each.tokens), each.holding.places * PAGE)
        for (kind, place), page in each.pages.items():
            content = self.content_of(each.salt, each.tokens, kind, place)
            if (place + 1) * PAGE <= each.computed and content not in self.content.values():
                self.content[page] = content
        self.cache.commit(each.holding, each.tokens, each.computed)
        for kind, window in enumerate(KINDS):
            for place in range(seen_from(each.computed, window)):
                each.pages.pop((kind, place), None)

    @rule(name=consumes(names))
    def close(self, name: int) -> None:
        self.cache.close(self.opened.pop(name).holding)

    @invariant()
    def each_sequence_has_its_pages(self) -> None:
        for each in self.opened.values():
            held = {
                (kind, place): table.pages[place]
                for kind, table in enumerate(each.holding.tables)
                for place in range(table.first, len(table.pages))
            }
            assert held == each.pages

    @invariant()
    def no_page_is_lost(self) -> None:
        held = {page for each in self.opened.values() for page in each.pages.values()}
        assert self.cache.pages.used == len(held)
        assert self.cache.pages.available == self.PAGES - len(held)

    @invariant()
    def only_what_was_computed_in_full_is_shared(self) -> None:
        users: dict[int, list[tuple[int, int]]] = {}
        for each in self.opened.values():
            for (kind, place), page in each.pages.items():
                users.setdefault(page, []).append((kind, each.computed - (place + 1) * PAGE))
        for shared in (found for found in users.values() if len(found) > 1):
            assert len({kind for kind, _ in shared}) == 1
            assert all(beyond >= 0 for _, beyond in shared)


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestCache = CacheMachine.TestCase


def computed(cache: Cache, tokens: list[int], salt: str = "", step: int = 10_000) -> Holding:
    """A sequence that was computed from its beginning to its end."""
    holding, done = cache.open(tokens, salt)
    while done < len(tokens):
        done = min(done + step, len(tokens))
        assert cache.grow(holding, done)
        cache.commit(holding, tokens, done)
    return holding


def test_the_unused_page_that_waited_longest_is_given_up_first() -> None:
    pages = Pages(2)
    first, second = pages.take(), pages.take()
    pages.publish(first, (0, b"1"))
    pages.publish(second, (0, b"2"))
    pages.release(second)
    pages.release(first)
    assert pages.take() == second
    assert pages.share((0, b"1")) == first
    assert not pages.knows((0, b"2"))


def test_the_end_of_a_prefix_is_forgotten_before_its_beginning() -> None:
    cache = Cache(6, (None, None))
    tokens = list(range(3 * PAGE))
    cache.close(computed(cache, tokens))
    cache.close(computed(cache, [5]))
    assert cache.open([*tokens, 7], "")[1] == 2 * PAGE


def test_a_prefix_is_known_as_far_as_the_window_at_its_end_is() -> None:
    """Two long answers after the same instructions: where they part, the window's pages have to be there too."""
    cache = Cache(64, KINDS)
    common = [3] * (8 * PAGE)
    cache.close(computed(cache, [*common, *range(4 * PAGE)], step=32))
    assert cache.open([*common, 1000], "")[1] == 8 * PAGE
    tight = Cache(17, KINDS)
    tight.close(computed(tight, [*common, *range(6 * PAGE)], step=32))
    # Those behind the window, unused for longest, were written again for the tokens after them.
    assert tight.open([*common, 1000], "")[1] == 0
    assert tight.open([*common, *range(6 * PAGE), 1000], "")[1] == 14 * PAGE


def test_pages_behind_the_window_are_given_back() -> None:
    cache = Cache(64, KINDS)
    tokens = list(range(20 * PAGE))
    holding = computed(cache, tokens, step=50)
    # The 99 tokens that the next one sees beside itself begin two pages before it.
    assert cache.pages.used == 20 + 2
    cache.close(holding)
    assert cache.pages.used == 0


@pytest.mark.parametrize("kinds", [KINDS, (None,), (1, None), (PAGE, None), (PAGE + 1, 3 * PAGE, None)])
@pytest.mark.parametrize("step", [1, 7, PAGE, 3 * PAGE + 1])
def test_no_sequence_holds_more_pages_than_are_said_to_be_needed(kinds: Windows, step: int) -> None:
    most = 0
    for length in range(PAGE, 9 * PAGE, 23):
        for first in (1, step // 2 + 1, step):
            cache = Cache(200, kinds)
            tokens, held = [0] * length, 0
            holding, _ = cache.open(tokens, "")
            for end in [*range(first, length, step), length]:
                assert cache.grow(holding, end)
                held = max(held, cache.pages.used)
                cache.commit(holding, tokens, end)
            assert held <= pages_needed(length, kinds, step)
            most = max(most, held)
    assert most >= pages_needed(8 * PAGE, kinds, step) - len(kinds)  # and it is not said to be many more


@pytest.mark.parametrize("pages", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("kinds", [KINDS, (None,), (128, None)])
def test_the_longest_sequence_fits_and_a_longer_one_does_not(pages: int, kinds: Windows) -> None:
    longest = longest_sequence(pages, kinds, 2048)
    assert pages_needed(longest, kinds, 2048) <= pages < pages_needed(longest + 1, kinds, 2048)


def test_a_long_sequence_takes_half_of_what_it_took() -> None:
    assert longest_sequence(2000, (None, None), 2048) == 1000 * PAGE
    assert longest_sequence(2000, (128, None), 2048) > 1960 * PAGE


def test_the_last_token_is_always_computed_again() -> None:
    cache = Cache(8, KINDS)
    tokens = list(range(2 * PAGE))
    computed(cache, tokens)
    assert cache.open(tokens, "")[1] == PAGE
    assert cache.open([*tokens, 7], "")[1] == 2 * PAGE


def test_salts_share_nothing() -> None:
    cache = Cache(8, KINDS)
    tokens = list(range(PAGE + 1))
    computed(cache, tokens, "one")
    assert cache.open(tokens, "two")[1] == 0
    assert cache.open(tokens, "one")[1] == PAGE


def test_no_page_is_an_error_for_who_did_not_ask() -> None:
    with pytest.raises(IndexError):
        Pages(0).take()
