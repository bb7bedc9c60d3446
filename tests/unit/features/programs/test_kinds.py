"""The declaration of the tool, and what the page shows of programs and their outputs."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.core.errors import ApiError
from llama_stack_responses.features.programs.kinds import KINDS
from llama_stack_responses.items.view import CallView, OutputView
from llama_stack_responses.requests.request import parse_create

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


def test_views_have_code_and_output_of_program() -> None:
    called, ended = (kind.view for kind in KINDS.items)
    assert called == CallView("program", text="code", language="javascript", run_by="both")
    output = {"type": "program_output", "id": "progo_1", "call_id": "c", "result": "1", "status": "incomplete"}
    assert isinstance(ended, OutputView)
    assert (ended.value(output), ended.failed_status) == ("1", "incomplete")
