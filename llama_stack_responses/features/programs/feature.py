"""Programs of models, on a system that can confine them."""

from __future__ import annotations

from importlib.util import find_spec

from ...core.types import Json
from ...feature import Feature, Stack
from ...logs import get_logger
from ...requests.request import CreateRequest
from ...tools.registry import HostedTool
from ...tools.tool import Tool
from .confinement import unconfinable

logger = get_logger(__name__)


def open_feature(stack: Stack) -> Feature:
    """Return the tool, if this system can run programs."""
    if why := unavailable():
        logger.info("programs that call tools are not available: %s", why)
        return Feature()

    def make(_: Json, __: CreateRequest) -> Tool:
        from .runtime import ProgramRuntime
        from .tool import ProgramTool

        return ProgramTool(ProgramRuntime(stack.pool))

    return Feature(tools={"programmatic_tool_calling": HostedTool(make)})


def unavailable() -> str | None:
    """Return why this system cannot run programs; None if it can."""
    return unconfinable() or (None if find_spec("_quickjs") else "the package quickjs-ng is not installed")
