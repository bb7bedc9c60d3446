"""Which hosted tools a stack can run."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.requests.request import parse_create
from llama_stack_responses.requests.unavailable_tools import UnavailableTool
from llama_stack_responses.tools.client.function import FunctionTool
from llama_stack_responses.tools.registry import HostedTool, HostedToolServices, available_tools, tool_makers


async def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("services", "available"),
    [
        ({}, {}),
        ({"of_features": {"web_search": HostedTool(FunctionTool, available=never)}}, {}),
        (
            {"of_features": {"image_generation": HostedTool(FunctionTool, details="Small.")}},
            {"image_generation": "Small."},
        ),
        ({"mcp": object()}, {"mcp": ""}),
    ],
)
async def test_tools_with_their_services_are_available_with_details(services: Any, available: dict[str, str]) -> None:
    stack = HostedToolServices(**services)
    assert await available_tools(stack) == available


def test_shell_in_a_container_is_refused_without_a_tool_that_runs_it() -> None:
    make = tool_makers(HostedToolServices())["shell"]
    request = parse_create({"model": "m", "input": "hi"})
    assert make({"type": "shell", "environment": {"type": "local"}}, request).functions()
    with pytest.raises(UnavailableTool, match="no provider for tools of the type 'shell'"):
        make({"type": "shell", "environment": {"type": "container_auto"}}, request)
