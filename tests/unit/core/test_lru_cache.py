"""A cache drops its least recently used values."""

from __future__ import annotations

from llama_stack_responses.core.lru_cache import LruCache


def test_least_recently_used_value_is_dropped() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.set("a", 1)
    cache.set("b", 2)
    assert cache.get("a") == 1
    cache.set("c", 3)
    assert [cache.get(each) for each in "abc"] == [1, None, 3]


def test_values_count_by_their_size() -> None:
    cache: LruCache[str, str] = LruCache(5, len)
    cache.set("a", "12")
    cache.set("b", "34")
    cache.set("a", "123")
    assert [cache.get(each) for each in "ba"] == ["34", "123"]
    cache.set("b", "345")
    assert [cache.get(each) for each in "ab"] == [None, "345"]


def test_value_over_the_size_is_not_kept() -> None:
    cache: LruCache[str, str] = LruCache(3, len)
    cache.set("a", "1234")
    assert cache.get("a") is None
