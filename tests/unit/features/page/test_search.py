"""What is typed to search, what is indexed of a response, and what is shown of what was found."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.page.search.box import MAX_CHARACTERS, searched
from llama_stack_responses.features.page.search.document_text import MAX_BYTES, text_of
from llama_stack_responses.features.page.search.snippets import snippet
from llama_stack_responses.store.list_rows import row_of
from llama_stack_responses.store.search_index import Term, has_term, indexed_words, is_exact, sought_words, words_of
from tests.support.snippet_programs import TYPED_SEARCH
from tests.support.snippets import blocks

Json = dict[str, Any]


def row(**fields: Any) -> Json:
    response = {"status": "completed", "model": "local/qwen3", "created_at": 5, "output": [], **fields}
    return {"id": "resp_abc123", **row_of(response, fields.get("words", ""), None)}


def day(year: int, month: int, of_month: int) -> float:
    return datetime(year, month, of_month, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("sky blue", [Term(("sky",), prefix=True), Term(("blue",), prefix=True)]),
        ("a", [Term(("a",), prefix=False)]),
        ('"the sky"', [Term(("the", "sky"), prefix=False)]),
        ('"the sky', [Term(("the", "sky"), prefix=False)]),
        ("resp_4fE", [Term(("resp", "4fe"), prefix=True)]),
        ("https://a.example/b", [Term(("https", "a", "example", "b"), prefix=False)]),
        ("!!! -- ' \" ;", []),
        ("12:30", [Term(("12", "30"), prefix=False)]),
    ],
)
def test_words_and_phrases_are_terms(text: str, terms: list[Term]) -> None:
    assert list(searched(text).terms) == terms


@pytest.mark.parametrize(("text", "statuses"), [("!!!", {"none"}), ('"', {"none"}), (" ", set()), ("?? rain", set())])
def test_signs_alone_find_nothing(text: str, statuses: set[str]) -> None:
    assert searched(text).statuses == statuses


def test_filters_are_read_from_the_same_text() -> None:
    found = searched('rain model:qwen3 status:failed tool:Web_Search team:"a b" after:2026-01-30 before:2026-02-01')
    assert [term.words for term in found.terms] == [("rain",)]
    assert found.statuses == {"failed"}
    assert [*found.models, *found.tools, *found.metadata] == ["qwen3", "web_search", ("team", "a b")]
    assert (found.since, found.until) == (day(2026, 1, 30), day(2026, 2, 1))


def test_documented_search_is_read_as_the_guide_says() -> None:
    found = searched(blocks()[TYPED_SEARCH].text)
    assert [term.words for term in found.terms] == [("timeout",), ("model", "server")]
    assert [*found.statuses, *found.tools, *found.metadata] == ["failed", "web_search", ("team", "search")]
    assert found.since is not None


def test_later_dates_narrow_the_span_and_may_be_relative() -> None:
    found = searched("after:2026-01-01 after:2026-03-01T10:00:00+02:00 before:2027-01-01 before:2026-12-01")
    assert found.since == day(2026, 3, 1) + 8 * 3600
    assert found.until == day(2026, 12, 1)
    assert abs((searched("after:2d").since or 0) - (time.time() - 2 * 86_400)) < 60


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("status:done", "'status:' takes one of queued, in_progress"),
        ("after:soon", "'after:' takes a date such as 2026-01-31"),
        ("before:2026-13-01", "'before:' takes a date"),
        ("score:7", "'score:' takes good, bad, any, none, or a number"),
        ("score:>=", "'score:' takes good"),
        ("after:9999-99-99T99", "'after:' takes a date"),
        ("w " * 33, "at most 32 words and filters"),
        ("x" * (MAX_CHARACTERS + 1), "1000 characters"),
    ],
)
def test_wrong_search_is_refused_with_what_it_takes(text: str, what: str) -> None:
    with pytest.raises(ApiError, match=what) as refused:
        searched(text)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("model:qwen3", True),
        ("model:local/qwen3", True),
        ("model:qwen", False),
        ("tool:web_search", True),
        ("tool:get_weather", True),
        ("tool:weather", False),
        ("team:poems", True),
        ("team:poem", False),
        ("conversation:conv_1", False),
    ],
)
def test_filter_matches_fields_of_a_row(text: str, matches: bool) -> None:
    calls = [
        {"type": "web_search_call", "status": "completed", "action": {}},
        {"type": "function_call", "name": "get_weather", "call_id": "c", "arguments": "{}"},
        {"type": "mcp_call", "name": "roll", "arguments": "{}"},
    ]
    found = row(output=calls, metadata={"team": "poems"})
    assert found["tools"] == ["web_search", "get_weather", "mcp", "roll"]
    assert searched(text).filters(found) is matches


@pytest.mark.parametrize(
    ("text", "says"),
    [("SLEEP tide", True), ('"sleeping tide"', True), ('"sleep tide"', False), ("abc123", True), ("gull", False)],
)
def test_first_words_say_all_words_of_a_search(text: str, says: bool) -> None:
    assert searched(text).says(row(words="The Sleeping tide")) is says


def message(role: str, text: str) -> Json:
    return {"type": "message", "role": role, "id": f"msg_{role}", "content": [{"type": "input_text", "text": text}]}


def test_text_has_ids_errors_questions_answers_and_calls() -> None:
    call = {
        "type": "function_call",
        "id": "fc_9",
        "call_id": "call_9",
        "name": "get_weather",
        "arguments": '{"c":"Oslo"}',
    }
    answer = {"type": "function_call_output", "call_id": "call_8", "output": "four degrees"}
    response = {
        "id": "resp_1",
        "error": {"code": "server_error", "message": "The model server is gone."},
        "metadata": {"team": "poems"},
        "conversation": {"id": "conv_7"},
        "output": [call, message("assistant", "It rains.")],
    }
    text = text_of(response, [{"role": "user", "content": "Why?"}, answer])
    for part in (
        "resp_1",
        "conv_7",
        "server_error",
        "model server is gone",
        "poems",
        "fc_9",
        "call_9",
        "call_8",
        "Why?",
    ):
        assert part in text
    for part in ("It rains.", "get_weather", "Oslo", "four degrees"):
        assert part in text


@pytest.mark.parametrize(
    "content",
    [
        "data:image/png;base64," + "A" * 5_000,
        "iVBORw0KGgo" * 1_000,
    ],
)
def test_content_of_files_is_not_indexed(content: str) -> None:
    inputs = [{"role": "user", "content": [{"type": "input_image", "image_url": content}, {"text": "What is it?"}]}]
    assert text_of({"id": "r", "output": []}, inputs).split() == ["r", "What", "is", "it?"]


def test_encrypted_reasoning_is_not_indexed() -> None:
    item = {"type": "reasoning", "id": "rs_1", "encrypted_content": "sealed words", "summary": [{"text": "a plan"}]}
    text = text_of({"id": "r", "output": [item]}, [])
    assert "sealed" not in text
    assert "a plan" in text


@pytest.mark.parametrize("letter", ["word ", "é ", "今", "\ud800 ", "\0 "])
def test_text_is_bounded_in_bytes_and_has_the_beginning_of_each_part(letter: str) -> None:
    long = letter * 200_000
    call = {"type": "function_call", "call_id": "c", "name": "begin_call", "arguments": long}
    response = {"id": "r", "metadata": {"a": long}, "output": [message("assistant", f"begin_answer {long}"), call]}
    text = text_of(response, [message("user", f"begin_question {long}")])
    assert len(text.encode()) <= MAX_BYTES
    assert all(part in text for part in ("begin_question", "begin_answer", "begin_call"))
    assert "\0" not in text


def test_text_of_deep_and_wide_items_is_bounded() -> None:
    deep: Any = "bottom"
    for _ in range(100_000):
        deep = [deep]
    wide = {str(number): {"text": "x"} for number in range(100_000)}
    assert "bottom" not in text_of({"id": "r", "output": [{"type": "x", "a": deep}, {"type": "y", "b": wide}]}, [])
    while isinstance(deep, list):
        [deep] = deep  # freed level by level


def shown(text: str, *typed: str) -> str:
    pieces = snippet(text, searched(" ".join(typed)).terms)
    return "".join(f"[{each['text']}]" if each["match"] else each["text"] for each in pieces)


@pytest.mark.parametrize(
    ("text", "typed", "expected"),
    [
        ("The sky is blue.", "sky", "The [sky] is blue."),
        ("The sky is blue.", "BLU", "The sky is [blue]."),
        ("Skyline, sky", '"sky"', "Skyline, [sky]"),
        ("un café crème", "cafe", "un [café] crème"),
        ("今天天气很好", "天气", "今天[天气]很好"),
        ("call_9f3Ab failed", "call_9f3ab", "[call_9f3Ab] failed"),
        ("<b>bold</b>\n& sky", "sky", "<b>bold</b> & [sky]"),
        ("nothing", "sky", ""),
    ],
)
def test_snippet_marks_what_was_found(text: str, typed: str, expected: str) -> None:
    assert shown(text, typed) == expected


def test_snippet_is_the_part_with_most_of_the_words() -> None:
    text = f"rain {'x ' * 500} the rain in Oslo {'y ' * 500}"
    found = shown(text, "rain", "oslo")
    assert "the [rain] in [Oslo]" in found
    assert found.startswith("…")
    assert found.endswith("…")
    assert len(found) < 200


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The sky, the SKY", ["sky", "the"]),
        ("resp_4fE09a81b2c3 Donaudampfschifffahrt covid19", ["4fe09a81", "covid19", "donaudampfschifffahrt", "resp"]),
        ("今天天气 ok 好", ["ok", "今天", "天天", "天气", "好", "气"]),
        ("", []),
    ],
)
def test_text_is_indexed_by_each_word_once(text: str, words: list[str]) -> None:
    assert sorted(indexed_words(text)) == words


@pytest.mark.parametrize(
    ("words", "prefix", "exact"),
    [
        ("sky", False, True),
        ("sky", True, True),
        ("the sky", False, False),
        ("donaudampfschiff", True, True),
        ("4fe09a81", True, True),
        ("4fe09a81", False, False),
        ("4fe09a81b2", True, False),
        ("天", False, True),
        ("天气", False, True),
        ("天天气", False, False),
        ("天 ok", True, False),
        ("ok 天", False, False),
    ],
)
def test_what_is_sought_is_in_each_text_with_the_term_and_exact_only_in_these(
    words: str, prefix: bool, exact: bool
) -> None:
    term = Term(tuple(words_of(words)), prefix)
    assert is_exact(term) == exact
    texts = [
        "the sky",
        "sky",
        "skyline",
        "the skyline",
        "Donaudampfschifffahrt",
        "今天天气",
        "天气",
        "气天",
        "天 ok",
        "ok 天",
        "天",
    ]
    texts += ["4fe09a81", "4fe09a81b2c3", "4fe09a81ff", "ok today 天", "good 天天 and 气"]
    for text in texts:
        indexed = indexed_words(text)
        candidate = all(
            any(each.startswith(word) if is_prefix else each == word for each in indexed)
            for word, is_prefix in sought_words(term)
        )
        is_there = has_term(words_of(text), term)
        assert candidate or not is_there, text
        assert candidate == is_there or not exact, text
