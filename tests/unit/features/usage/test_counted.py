"""What one response counts as, and how many names a day has."""

from __future__ import annotations

import json
import re
from collections import Counter
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any, Final

import pytest
from _quickjs import Context
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.owner import Owner
from llama_stack_responses.features import usage
from llama_stack_responses.features.usage.counted import OTHER, Dimensions, counted_identity, counts_of, dimensions_of
from llama_stack_responses.features.usage.histograms import BINS, FIRST_TOKEN, bin_of, histogram
from llama_stack_responses.features.usage.naming import Bounds, Names
from llama_stack_responses.features.usage.rows import PARTS, encode_pending, stored_table, table_of
from llama_stack_responses.store import codec
from llama_stack_responses.store.ends import Ended
from tests.contract.conversations import assistant, response

VIEW: Final = (Path(usage.__path__[0]) / "page" / "usage.js").read_text()
PAGE: Final = Context()
"""The functions of the view of usage that compute percentiles."""
for code in re.findall(r"^(?:const (?:sum|total) = .*?;|function percentile\(.*?^\})$", VIEW, re.MULTILINE | re.DOTALL):
    PAGE.eval(code)


def ended(owner: Owner | None = None, timing: Any = None, **fields: Any) -> Ended:
    return Ended(response(**fields), owner or Owner("ada"), timing, 1.0)


def test_response_counts_tokens_tools_images_and_sandbox_seconds() -> None:
    output = [
        assistant("hi"),
        {"type": "web_search_call"},
        {"type": "function_call"},
        {"type": "function_call"},
        {"type": "image_generation_call", "status": "completed"},
        {"type": "image_generation_call", "status": "failed"},
        {"type": "code_interpreter_call", "container_id": "cntr_1"},
        {"type": "shell_call", "environment": {"type": "container_reference", "container_id": "cntr_1"}},
        {"type": "shell_call", "environment": {"type": "local"}},
    ]
    times = [(100, 350, "c", "code_interpreter_call", "x", False), (0, 9, "w", "web_search_call", "x", False)]

    assert counts_of(ended(timing={"tools": times}, output=output)) == {
        "requests": 1,
        "status.completed": 1,
        "input_tokens": 1234,
        "cached_tokens": 1024,
        "output_tokens": 321,
        "reasoning_tokens": 64,
        "tools.web_search_call": 1,
        "tools.function_call": 2,
        "tools.image_generation_call": 2,
        "tools.code_interpreter_call": 1,
        "tools.shell_call": 2,
        "images": 1,
        "sessions": 1,
        "sandbox_ms": 250,
    }


def test_failed_response_without_usage_counts_its_error() -> None:
    error = {"code": "server_error", "message": "no"}
    expected = {"requests": 1, "status.failed": 1, "errors.server_error": 1}

    assert counts_of(ended(status="failed", error=error, usage=None)) == expected


def test_response_with_unknown_usage_counts_what_is_known_of_its_rounds() -> None:
    rounds = [(0, 1, 2, 10, 5, 4, "answer"), (2, 3, 4, 0, 0, 0, "answer"), (4, None, 5, 7, 1, 0, "compaction")]
    counted = {"requests": 1, "status.completed": 1, "input_tokens": 17, "output_tokens": 6, "cached_tokens": 4}

    assert counts_of(ended(timing={"rounds": rounds}, usage=None)) == counted | {"first_token_ms.12": 1}


@pytest.mark.parametrize("usage", [None, {"input_tokens": 10, "output_tokens": 5}])
def test_round_of_which_no_tokens_were_reported_counts_by_its_estimates(usage: Any) -> None:
    rounds = [(0, 1, 2, 10, 5, 0, "answer"), (2, 3, 4, 0, 0, 0, "answer", 15, 290)]
    counts = counts_of(ended(timing={"rounds": rounds}, status="cancelled", usage=usage))
    assert (counts["input_tokens"], counts["output_tokens"]) == (25, 295)


