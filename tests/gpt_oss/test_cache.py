"""Pages are never lost, never used twice, and shared only if the tokens before them are the same."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llama_stack_gpt_oss.engine.cache import (
    PAGE,
    Cache,
    KVCacheBlocks,
    Pages,
    Windows,
    longest_sequence,
    pages_needed,
    places_unseen,
)

SALTS = st.sampled_from(["", "a"])
TOKENS = st.integers(0, 1)  # few values, so that prefixes coincide
WINDOW = 100
KV_GROUPS: Windows = (WINDOW, None)
Content = tuple[int, str, tuple[int, ...]]  # kv group, salt, and the tokens up to the end of the page


def seen_from(computed: int, window: int | None) -> int:
    """Return the first place that tokens after `computed` ones see."""
    return min(place for place in range(computed + 1) if window is None or (place + 1) * PAGE > computed - window + 1)


@dataclass
class Opened:
    blocks: KVCacheBlocks
    tokens: list[int]
    salt: str
    computed: int
    pages: dict[tuple[int, int], int] = field(default_factory=dict)  # by kv group and place


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow, are computed and close, in any order, on a cache that is too small for all of them."""

    PAGES = 14
    names: Bundle[int] = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(self.PAGES, KV_GROUPS)
        self.opened: dict[int, Opened] = {}
        self.content: dict[int, Content] = {}  # the model: the shareable content of each page
        self.number = 0

    def content_of(self, salt: str, tokens: list[int], kv_group: int, place: int) -> Content:
        return kv_group, salt, tuple(tokens[: (place + 1) * PAGE])

    def expected_prefix(self, tokens: list[int], salt: str) -> int:
        """Return the largest number of places whose tokens are known as far as the next token sees them."""
        known = set(self.content.values())
        return max(
            places
            for places in range(-(-len(tokens) // PAGE))
            if all(
                self.content_of(salt, tokens, kv_group, place) in known
                for kv_group, window in enumerate(KV_GROUPS)
                for place in range(seen_from(places * PAGE, window), places)
            )
        )

    @rule(target=names, kv_groups=st.lists(TOKENS, min_size=1, max_size=5), salt=SALTS)
    def open(self, kv_groups: list[int], salt: str) -> int:
        tokens = [kv_group for kv_group in kv_groups for _ in range(PAGE)]
        expected = self.expected_prefix(tokens, salt)
        blocks, found = self.cache.allocate(tokens, salt)
        assert found == expected * PAGE
        opened = Opened(blocks, tokens, salt, found)
        for kv_group, window in enumerate(KV_GROUPS):
            for place in range(seen_from(found, window), expected):
                page = blocks.tables[kv_group].pages[place]
                assert self.content[page] == self.content_of(salt, tokens, kv_group, place)
                opened.pages[kv_group, place] = page
        self.number += 1
        self.opened[self.number] = opened
        return self.number

    @rule(name=names, extra=st.integers(0, 3 * PAGE))
    def grow(self, name: int, extra: int) -> None:
        each = self.opened[name]
        wanted = min(each.computed + extra, len(each.tokens))
        before, available = each.blocks.places, self.cache.pages.available
        more = range(before, max(before, -(-wanted // PAGE)))
        grown = self.cache.grow(each.blocks, wanted)
        assert grown == (len(more) * len(KV_GROUPS) <= available)
        if grown:
            for kv_group, table in enumerate(each.blocks.tables):
                for place in more:
                    each.pages[kv_group, place] = table.pages[place]
                    self.content.pop(table.pages[place], None)
        assert each.blocks.places == (more.stop if grown else before)

    @rule(name=names, most=st.integers(1, 3 * PAGE))
    def compute(self, name: int, most: int) -> None:
        each = self.opened[name]
        each.computed = min(each.computed + most, len(each.tokens), each.blocks.places * PAGE)
        for (kv_group, place), page in each.pages.items():
            content = self.content_of(each.salt, each.tokens, kv_group, place)
            if (place + 1) * PAGE <= each.computed and content not in self.content.values():
                self.content[page] = content
        self.cache.commit(each.blocks, each.tokens, each.computed)
        for kv_group, window in enumerate(KV_GROUPS):
            for place in range(seen_from(each.computed, window)):
                each.pages.pop((kv_group, place), None)

    @rule(name=consumes(names))
    def close(self, name: int) -> None:
        self.cache.close(self.opened.pop(name).blocks)

    @invariant()
    def each_sequence_has_its_pages(self) -> None:
        for each in self.opened.values():
            held = {
                (kv_group, place): table.pages[place]
                for kv_group, table in enumerate(each.blocks.tables)
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
            for (kv_group, place), page in each.pages.items():
                users.setdefault(page, []).append((kv_group, each.computed - (place + 1) * PAGE))
        for shared in (found for found in users.values() if len(found) > 1):
            assert len({kv_group for kv_group, _ in shared}) == 1
            assert all(beyond >= 0 for _, beyond in shared)


CacheMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestCache = CacheMachine.TestCase


def computed(cache: Cache, tokens: list[int], salt: str = "", step: int = 10_000) -> KVCacheBlocks:
    """Return a sequence that was computed from its beginning to its end."""
    blocks, done = cache.allocate(tokens, salt)
    while done < len(tokens):
        done = min(done + step, len(tokens))
        assert cache.grow(blocks, done)
        cache.commit(blocks, tokens, done)
    return blocks


def test_least_recently_used_page_is_evicted_first() -> None:
    pages = Pages(2)
    first, second = pages.take(), pages.take()
    pages.publish(first, (0, b"1"))
    pages.publish(second, (0, b"2"))
    pages.release(second)
    pages.release(first)
    assert pages.take() == second
    assert pages.share((0, b"1")) == first
    assert not pages.knows((0, b"2"))


def test_end_of_prefix_is_evicted_before_its_beginning() -> None:
    cache = Cache(6, (None, None))
    tokens = list(range(3 * PAGE))
    cache.close(computed(cache, tokens))
    cache.close(computed(cache, [5]))
    assert cache.allocate([*tokens, 7], "")[1] == 2 * PAGE


def test_prefix_is_found_only_with_pages_of_window_at_its_end() -> None:
    """Two long answers follow the same instructions: the window's pages before they differ are needed too."""
    cache = Cache(64, KV_GROUPS)
    common = [3] * (8 * PAGE)
    cache.close(computed(cache, [*common, *range(4 * PAGE)], step=32))
    assert cache.allocate([*common, 1000], "")[1] == 8 * PAGE
    tight = Cache(17, KV_GROUPS)
    tight.close(computed(tight, [*common, *range(6 * PAGE)], step=32))
    # The pages behind the window, unused for longest, were reused for later tokens.
    assert tight.allocate([*common, 1000], "")[1] == 0
    assert tight.allocate([*common, *range(6 * PAGE), 1000], "")[1] == 14 * PAGE


def test_pages_behind_window_are_freed() -> None:
    cache = Cache(64, KV_GROUPS)
    tokens = list(range(20 * PAGE))
    blocks = computed(cache, tokens, step=50)
    # The 99 preceding tokens that the next one sees begin two pages before it.
    assert cache.pages.used == 20 + 2
    cache.close(blocks)
    assert cache.pages.used == 0


@pytest.mark.parametrize("kv_groups", [KV_GROUPS, (None,), (1, None), (PAGE, None), (PAGE + 1, 3 * PAGE, None)])
@pytest.mark.parametrize("step", [1, 7, PAGE, 3 * PAGE + 1])
def test_sequence_never_holds_more_pages_than_pages_needed(kv_groups: Windows, step: int) -> None:
    most = 0
    for length in range(PAGE, 9 * PAGE, 23):
        for first in (1, step // 2 + 1, step):
            cache = Cache(200, kv_groups)
            tokens, held = [0] * length, 0
            blocks, _ = cache.allocate(tokens, "")
            for end in [*range(first, length, step), length]:
                assert cache.grow(blocks, end)
                held = max(held, cache.pages.used)
                cache.commit(blocks, tokens, end)
            assert held <= pages_needed(length, kv_groups, step)
            most = max(most, held)
    assert most >= pages_needed(8 * PAGE, kv_groups, step) - len(kv_groups)  # and the estimate is not much higher


@pytest.mark.parametrize("pages", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("kv_groups", [KV_GROUPS, (None,), (128, None)])
def test_longest_sequence_fits_and_longer_one_does_not(pages: int, kv_groups: Windows) -> None:
    longest = longest_sequence(pages, kv_groups, 2048)
    assert pages_needed(longest, kv_groups, 2048) <= pages < pages_needed(longest + 1, kv_groups, 2048)


def test_window_layers_halve_pages_of_long_sequence() -> None:
    assert longest_sequence(2000, (None, None), 2048) == 1000 * PAGE
    assert longest_sequence(2000, (128, None), 2048) > 1960 * PAGE


def test_last_token_is_always_recomputed() -> None:
    cache = Cache(8, KV_GROUPS)
    tokens = list(range(2 * PAGE))
    computed(cache, tokens)
    assert cache.allocate(tokens, "")[1] == PAGE
    assert cache.allocate([*tokens, 7], "")[1] == 2 * PAGE


def test_different_salts_share_no_pages() -> None:
    cache = Cache(8, KV_GROUPS)
    tokens = list(range(PAGE + 1))
    computed(cache, tokens, "one")
    assert cache.allocate(tokens, "two")[1] == 0
    assert cache.allocate(tokens, "one")[1] == PAGE


def test_taking_page_from_empty_pool_raises_error() -> None:
    with pytest.raises(IndexError):
        Pages(0).take()


def test_blocks_are_shared_and_leave_window_at_the_token_that_completes_them() -> None:
    cache, tokens = Cache(16, (100, 30, None)), list(range(300))
    blocks, _ = cache.allocate(tokens, "")
    assert cache.grow(blocks, len(tokens))
    for computed in range(1, len(tokens) + 1):
        cache.commit(blocks, tokens, computed)
        assert len(blocks.keys) == computed // PAGE
        assert [table.first for table in blocks.tables] == [places_unseen(computed, window) for window in cache.windows]
