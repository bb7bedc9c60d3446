"""The declaration of the tool, and how the page shows programs and their outputs."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.core.schema.request import parse_create
from llama_stack_responses.features.page.blocks import Budget
from llama_stack_responses.features.page.items import ViewContext, item_views

Json = dict[str, Any]

PROGRAMS: Final[Json] = {"type": "programmatic_tool_calling"}
FUNCTION: Final[Json] = {"type": "function", "name": "f", "parameters": None, "strict": None}


def request(*tools: Json, choice: Any = None) -> Any:
    return parse_create({"model": "m", "input": "hi", "tools": list(tools), "tool_choice": choice})


def test_second_tool_for_programs_is_refused() -> None:
    assert request(PROGRAMS, FUNCTION).tools == [PROGRAMS, FUNCTION]
    with pytest.raises(ApiError) as raised:
        request(PROGRAMS, FUNCTION, PROGRAMS)
    assert raised.value.message == "A response can have one tool of the type 'programmatic_tool_calling'."
    assert raised.value.param == "tools[2].type"


def test_programs_can_be_chosen_and_allowed() -> None:
    assert request(PROGRAMS, choice=PROGRAMS).tool_choice == PROGRAMS
    allowed = {"type": "allowed_tools", "mode": "auto", "tools": [PROGRAMS]}
    assert request(PROGRAMS, choice=allowed).tool_choice == allowed


@pytest.mark.parametrize(("status", "failed"), [("completed", False), ("incomplete", True)])
def test_page_shows_code_and_output_of_program(status: str, failed: bool) -> None:
    program = {"type": "program", "id": "prog_1", "call_id": "c", "code": "return 1", "fingerprint": "p1-0-a"}
    output = {"type": "program_output", "id": "progo_1", "call_id": "c", "result": "1", "status": status}
    [call, ended] = item_views([program, output], ViewContext(Budget()))
    assert (call["kind"], call["title"], call["run_by"]) == ("tool", "program return 1", "server")
    assert call["arguments"] == {"text": "return 1", "language": "javascript", "truncated": False}
    assert (ended["kind"], ended["call_id"], ended["failed"]) == ("tool_output", "c", failed)
    assert [each["text"] for each in ended["results"]] == ["1"]
