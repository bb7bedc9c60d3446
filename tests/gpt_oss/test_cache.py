"""Blocks are never lost, never used twice, and shared only if the tokens before them are the same."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from llama_stack_gpt_oss.engine.cache import (
    BLOCK_TOKENS,
    BlockPool,
    Cache,
    KVCacheBlocks,
    Windows,
    blocks_needed,
    blocks_unseen,
    longest_sequence,
)

SALTS = st.sampled_from(["", "a"])
TOKENS = st.integers(0, 1)  # few values, so that prefixes coincide
WINDOW = 100
KV_GROUPS: Windows = (WINDOW, None)
Content = tuple[int, str, tuple[int, ...]]  # kv group, salt, and the tokens up to the end of the block


def seen_from(computed: int, window: int | None) -> int:
    """Return the first index that tokens after `computed` ones see."""
    return min(
        index for index in range(computed + 1) if window is None or (index + 1) * BLOCK_TOKENS > computed - window + 1
    )


@dataclass
class OpenSequence:
    blocks: KVCacheBlocks
    tokens: list[int]
    salt: str
    computed: int
    owned: dict[tuple[int, int], int] = field(default_factory=dict)  # by kv group and index


class CacheMachine(RuleBasedStateMachine):
    """Sequences open, grow, are computed and close, in any order, on a cache that is too small for all of them."""

    BLOCKS = 14
    names: Bundle[int] = Bundle("names")

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache(self.BLOCKS, KV_GROUPS)
        self.opened: dict[int, OpenSequence] = {}
        self.content: dict[int, Content] = {}  # the model: the shareable content of each block
        self.number = 0

    def content_of(self, salt: str, tokens: list[int], kv_group: int, index: int) -> Content:
        return kv_group, salt, tuple(tokens[: (index + 1) * BLOCK_TOKENS])

    def expected_prefix(self, tokens: list[int], salt: str) -> int:
        """Return the largest number of count whose tokens are known as far as the next token sees them."""
        known = set(self.content.values())
        return max(
            count
            for count in range(-(-len(tokens) // BLOCK_TOKENS))
            if all(
                self.content_of(salt, tokens, kv_group, index) in known
                for kv_group, window in enumerate(KV_GROUPS)
                for index in range(seen_from(count * BLOCK_TOKENS, window), count)
            )
        )

    @rule(target=names, kv_groups=st.lists(TOKENS, min_size=1, max_size=5), salt=SALTS)
    def open(self, kv_groups: list[int], salt: str) -> int:
        tokens = [kv_group for kv_group in kv_groups for _ in range(BLOCK_TOKENS)]
        expected = self.expected_prefix(tokens, salt)
        blocks, found = self.cache.allocate(tokens, salt)
        assert found == expected * BLOCK_TOKENS
        opened = OpenSequence(blocks, tokens, salt, found)
        for kv_group, window in enumerate(KV_GROUPS):
            for index in range(seen_from(found, window), expected):
                block = blocks.tables[kv_group].blocks[index]
                assert self.content[block] == self.content_of(salt, tokens, kv_group, index)
                opened.owned[kv_group, index] = block
        self.number += 1
        self.opened[self.number] = opened
        return self.number

    @rule(name=names, extra=st.integers(0, 3 * BLOCK_TOKENS))
    def grow(self, name: int, extra: int) -> None:
        each = self.opened[name]
        wanted = min(each.computed + extra, len(each.tokens))
        before, available = each.blocks.count, self.cache.pool.available
        more = range(before, max(before, -(-wanted // BLOCK_TOKENS)))
        grown = self.cache.grow(each.blocks, wanted)
        assert grown == (len(more) * len(KV_GROUPS) <= available)
        if grown:
            for kv_group, table in enumerate(each.blocks.tables):
                for index in more:
                    each.owned[kv_group, index] = table.blocks[index]
                    self.content.pop(table.blocks[index], None)
        assert each.blocks.count == (more.stop if grown else before)

    @rule(name=names, most=st.integers(1, 3 * BLOCK_TOKENS))
    def compute(self, name: int, most: int) -> None:
        each = self.opened[name]
        each.computed = min(each.computed + most, len(each.tokens), each.blocks.count * BLOCK_TOKENS)
        for (kv_group, index), block in each.owned.items():
            content = self.content_of(each.salt, each.tokens, kv_group, index)
            if (index + 1) * BLOCK_TOKENS <= each.computed and content not in self.content.values():
                self.content[block] = content
        self.cache.commit(each.blocks, each.tokens, each.computed)
        for kv_group, window in enumerate(KV_GROUPS):
            for index in range(seen_from(each.computed, window)):
                each.owned.pop((kv_group, index), None)

    @rule(name=consumes(names))
    def close(self, name: int) -> None:
        self.cache.close(self.opened.pop(name).blocks)

    @invariant()
    def each_sequence_has_its_blocks(self) -> None:
        for each in self.opened.values():
            held = {
                (kv_group, index): table.blocks[index]
                for kv_group, table in enumerate(each.blocks.tables)
                for index in range(table.first, len(table.blocks))
            }
            assert held == each.owned

    @invariant()
    def no_block_is_lost(self) -> None:
        held = {block for each in self.opened.values() for block in each.owned.values()}
        assert self.cache.pool.used == len(held)
        assert self.cache.pool.available == self.BLOCKS - len(held)

    @invariant()
    def only_what_was_computed_in_full_is_shared(self) -> None:
        users: dict[int, list[tuple[int, int]]] = {}
        for each in self.opened.values():
            for (kv_group, index), block in each.owned.items():
                users.setdefault(block, []).append((kv_group, each.computed - (index + 1) * BLOCK_TOKENS))
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


def test_least_recently_used_block_is_evicted_first() -> None:
    pool = BlockPool(2)
    first, second = pool.take(), pool.take()
    pool.publish(first, (0, b"1"))
    pool.publish(second, (0, b"2"))
    pool.release(second)
    pool.release(first)
    assert pool.take() == second
    assert pool.acquire((0, b"1")) == first
    assert not pool.knows((0, b"2"))


def test_end_of_prefix_is_evicted_before_its_beginning() -> None:
    cache = Cache(6, (None, None))
    tokens = list(range(3 * BLOCK_TOKENS))
    cache.close(computed(cache, tokens))
    cache.close(computed(cache, [5]))
    assert cache.allocate([*tokens, 7], "")[1] == 2 * BLOCK_TOKENS


def test_prefix_is_found_only_with_blocks_of_window_at_its_end() -> None:
    """Two long answers follow the same instructions: the window's blocks before they differ are needed too."""
    cache = Cache(64, KV_GROUPS)
    common = [3] * (8 * BLOCK_TOKENS)
    cache.close(computed(cache, [*common, *range(4 * BLOCK_TOKENS)], step=32))
    assert cache.allocate([*common, 1000], "")[1] == 8 * BLOCK_TOKENS
    tight = Cache(17, KV_GROUPS)
    tight.close(computed(tight, [*common, *range(6 * BLOCK_TOKENS)], step=32))
    # The blocks behind the window, unused for longest, were reused for later tokens.
    assert tight.allocate([*common, 1000], "")[1] == 0
    assert tight.allocate([*common, *range(6 * BLOCK_TOKENS), 1000], "")[1] == 14 * BLOCK_TOKENS


