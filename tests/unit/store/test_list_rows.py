"""Rows of lists: the calls that are counted."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.store.content_names import canonical
from llama_stack_responses.store.list_rows import answered, row_of

type Json = dict[str, Any]

PROGRAM: Json = {"type": "program", "id": "prog_1", "call_id": "c1", "code": "", "fingerprint": "p1-1-x"}


def ended(status: str, call_id: str = "c1") -> Json:
    """Return the output of a program."""
    return {"type": "program_output", "id": "prgo_1", "call_id": call_id, "result": "", "status": status}


@pytest.mark.parametrize(
    ("output", "counted"),
    [
        ([PROGRAM], (1, 0)),
        ([PROGRAM, ended("completed")], (1, 0)),
        ([ended("completed")], (1, 0)),
        ([ended("incomplete")], (1, 1)),
        ([ended("incomplete", "c0"), PROGRAM, ended("completed")], (2, 1)),
    ],
)
def test_program_of_an_earlier_response_counts_where_it_ends(output: list[Json], counted: tuple[int, int]) -> None:
    response = {"status": "completed", "model": "m", "created_at": 1, "output": output}
    row = row_of(response, "", None)
    assert (row["tool_calls"], row["failed_tool_calls"]) == counted


def search(execution: str, call_id: str | None) -> list[Json]:
    """Return a search for tools, and its output if the server ran it."""
    call: Json = {
        "type": "tool_search_call",
        "id": "tsc_1",
        "call_id": call_id,
        "execution": execution,
        "arguments": {},
    }
    output: Json = {
        "type": "tool_search_output",
        "id": "tso_1",
        "call_id": call_id,
        "execution": execution,
        "tools": [],
    }
    return [call, output] if execution == "server" else [call]


@pytest.mark.parametrize(("output", "waits_for"), [(search("client", "c"), "client"), (search("server", None), None)])
def test_response_waits_for_search_that_the_client_runs(output: list[Json], waits_for: str | None) -> None:
    response = {"status": "completed", "model": "m", "created_at": 1, "output": output}
    assert row_of(response, "", None)["waits_for"] == waits_for


def test_response_waits_for_approvals_before_outputs() -> None:
    request: Json = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    call: Json = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    response = {"status": "completed", "model": "m", "created_at": 1, "output": [call, request]}
    row = row_of(response, "", None)
    assert (row["waits_for"], len(row["asks"])) == ("approval", 1)
    answers = [{"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}]
    without_type: Json = {"role": "user", "content": "Yes."}
    assert answered([without_type, request, *answers]) == row["asks"]
    assert answered([request | {"id": "mcpr_2"}, *answers]) == []


def test_name_of_an_approval_request_depends_on_its_id() -> None:
    request: Json = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "s",
        "name": "n",
        "arguments": "{}",
    }
    call: Json = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
    assert canonical(request) != canonical(request | {"id": "mcpr_2"})
    assert canonical(call) == canonical(call | {"id": "fc_2"})
