"""Which hosted tools a stack can run."""

from __future__ import annotations

from typing import Any

import pytest

from llama_stack_responses.core.owner import ANONYMOUS
from llama_stack_responses.tools.client.function import FunctionTool
from llama_stack_responses.tools.registry import HostedTool, HostedToolServices, available_tools
from tests.unit.tools.tools_harness import no_file, no_skill


async def never() -> bool:
    return False


@pytest.mark.parametrize(
    ("services", "available"),
    [
        ({}, []),
        ({"of_features": {"web_search": HostedTool(FunctionTool, available=never)}}, []),
        ({"containers": object()}, ["code_interpreter", "shell"]),
        ({"of_features": {"image_generation": HostedTool(FunctionTool)}}, ["image_generation"]),
        ({"mcp": object()}, ["mcp"]),
    ],
)
async def test_tools_with_their_services_are_available(services: Any, available: list[str]) -> None:
    stack = HostedToolServices(current_user=lambda: ANONYMOUS, uploaded=no_file, find_skill=no_skill, **services)
    assert await available_tools(stack) == available
