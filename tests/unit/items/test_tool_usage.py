"""The `tool_usage` of a response."""

from __future__ import annotations

from typing import Any

import pytest
from openai.types.responses.response import ToolUsage

from llama_stack_responses.core.types import Json
from llama_stack_responses.items.tool_usage import ImageUsage, image_usage, tool_usage


@pytest.mark.parametrize(
    ("reported", "usage"),
    [
        ({"input_tokens": 9, "output_tokens": 20}, ImageUsage(9, 0, 20, 20)),
        ({"input_tokens": 0, "output_tokens": 0}, ImageUsage()),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"image_tokens": 4, "text_tokens": 5},
                "output_tokens": 20,
                "output_tokens_details": {"image_tokens": 18, "text_tokens": 2},
            },
            ImageUsage(9, 4, 20, 18),
        ),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"image_tokens": 10},
                "output_tokens": 20,
                "output_tokens_details": {"image_tokens": "18"},
            },
            ImageUsage(9, 0, 20, 20),
        ),
        (
            {
                "input_tokens": 9,
                "input_tokens_details": {"text_tokens": 4},
                "output_tokens": 20,
                "output_tokens_details": {"text_tokens": 21},
            },
            ImageUsage(9, 5, 20, 20),
        ),
        (
            {"input_tokens": 9, "input_tokens_details": 4, "output_tokens": 20, "output_tokens_details": [18]},
            ImageUsage(9, 0, 20, 20),
        ),
    ],
)
def test_reported_tokens_are_read(reported: Any, usage: ImageUsage) -> None:
    assert image_usage(reported) == usage


@pytest.mark.parametrize(
    "reported",
    [
        None,
        [],
        "9",
        {},
        {"input_tokens": 9},
        {"input_tokens": 9, "output_tokens": None},
        {"input_tokens": True, "output_tokens": 1},
        {"input_tokens": 9.0, "output_tokens": 1},
        {"input_tokens": -1, "output_tokens": 1},
        {"input_tokens": 9, "output_tokens": 10**30},
    ],
)
def test_usage_without_valid_counts_is_unknown(reported: Any) -> None:
    assert image_usage(reported) is None


def test_usage_has_all_fields_and_counts_completed_searches() -> None:
    search: Json = {
        "type": "web_search_call",
        "status": "completed",
        "action": {"type": "search", "queries": ["a", "b"]},
    }
    output: list[Json] = [
        search,
        search | {"status": "failed"},
        search | {"action": {"type": "open_page", "url": "https://example.com"}},
        {"type": "web_search_call", "status": "completed"},
        {"type": "message", "status": "completed", "content": []},
        {"type": "compaction", "encrypted_content": ""},
        search,
    ]
    usage = tool_usage(output, ImageUsage(1, 0, 2, 2) + ImageUsage(10, 5, 30, 20))
    assert usage == {
        "image_gen": {
            "input_tokens": 11,
            "input_tokens_details": {"image_tokens": 5, "text_tokens": 6},
            "output_tokens": 32,
            "output_tokens_details": {"image_tokens": 22, "text_tokens": 10},
            "total_tokens": 43,
        },
        "web_search": {"num_requests": 2},
    }
    assert ToolUsage.model_validate(usage, strict=True).to_dict() == usage
