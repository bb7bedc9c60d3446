"""Items as the page shows them, within bounds, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.types import Json
from llama_stack_responses.ui.blocks import Budget
from llama_stack_responses.ui.items import _KINDS, MOST_ITEMS, Reading, shown

PICTURE = "data:image/png;base64,iVBORw0KGgo="
ANY_JSON: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = (
    *("action", "actions", "arguments", "approve", "code", "content", "error", "id", "input", "name", "operation"),
    *("output", "outputs", "queries", "results", "role", "server_label", "status", "summary", "tools"),
)


def view(item: Json, **options: Any) -> Json:
    [made] = shown([item], Reading(Budget(), **options))
    return made


def parts(*content: Json, role: str = "user") -> list[Json]:
    blocks: list[Json] = view({"type": "message", "role": role, "content": list(content)})["blocks"]
    return blocks


@given(st.sampled_from([*_KINDS, "unknown"]), st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
def test_any_fields_make_an_item(kind: str, fields: Json) -> None:
    made = view({**fields, "type": kind})
    assert made["kind"]
    json.dumps(made)


@pytest.mark.parametrize(
    ("url", "shown_url", "link"),
    [
        (PICTURE, PICTURE, None),
        ("https://h/x.png", None, "https://h/x.png"),
        ("data:image/svg+xml;base64,AAAA", None, None),
        ("data:text/html,<script>", None, None),
        ("javascript:alert(1)", None, None),
        ("data:image/png;base64," + "A" * 2**20, None, None),
    ],
)
def test_only_small_pictures_are_shown(url: str, shown_url: str | None, link: str | None) -> None:
    [image] = parts({"type": "input_image", "image_url": url})
    assert (image["url"], image["link"]) == (shown_url, link)


def test_citations_link_to_the_web_only() -> None:
    annotations = [{"type": "url_citation", "url": url, "title": "t"} for url in ("http://h", "javascript:1")]
    [block] = parts({"type": "output_text", "text": "x", "annotations": annotations}, role="assistant")
    assert [each["link"] for each in block["citations"]] == ["http://h", None]


def test_hosted_call_shows_arguments_result_and_failure() -> None:
    call = {
        "type": "mcp_call", "id": "mcp_1", "server_label": "shop", "name": "find", "status": "failed",
        "arguments": '{"q":"x"}', "output": '{"n":1}', "error": {"type": "http_error", "message": "Not there"},
    }  # fmt: skip
    made = view(call, durations={"mcp_1": 12.0})
    assert made["arguments"] == {"text": '{\n  "q": "x"\n}', "language": "json", "truncated": False}
    assert made["results"][0]["text"] == '{\n  "n": 1\n}'
    assert made["title"] == 'find {"q": "x"}'
    expected = (True, "Not there", "shop", "server", 12.0)
    assert (made["failed"], made["error"], made["server"], made["run_by"], made["duration_ms"]) == expected


def test_failed_tool_of_an_mcp_server_says_its_own_words() -> None:
    content = [
        {"type": "text", "text": "No such city"},
        {"type": "image", "data": "x"},
        {"type": "text", "text": "Try Oslo"},
    ]
    failure = {"type": "mcp_tool_execution_error", "content": content}
    assert view({"type": "mcp_call", "name": "find", "error": failure})["error"] == "No such city\nTry Oslo"
    assert (
        "mcp_tool_execution_error"
        in view({"type": "mcp_call", "name": "find", "error": failure | {"content": None}})["error"]
    )


def test_structured_output_is_json() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": '{"a":1}'}]}
    assert view(item, structured=True)["blocks"][0] == {
        "kind": "json", "text": '{\n  "a": 1\n}', "language": "json", "truncated": False
    }  # fmt: skip
    assert view(item)["blocks"][0]["kind"] == "markdown"


def test_view_is_bounded() -> None:
    items = [{"type": "message", "role": "user", "content": "x" * 100_000}] * (MOST_ITEMS + 5)
    made = shown(items, Reading(Budget()))
    assert len(made) == MOST_ITEMS
    assert len(json.dumps(made)) < 5_000_000
