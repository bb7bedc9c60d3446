"""The declaration of the tool, what is refused at its field, and what the page shows of a call."""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import pytest
from openai.types.responses.file_search_tool_param import FileSearchToolParam

from llama_stack_responses.concurrency.large_work import LargeWork
from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.shapes import DEFAULT_LIMITS
from llama_stack_responses.features.file_search.kinds import KINDS
from llama_stack_responses.inputs.request_parser import RequestParser
from llama_stack_responses.items.view import CallView, Link
from llama_stack_responses.requests.request import parse_create

Json = dict[str, Any]

FILE_SEARCH: Final[Json] = {
    "type": "file_search",
    "vector_store_ids": ["vs_1"],
    "filters": {
        "type": "and",
        "filters": [
            {"type": "eq", "key": "year", "value": 2026},
            {"type": "in", "key": "kind", "value": ["a", 1.5]},
            {"type": "or", "filters": [{"type": "ne", "key": "draft", "value": True}]},
        ],
    },
    "max_num_results": 50,
    "ranking_options": {
        "ranker": "auto",
        "score_threshold": 0.5,
        "hybrid_search": {"embedding_weight": 1.0, "text_weight": 0.5},
    },
}


def tools(*declared: Json) -> list[Json]:
    return parse_create({"model": "m", "input": "hi", "tools": list(declared)}).tools


def refused(tool: Json) -> ApiError:
    with pytest.raises(ApiError) as raised:
        tools(tool)
    assert raised.value.status == 400
    return raised.value


@pytest.mark.parametrize(
    ("tool", "param", "code"),
    [
        ({"type": "file_search"}, ".vector_store_ids", "missing_required_parameter"),
        ({**FILE_SEARCH, "vector_store_ids": []}, ".vector_store_ids", "empty_array"),
        ({**FILE_SEARCH, "vector_store_ids": ["vs_1"] * 51}, ".vector_store_ids", "array_above_max_length"),
        ({**FILE_SEARCH, "max_num_results": 51}, ".max_num_results", "integer_above_max_value"),
        ({**FILE_SEARCH, "ranking_options": {"ranker": "x"}}, ".ranking_options.ranker", "invalid_value"),
        ({**FILE_SEARCH, "filters": {"type": "eq", "key": "k"}}, ".filters.value", "missing_required_parameter"),
        ({**FILE_SEARCH, "filters": {"type": "eq", "key": "k", "value": {}}}, ".filters.value", "invalid_type"),
        (
            {**FILE_SEARCH, "filters": {"type": "or", "filters": [{"type": "like"}]}},
            ".filters.filters[0].type",
            "invalid_value",
        ),
    ],
)
def test_invalid_declaration_is_refused_at_its_field(tool: Json, param: str, code: str) -> None:
    error = refused(tool)
    assert (error.param, error.code) == (f"tools[0]{param}", code)


def test_file_search_with_every_declared_key_stays_unchanged() -> None:
    assert tools(FILE_SEARCH) == [FILE_SEARCH]
    assert FILE_SEARCH.keys() == get_type_hints(FileSearchToolParam).keys()


def file_search(filters: Json) -> Json:
    return {"type": "file_search", "vector_store_ids": ["vs_1"], "filters": filters}


def nested(depth: int) -> Json:
    filters: Json = {"type": "eq", "key": "a", "value": 1}
    for _ in range(depth - 1):
        filters = {"type": "and", "filters": [filters]}
    return filters


def many(number: int) -> Json:
    return {"type": "or", "filters": [{"type": "in", "key": "a", "value": ["x"] * number}]}


def long(length: int) -> Json:
    return {"type": "eq", "key": "a", "value": "x" * length}


@pytest.mark.parametrize(
    ("accepted", "too_large"),
    [(nested(16), nested(17)), (nested(16), nested(100)), (many(1_000), many(1_024)), (long(65_000), long(65_536))],
    ids=["depth", "great depth", "values", "characters"],
)
def test_large_filters_of_file_search_are_refused(accepted: Json, too_large: Json) -> None:
    assert tools(file_search(accepted))[0]["filters"] == accepted
    error = refused(file_search(too_large))
    assert (error.param, error.code) == ("tools[0].filters", "invalid_value")
    assert "the filters are too large" in error.message


def test_stored_declaration_with_larger_filters_is_accepted() -> None:
    stored = file_search(nested(17))
    refused(stored)
    parser = RequestParser(frozenset(), DEFAULT_LIMITS, LargeWork(), refuse_unknown=True)
    assert parser.parse_stored({"model": "m", "input": "x", "tools": [stored]}).tools == [stored]


def test_view_of_call_has_its_queries_and_files() -> None:
    [kind] = KINDS.items
    found = {"file_id": "file-1", "filename": "otters.txt", "score": 0.5, "text": "Otters sleep.", "attributes": {}}
    unnamed = {"file_id": "file-2", "filename": "", "score": 0.4, "text": "Fish swim.", "attributes": {}}
    call = {"type": "file_search_call", "id": "fs_1", "queries": ["otters", "fish"], "results": [found, unnamed]}
    assert isinstance(kind.view, CallView)
    assert kind.view.arguments
    assert kind.view.summary
    assert kind.view.links
    assert (kind.view.arguments(call), kind.view.summary(call)) == (["otters", "fish"], "otters")
    assert list(kind.view.links(call)) == [
        Link(None, "otters.txt", "Otters sleep.", "file-1"),
        Link(None, "file-2", "Fish swim.", "file-2"),
    ]
