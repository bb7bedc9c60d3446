"""Items as the page shows them, within bounds, whatever they hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.types import Json
from llama_stack_responses.features.page.blocks import Budget
from llama_stack_responses.features.page.item_views import MAX_ITEMS, ViewContext, item_views
from llama_stack_responses.items.program_calls import mark_of
from llama_stack_responses.items.registry import ITEM_KINDS
from llama_stack_responses.items.view import CallView
from llama_stack_responses.stream.call_kinds import FORMS
from tests.support.one_pixel import ONE_PIXEL

from .kinds_of_page import kinds_of_page

ANY_JSON: Any = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)
FIELDS = (
    *(
        "action",
        "actions",
        "arguments",
        "approve",
        "caller",
        "code",
        "content",
        "error",
        "id",
        "input",
        "name",
        "operation",
    ),
    *("output", "outputs", "queries", "result", "results", "role", "server_label", "status", "summary", "tools"),
    "approval_request_id",
)


def view(item: Json, **options: Any) -> Json:
    [created] = item_views([item], ViewContext(Budget(), **options))
    return created


def parts(*content: Json, role: str = "user") -> list[Json]:
    blocks: list[Json] = view({"type": "message", "role": role, "content": list(content)})["blocks"]
    return blocks


@given(st.sampled_from([*ITEM_KINDS, "unknown"]), st.dictionaries(st.sampled_from(FIELDS), ANY_JSON))
def test_any_fields_make_an_item(kind: str, fields: Json) -> None:
    created = view({**fields, "type": kind})
    assert created["kind"]
    json.dumps(created)


@pytest.mark.parametrize(
    ("url", "shown_url", "link"),
    [
        (ONE_PIXEL, ONE_PIXEL, None),
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


@pytest.mark.parametrize("prefix", ["", "data:text/plain;base64,"])
def test_file_of_a_message_has_the_size_of_its_content(prefix: str) -> None:
    [file] = parts({"type": "input_file", "filename": "a.txt", "file_data": f"{prefix}SGVsbG8="})
    assert file["bytes"] == 5


def test_each_kind_has_a_view_of_its_own() -> None:
    assert [name for name, kind in ITEM_KINDS.items() if kind.view is None] == [
        *("configuration_update", "agent_reasoning", "context_compaction", "ghost_snapshot", "other")
    ]
    assert [name for name in FORMS if name.endswith("_call") and not isinstance(ITEM_KINDS[name].view, CallView)] == []


def test_citations_link_to_the_web_only() -> None:
    annotations = [{"type": "url_citation", "url": url, "title": "t"} for url in ("http://h", "javascript:1")]
    [block] = parts({"type": "output_text", "text": "x", "annotations": annotations}, role="assistant")
    assert [each["link"] for each in block["citations"]] == ["http://h", None]


def test_hosted_call_shows_arguments_result_and_failure() -> None:
    call = {
        "type": "mcp_call", "id": "mcp_1", "server_label": "shop", "name": "find", "status": "failed",
        "arguments": '{"q":"x"}', "output": '{"n":1}', "error": {"type": "http_error", "message": "Not there"},
    }  # fmt: skip
    created = view(call, durations={"mcp_1": 12.0})
    assert created["arguments"] == {"text": '{\n  "q": "x"\n}', "language": "json", "truncated": False}
    assert created["results"][0]["text"] == '{\n  "n": 1\n}'
    assert created["title"] == 'find {"q": "x"}'
    expected = (True, "Not there", "shop", "server", 12.0)
    assert (
        created["failed"],
        created["error"],
        created["server"],
        created["run_by"],
        created["duration_ms"],
    ) == expected


def test_program_shows_its_code_and_its_calls_are_marked() -> None:
    created = view({"type": "program", "id": "prog_1", "call_id": "c1", "code": "return 1;", "fingerprint": "p1-1-x"})
    assert created["arguments"] == {"text": "return 1;", "language": "javascript", "truncated": False}
    assert (created["kind"], created["title"], created["by_program"]) == ("tool", "program return 1;", False)
    caller = {"type": "program", "caller_id": "c1"}
    for of in ({"caller": caller}, {"id": f"ci_{mark_of('c1')}_{'0' * 24}"}):
        call = view({"type": "function_call", "name": "stock", "call_id": "c2", "arguments": "{}", **of})
        assert call["by_program"]


@pytest.mark.parametrize(("status", "failed"), [("completed", False), ("incomplete", True)])
def test_output_of_a_program_says_whether_it_failed(status: str, failed: bool) -> None:
    created = view({"type": "program_output", "call_id": "c1", "result": "18", "status": status})
    assert (created["kind"], created["call_id"], created["failed"]) == ("tool_output", "c1", failed)
    assert [block["text"] for block in created["results"]] == ["18"]


def test_failed_tool_of_an_mcp_server_shows_its_own_error() -> None:
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
    items = [{"type": "message", "role": "user", "content": "x" * 100_000}] * (MAX_ITEMS + 5)
    created = item_views(items, ViewContext(Budget()))
    assert len(created) == MAX_ITEMS
    assert len(json.dumps(created)) < 5_000_000


def test_commands_of_a_shell_are_apart_in_its_line() -> None:
    action = {"commands": ["ls -la", "cat notes.txt"]}
    assert view({"type": "shell_call", "action": action})["title"] == "shell ls -la; cat notes.txt"


PATCH = {"type": "update_file", "path": "a.txt", "diff": "+b"}
SEARCH = {"type": "tool_search_call", "execution": "client", "call_id": "c", "arguments": {"q": 1}}


@pytest.mark.parametrize(
    ("call", "title", "arguments"),
    [
        ({"type": "function_call", "name": "f", "arguments": '{"a":1}'}, 'f {"a": 1}', ('{\n  "a": 1\n}', "json")),
        ({"type": "custom_tool_call", "name": "t", "input": "free text"}, "t free text", ("free text", "text")),
        ({"type": "local_shell_call", "action": {"command": ["ls", "-l"]}}, "shell ls; -l", ("ls\n-l", "shell")),
        ({"type": "apply_patch_call", "operation": PATCH}, "apply_patch update_file a.txt", ("+b", "diff")),
        ({"type": "computer_call", "actions": []}, "computer {}", ("{}", "json")),
        (SEARCH, 'tool_search {"q": 1}', ('{\n  "q": 1\n}', "json")),
    ],
    ids=lambda value: value["type"] if isinstance(value, dict) else None,
)
def test_call_of_the_client_shows_what_the_model_wrote(call: Json, title: str, arguments: tuple[str, str]) -> None:
    created = view(call)
    assert (created["title"], created["run_by"]) == (title, "client")
    assert (created["arguments"]["text"], created["arguments"]["language"]) == arguments


def test_page_knows_who_runs_each_call() -> None:
    runs = {name: kind.get("run_by") for name, kind in kinds_of_page()["KINDS"].items()}
    assert (runs["function_call"], runs["mcp_call"], runs["web_search_call"]) == ("client", "server", "server")


def test_summary_that_does_not_open_is_shown_as_sealed() -> None:
    item = {"type": "compaction", "encrypted_content": "seal"}
    assert view(item) | {"title": ""} == {**head("compaction"), "title": "", "blocks": [], "sealed": True}
    [block] = view(item, summaries={"seal": "All of it."})["blocks"]
    assert (block["kind"], block["text"]) == ("markdown", "All of it.")
    assert view({"type": "compaction"})["sealed"] is False


@pytest.mark.parametrize(("approve", "answer"), [(True, "Approved"), (False, "Refused")])
def test_answer_to_an_approval_names_its_call(approve: bool, answer: str) -> None:
    item = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve}
    request = {"type": "mcp_approval_request", "name": "add", "server_label": "orders", "arguments": '{"a":1,"b":2}'}
    created = view(item, requests={"mcpr_1": request})
    assert created["title"] == f'{answer}: add {{"a": 1, "b": 2}}'
    assert (created["name"], created["server"], created["arguments"], created["approve"]) == (
        "add",
        "orders",
        None,
        approve,
    )
    assert view(item)["title"] == answer


def head(kind: str) -> Json:
    return {"type": kind, "id": None, "kind": kind, "status": None}


def test_call_shows_code_and_what_it_printed_and_drew() -> None:
    drawn = "data:image/png;base64,AA=="
    outputs = [{"type": "logs", "logs": "2"}, {"type": "image", "url": drawn}, {"type": "image", "url": 1}, "3", {}]
    call = {"type": "code_interpreter_call", "id": "ci_1", "code": "1 + 1", "outputs": outputs}
    created = view(call)
    assert (created["title"], created["run_by"]) == ("code_interpreter 1 + 1", "server")
    assert (created["arguments"]["text"], created["arguments"]["language"]) == ("1 + 1", "python")
    assert [(each["kind"], each.get("text"), each.get("url")) for each in created["results"]] == [
        ("code", "2", None),
        ("image", None, drawn),
        ("image", None, None),
        ("code", "", None),
    ]


def test_call_shows_queries_and_files_of_call() -> None:
    found = {"file_id": "file-1", "filename": "otters.txt", "score": 0.5, "text": "Otters sleep.", "attributes": {}}
    unnamed = {"file_id": "file-2", "filename": "", "score": 0.4, "text": "Fish swim.", "attributes": {}}
    call = {"type": "file_search_call", "id": "fs_1", "queries": ["otters", "fish"], "results": [found, unnamed]}
    created = view(call)
    assert (created["title"], created["run_by"]) == ("file_search otters", "server")
    assert created["arguments"]["text"].split() == ["[", '"otters",', '"fish"', "]"]
    link = {"kind": "link", "link": None}
    assert created["results"] == [
        {**link, "title": "otters.txt", "text": "Otters sleep.", "file_id": "file-1"},
        {**link, "title": "file-2", "text": "Fish swim.", "file_id": "file-2"},
    ]


def test_page_answers_items_that_a_text_or_an_approval_answers() -> None:
    kinds = kinds_of_page()["KINDS"]
    answers = {name: kind["answer"]["type"] for name, kind in kinds.items() if "answer" in kind}
    assert answers == {
        "function_call": "function_call_output",
        "custom_tool_call": "custom_tool_call_output",
        "local_shell_call": "local_shell_call_output",
        "mcp_approval_request": "mcp_approval_response",
    }
    assert kinds["mcp_approval_response"]["names"] == "approval_request_id"
