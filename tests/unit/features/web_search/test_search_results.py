"""Search results in the formats of all supported services."""

import json
from typing import Any

import pytest

from llama_stack_responses.features.web_search.search_results import Result, results_of
from llama_stack_responses.fetch.hosts import is_within, web_host

URL = "https://a.example/"


@pytest.mark.parametrize(
    "entry",
    [
        {"url": URL, "title": "A", "content": "text"},
        {"url": URL, "title": " A ", "content": "<b>te</b>xt\n", "score": 1},
        {"url": URL, "title": "A", "highlights": ["text"]},
        {"url": URL, "name": "<b>A</b>", "snippet": "text"},
        {"url": URL, "name": "A", "description": "text"},
    ],
)
@pytest.mark.parametrize("key", ["top_k", "results"])
def test_result_entries_are_read_in_every_format(entry: Any, key: str) -> None:
    assert results_of(json.dumps({"query": "q", key: [entry]})) == [Result(URL, "A", "text")]
    assert results_of(json.dumps([entry])) == results_of(str(entry)) == [Result(URL, "A", "text")]


def test_markup_and_entities_are_decoded() -> None:
    content = json.dumps({"results": [{"url": URL, "title": "1 &lt; 2 &amp; 3", "content": "a <em>b</em> 1 < 2 > 0"}]})
    assert results_of(content) == [Result(URL, "1 < 2 & 3", "a b 1 < 2 > 0")]


def test_invalid_results_are_dropped() -> None:
    entries = [{"url": "ftp://a"}, {"title": "A"}, {"url": None}, {"url": "http://["}, "x", 1, None, {"url": URL}]
    assert results_of(json.dumps({"top_k": entries})) == [Result(URL, "a.example", "")]


def test_duplicate_pages_count_once() -> None:
    entries = [{"url": URL, "title": title} for title in ("A", "B")]
    assert len(results_of(json.dumps({"results": entries}))) == 1


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", "1", '"a"', "no results", "__import__('os')", "(" * 9999])
def test_unreadable_content_gives_no_results(content: str) -> None:
    assert results_of(content) == []


@pytest.mark.parametrize(
    ("url", "host"),
    [("https://A.example:1/b", "a.example"), ("file:///a", None), ("http://[", None), ("a.example", None), ("", None)],
)
def test_host_of_web_url_is_found(url: str, host: str | None) -> None:
    assert web_host(url) == host


@pytest.mark.parametrize(
    ("url", "within"),
    [
        ("https://a.example/", True),
        ("https://www.A.example/b", True),
        ("https://b.example/?a.example", False),
        ("https://nota.example/", False),
        ("https://a.example.evil/", False),
        ("https://a.example@evil.example/", False),
    ],
)
def test_allowed_domains_include_subdomains_only(url: str, within: bool) -> None:
    assert is_within(url, ["x.example", "A.example"]) is within


def test_huge_character_reference_stays_text() -> None:
    reference = f"&#{'9' * 5000};"
    assert results_of(json.dumps([{"url": URL, "title": "A", "content": reference}])) == [Result(URL, "A", reference)]


def test_nested_lists_are_read_to_limit() -> None:
    assert results_of("[" * 1000 + "]" * 1000) == []
    assert results_of(json.dumps([[{"url": URL, "title": "A", "content": "text"}]])) == [Result(URL, "A", "text")]


def test_result_entries_are_limited() -> None:
    entries = [{"url": f"{URL}{number}", "title": "A", "content": "x" * 2_000} for number in range(600)]
    entries[0]["content"] = "x" * 30_000
    found = results_of(json.dumps(entries))
    assert len(found) == 500
    assert {len(each.snippet) for each in found} == {20_000, 2_000}


def test_printed_line_over_limit_is_not_read() -> None:
    entry = {"url": URL, "title": "A", "description": "x" * 300_000}
    assert results_of(str(entry)) == []


@pytest.mark.parametrize(
    "content",
    [
        json.dumps({"results": [{"url": "https://a.b/" + " " * 100_000, "title": "t", "content": "c"}]}),
        '{"results": [' + "[]," * 100_000 + "[]]}",
        '{"results": [{"url": "https://a.b", "content": "' + "x" * 2**21 + '"}]}',
        "[" * 100_000,
    ],
    ids=["url", "values", "length", "depth"],
)
def test_answer_that_costs_much_has_no_results(content: str) -> None:
    assert results_of(content) == []