def test_blocks_behind_window_are_freed() -> None:
    cache = Cache(64, KV_GROUPS)
    tokens = list(range(20 * BLOCK_TOKENS))
    blocks = computed(cache, tokens, step=50)
    # The 99 preceding tokens that the next one sees begin two blocks before it.
    assert cache.pool.used == 20 + 2
    cache.close(blocks)
    assert cache.pool.used == 0


@pytest.mark.parametrize(
    "kv_groups", [KV_GROUPS, (None,), (1, None), (BLOCK_TOKENS, None), (BLOCK_TOKENS + 1, 3 * BLOCK_TOKENS, None)]
)
@pytest.mark.parametrize("step", [1, 7, BLOCK_TOKENS, 3 * BLOCK_TOKENS + 1])
def test_sequence_never_holds_more_blocks_than_blocks_needed(kv_groups: Windows, step: int) -> None:
    most = 0
    for length in range(BLOCK_TOKENS, 9 * BLOCK_TOKENS, 23):
        for first in (1, step // 2 + 1, step):
            cache = Cache(200, kv_groups)
            tokens, held = [0] * length, 0
            blocks, _ = cache.allocate(tokens, "")
            for end in [*range(first, length, step), length]:
                assert cache.grow(blocks, end)
                held = max(held, cache.pool.used)
                cache.commit(blocks, tokens, end)
            assert held <= blocks_needed(length, kv_groups, step)
            most = max(most, held)
    assert most >= blocks_needed(8 * BLOCK_TOKENS, kv_groups, step) - len(
        kv_groups
    )  # and the estimate is not much higher


@pytest.mark.parametrize("blocks", [0, 1, 2, 7, 100, 1001])
@pytest.mark.parametrize("kv_groups", [KV_GROUPS, (None,), (128, None)])
def test_longest_sequence_fits_and_longer_one_does_not(blocks: int, kv_groups: Windows) -> None:
    longest = longest_sequence(blocks, kv_groups, 2048)
    assert blocks_needed(longest, kv_groups, 2048) <= blocks < blocks_needed(longest + 1, kv_groups, 2048)


def test_window_layers_halve_blocks_of_long_sequence() -> None:
    assert longest_sequence(2000, (None, None), 2048) == 1000 * BLOCK_TOKENS
    assert longest_sequence(2000, (128, None), 2048) > 1960 * BLOCK_TOKENS


def test_last_token_is_always_recomputed() -> None:
    cache = Cache(8, KV_GROUPS)
    tokens = list(range(2 * BLOCK_TOKENS))
    computed(cache, tokens)
    assert cache.allocate(tokens, "")[1] == BLOCK_TOKENS
    assert cache.allocate([*tokens, 7], "")[1] == 2 * BLOCK_TOKENS


@pytest.mark.parametrize(("one", "two"), [("one", "two"), ("half a pair: \ud83d", "half a pair: \ud83e")])
def test_different_salts_share_no_blocks(one: str, two: str) -> None:
    cache = Cache(8, KV_GROUPS)
    tokens = list(range(BLOCK_TOKENS + 1))
    computed(cache, tokens, one)
    assert cache.allocate(tokens, two)[1] == 0
    assert cache.allocate(tokens, one)[1] == BLOCK_TOKENS


def test_taking_block_from_empty_pool_raises_error() -> None:
    with pytest.raises(IndexError):
        BlockPool(0).take()


def test_blocks_are_shared_and_leave_window_at_the_token_that_completes_them() -> None:
    cache, tokens = Cache(16, (100, 30, None)), list(range(300))
    blocks, _ = cache.allocate(tokens, "")
    assert cache.grow(blocks, len(tokens))
    for computed in range(1, len(tokens) + 1):
        cache.commit(blocks, tokens, computed)
        assert len(blocks.keys) == computed // BLOCK_TOKENS
        assert [table.first for table in blocks.tables] == [blocks_unseen(computed, window) for window in cache.windows]
