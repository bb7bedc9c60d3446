"""Programs of models, on a system that can confine them."""

from __future__ import annotations

from ...core.types import Json
from ...feature import Feature, Stack
from ...logs import get_logger
from ...requests.request import CreateRequest
from ...tools.registry import HostedTool
from ...tools.tool import Tool
from .runtime import ProgramRuntime
from .tool import ProgramTool

logger = get_logger(__name__)


def open_feature(stack: Stack) -> Feature:
    """Return the tool, if this system can run programs."""
    runtime = ProgramRuntime(stack.pool)
    if runtime.unavailable is not None:
        logger.info("programs that call tools are not available: %s", runtime.unavailable)
        return Feature()

    def make(_: Json, __: CreateRequest) -> Tool:
        return ProgramTool(runtime)

    return Feature(tools={"programmatic_tool_calling": HostedTool(make)})
