"""MCP servers in requests and conversations: names, what is shown and stored of them, approvals."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.items.kinds.mcp import qualified_name
from llama_stack_responses.items.mcp_approvals import Approvals, check_approvals
from llama_stack_responses.requests.declared_tools import echoed_tool
from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.requests.tool_secrets import holds_secrets, join_secrets, split_secrets

Json = dict[str, Any]

SERVER: Final[Json] = {"type": "mcp", "server_label": "s", "server_url": "https://example.com/mcp"}
OPENING: Final = (
    "/s/sk-ak-0123456789/mcp",
    "/mcp/9f4e2c1a-7b1d-4a7e-9c3f-d2b8a6e5f001",
    "/AbCdEfGhIj/sse",
    "/abcdefghijklmnopqrstuvwxyz/mcp",
    "/v123456789/mcp",
    "/%73ecret/mcp",
    "/mcp;key=a",
)
"""Paths that contain a secret."""

REQUEST: Final[Json] = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "s",
    "name": "add",
    "arguments": "{}",
}
USER: Final[Json] = {"type": "message", "role": "user", "content": []}
SAID: Final[Json] = {"type": "message", "role": "assistant", "content": []}


def answer(approve: bool = True, **more: Any) -> Json:
    return {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": approve, **more}


def mcp_call(status: str = "completed") -> Json:
    return {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1", "status": status}


def declared(*tools: Json) -> list[Json]:
    return parse_create({"model": "m", "input": "hi", "tools": list(tools)}).tools


# Names

LABELS = st.from_regex("[a-zA-Z][a-zA-Z0-9_-]{0,80}", fullmatch=True)
NAMES = st.text(min_size=1, max_size=80) | st.sampled_from(["b", "b__c", "_b", "c"])


def test_plain_tool_name_is_readable() -> None:
    assert qualified_name("deepwiki", "ask_question") == "deepwiki__ask_question"


@given(LABELS | st.sampled_from(["a", "a__b", "a_"]), NAMES, LABELS | st.sampled_from(["a", "a__b", "a_"]), NAMES)
def test_qualified_names_are_valid_and_unique(label: str, name: str, label_2: str, name_2: str) -> None:
    one, other = qualified_name(label, name), qualified_name(label_2, name_2)
    assert re.fullmatch("[a-zA-Z0-9_-]{1,64}", one)
    assert (one == other) == ((label, name) == (label_2, name_2))


# Tools


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"server_label": ""}, ".server_label", "empty_string"),
        ({"server_label": "1s"}, ".server_label", "invalid_value"),
        ({"server_url": None}, "", "invalid_value"),
        ({"connector_id": "connector_gmail"}, "", "invalid_value"),
        ({"tunnel_id": "t", "server_url": None}, ".tunnel_id", "unsupported_value"),
        ({"server_url": "ftp://example.com"}, ".server_url", "invalid_value"),
        ({"server_url": "https://"}, ".server_url", "invalid_value"),
        ({"server_url": "https://[canary"}, ".server_url", "invalid_value"),
        ({"server_url": "https://example.com:canary/"}, ".server_url", "invalid_value"),
        ({"server_url": "https://me:canary@example.com/"}, ".server_url", "invalid_value"),
        ({"server_url": "https://example.com/can ary"}, ".server_url", "invalid_value"),
        ({"authorization": "canary\r\nx: y"}, ".authorization", "invalid_value"),
        ({"headers": {"x": "canary\r\ny: z"}}, ".headers.x", "invalid_value"),
        ({"headers": {"x y": "z"}}, ".headers", "invalid_value"),
        ({"headers": {"Host": "z"}}, ".headers", "invalid_value"),
        ({"headers": {"x": 1}}, ".headers.x", "invalid_type"),
        ({"headers": {"Authorization": "a"}, "authorization": "b"}, ".authorization", "mutually_exclusive_parameters"),
        ({"allowed_tools": "add"}, ".allowed_tools", "invalid_type"),
        ({"allowed_tools": [1]}, ".allowed_tools[0]", "invalid_type"),
        ({"allowed_tools": {"read_only": "yes"}}, ".allowed_tools.read_only", "invalid_type"),
        ({"require_approval": "sometimes"}, ".require_approval", "invalid_value"),
        ({"require_approval": {"never": ["add"]}}, ".require_approval.never", "invalid_type"),
    ],
)
def test_invalid_server_is_refused_without_repeating_secrets(members: Json, param: str, code: str) -> None:
    with pytest.raises(ApiError) as caught:
        declared({**SERVER, **members})
    assert (caught.value.param, caught.value.code) == (f"tools[0]{param}", code)
    assert "canary" not in caught.value.message


def test_duplicate_server_label_is_refused() -> None:
    with pytest.raises(ApiError, match="another tool has the label 's' already"):
        declared(SERVER, SERVER)


def test_echoed_server_hides_secrets() -> None:
    secret = {**SERVER, "authorization": "canary", "headers": {"x": "canary"}, "require_approval": "never"}
    [tool] = declared({**secret, "server_url": "https://example.com:8443/canary?key=canary"})
    assert echoed_tool(tool) == {
        "type": "mcp",
        "server_label": "s",
        "server_url": "https://example.com:8443/<redacted>",
        "headers": None,
        "allowed_tools": None,
        "require_approval": "never",
    }
    assert echoed_tool(SERVER | {"server_url": "https://example.com/"})["server_url"] == "https://example.com"


def test_secrets_are_split_off_and_restored() -> None:
    tools = [{"type": "function", "name": "f"}, {**SERVER, "authorization": "canary", "allowed_tools": ["a"]}]
    left, secrets = split_secrets(tools)
    assert "canary" not in str(left)
    assert "example" not in str(left)
    assert join_secrets(left, secrets) == tools


@pytest.mark.parametrize(
    ("members", "holds"),
    [
        ({}, False),
        ({"authorization": "a"}, True),
        ({"headers": {"x": "a"}}, True),
        ({"headers": None}, False),
        ({"server_url": "https://example.com/mcp?key=a"}, True),
        *[({"server_url": f"https://example.com{path}"}, False) for path in ("", "/", "/api/v1/mcp/", "/a-b/sse")],
        *[({"server_url": f"https://example.com{path}"}, True) for path in OPENING],
        ({"server_url": None, "connector_id": "c"}, False),
    ],
)
def test_secrets_of_server_are_detected(members: Json, holds: bool) -> None:
    assert holds_secrets({**SERVER, **members}) == holds


def test_secrets_in_additional_tools_item_are_refused() -> None:
    item = {"type": "additional_tools", "role": "developer", "tools": [{**SERVER, "authorization": "canary"}]}
    with pytest.raises(ApiError, match="Send it in the 'tools' of the request") as caught:
        parse_create({"model": "m", "input": [item]})
    assert caught.value.param == "input[0].tools[0]"
    assert "canary" not in caught.value.message


# Approvals


def test_approved_call_is_due() -> None:
    approvals = Approvals([USER, REQUEST, answer()])
    assert (approvals.to_make(), approvals.refusal(REQUEST)) == ([REQUEST], None)


@pytest.mark.parametrize("status", ["completed", "incomplete"])
def test_finished_call_is_not_due_again(status: str) -> None:
    approvals = Approvals([USER, REQUEST, answer(), mcp_call(status)])
    assert (approvals.to_make(), approvals.refusal(REQUEST)) == ([], None)


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ([], "The user has not approved or refused"),
        ([answer(False)], "The user did not approve this call, so it was not made."),
        ([answer(False, reason="Too late.")], "The reason given: Too late."),
        ([answer(), SAID], "was interrupted"),
    ],
)
def test_model_gets_reason_why_call_did_not_run(behind: list[Json], expected: str) -> None:
    approvals = Approvals([USER, REQUEST, *behind])
    assert approvals.to_make() == []
    assert expected in (approvals.refusal(REQUEST) or "")


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([answer()], "No approval request found with id 'mcpr_1'"),
        ([answer(), REQUEST], "No approval request found with id 'mcpr_1'"),
        ([REQUEST, answer(), SAID, answer()], "has been answered already"),
    ],
)
def test_approval_without_open_request_is_refused(items: list[Json], message: str) -> None:
    with pytest.raises(ApiError, match=message):
        check_approvals(items, [SERVER])


def test_approved_call_requires_its_server() -> None:
    check_approvals([REQUEST, answer()], [SERVER])
    check_approvals([REQUEST, answer(False)], [])
    with pytest.raises(ApiError, match="MCP server 's' was approved, but the request does not declare that server"):
        check_approvals([REQUEST, answer()], [])
