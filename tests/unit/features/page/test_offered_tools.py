"""The tools that the playground offers."""

import pytest

from llama_stack_responses.core.types import Json
from llama_stack_responses.items.registry import TOOL_TYPES
from llama_stack_responses.requests.request import parse_create

from .kinds_of_page import kinds_of_page


@pytest.mark.parametrize("tool", kinds_of_page()["TOOLS"], ids=lambda tool: tool["type"])
def test_request_with_an_offered_tool_is_accepted(tool: Json) -> None:
    ids = {tool["ids"]: ["vs_1"]} if tool["ids"] else {}
    declared = {"type": tool["type"], **tool["declaration"], **ids}
    request = parse_create({"model": "local/echo", "input": "Hi", "tools": [declared]})
    assert request.tools[0]["type"] == tool["type"]


def test_only_a_tool_whose_feature_says_so_is_offered() -> None:
    assert {tool["type"] for tool in kinds_of_page()["TOOLS"]} == TOOL_TYPES.keys() - {"shell"}