@pytest.mark.parametrize(
    ("first", "total", "bins"),
    [
        (100, 3000, {"first_token_ms.27": 1, "duration_ms.47": 1}),
        (None, 0, {"duration_ms.12": 1}),
        (128, 10**12, {"first_token_ms.28": 1, "duration_ms.88": 1}),
    ],
)
def test_times_count_in_bins(first: int | None, total: int, bins: Any) -> None:
    rounds = [(0, None, 2, 0, 0, 0, "compaction"), (2, first, 9, 0, 0, 0, "answer"), (9, 10**6, 9, 0, 0, 0, "answer")]
    timing = {"rounds": rounds if first else (), "total_ms": total}
    counts = counts_of(ended(timing=timing))
    assert {name: count for name, count in counts.items() if "_ms." in name} == bins


@given(st.integers(9, 3_400_000))
def test_bin_is_at_most_a_fifth_too_long(milliseconds: int) -> None:
    [(most, count)] = histogram({BINS[bin_of(FIRST_TOKEN, milliseconds)][1]: 1}).items()
    assert count == 1
    assert milliseconds - 0.5 <= int(most) <= milliseconds * 1.2 + 0.5


@given(st.lists(st.integers(0, 3_500_000), min_size=1, max_size=300), st.integers(1, 3))
def test_percentiles_of_the_page_are_those_of_the_times_within_a_bin(times: list[int], buckets: int) -> None:
    counts = [Counter(BINS[bin_of(FIRST_TOKEN, each)][1] for each in times[start::buckets]) for start in range(buckets)]
    merged = histogram(sum(counts, Counter()))
    for part in ("0.5", "0.95", "0.99"):
        exact = sorted(times)[ceil(Fraction(part) * len(times)) - 1]
        found = PAGE.eval(f"percentile({json.dumps(merged)}, {part})")
        assert exact - 0.5 <= found <= max(8, exact * 1.2 + 0.5)


def test_dimensions_are_of_the_caller_and_cut() -> None:
    owner = Owner("u" * 1000, {"teams": ["search"], "keys": ["key_1"]}, "acme")
    response_of_project = ended(owner, model="local/m", metadata={"project": "x", "other": "y"})

    dimensions = dimensions_of(response_of_project, "project")
    assert dimensions == Dimensions("acme", dimensions.user, "search", "key_1", "local/m", "x")
    assert re.fullmatch("u{167}~[0-9a-f]{32}", dimensions.user)
    assert counted_identity(owner) == ("acme", dimensions.user)
    assert dimensions_of(response_of_project, None).metadata == ""


VALUES = st.sampled_from(["", "a", "b", "c", "d", "e", OTHER])
DIMENSIONS = st.builds(Dimensions, st.sampled_from(["", "t"]), VALUES, VALUES, VALUES, VALUES, VALUES)


@given(st.lists(DIMENSIONS, max_size=80), st.integers(1, 3))
def test_names_of_a_day_are_bounded_and_known_ones_stay(each: list[Dimensions], values: int) -> None:
    bounds = Bounds(users=3 * PARTS, values=values)
    names = Names(bounds, [])
    counted = [names.counted_as(dimensions) for dimensions in each]
    users = {(one.tenant, one.user) for one in counted}

    assert len(users - {("", OTHER), ("t", OTHER)}) <= 3
    for user in users:
        own = {one for one in counted if (one.tenant, one.user) == user}
        assert len(own) <= values * 4 + 2
        for name in ("team", "key", "model", "metadata"):
            assert len({getattr(one, name) for one in own} - {"", OTHER}) <= values
    again = Names(bounds, set(counted))
    assert [again.counted_as(one) for one in counted] == counted


@pytest.mark.parametrize("users", [1, PARTS])
def test_first_user_of_a_day_always_has_a_name(users: int) -> None:
    first = Dimensions("", "ada", "", "", "m", "")

    assert Names(Bounds(users, 1), []).counted_as(first) == first


def test_rows_need_no_slower_form_of_json() -> None:
    dimensions, counts = Dimensions("", "ada", "search", "key_1", "local/m", ""), {"requests": 1}
    pending = encode_pending(dimensions, counts)
    table = codec.encode(stored_table({dimensions: counts}), pack=False)
    assert (pending[0], table[0]) == (codec.FORMAT, codec.FORMAT)
    assert table_of(codec.decode(table)) == {dimensions: counts}
