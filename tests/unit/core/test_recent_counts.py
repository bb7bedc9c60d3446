"""Events are counted by key, for a time, and for a bounded number of keys."""

from __future__ import annotations

from llama_stack_responses.core.recent_counts import RecentCounts


def test_events_count_by_key_until_their_time_is_over() -> None:
    now = 0.0
    counts: RecentCounts[str] = RecentCounts(60.0, 10, lambda: now)
    assert [counts.add(each) for each in "aab"] == [1, 2, 1]
    now = 60.0
    assert counts.add("a") == 3
    now = 60.1
    assert [counts.add(each) for each in "aa"] == [1, 2]


def test_count_of_least_recently_used_key_is_dropped() -> None:
    counts: RecentCounts[str] = RecentCounts(60.0, 2)
    assert [counts.add(each) for each in "abac"] == [1, 1, 2, 1]
    assert [counts.add(each) for each in "ab"] == [3, 1]
