"""The response object, with every field of OpenAI's from the start."""

from __future__ import annotations

from typing import Any, Final

from ..items.mcp_approvals import Approval
from ..requests.declared_tools import echoed_tool
from ..requests.request import ECHOED, CreateRequest
from . import events
from .events import Event

_BILLING: Final = {"payer": "developer"}
_REASONING: Final = {
    context: {"effort": None, "summary": None, "context": context} for context in ("current_turn", "all_turns")
}
"""Settings of reasoning, by what of it the model sees again. Responses without their own share them."""

UNDECIDED: Final[dict[str, Any]] = {
    "completed_at": None,
    "incomplete_details": None,
    "error": None,
    "tool_usage": None,
}
"""The fields that a response gets when it ends, with their values before."""


def _echo(request: CreateRequest) -> dict[str, Any]:
    """Return the fields that echo the request, with defaults where the client gave no value."""
    return {name: echo(getattr(request, name)) for name, (echo, _) in ECHOED.items()}


UNSENT: Final = _echo(CreateRequest(model=""))
"""What a response repeats of the fields that a client did not send. Those stored by earlier versions, from 0.1.0 on,
get the fields that were added since with these values."""


def new_response(
    request: CreateRequest,
    *,
    id: str,  # noqa: A002 - the field's name
    created_at: float,
    reasoning_context: str = "current_turn",
    mcp_approval: Approval = "always",
) -> dict[str, Any]:
    """Return the initial response to `request`: in progress, without output.

    It has all keys of `openai.types.responses.Response`, and those that OpenAI's service sends in addition. What is
    unknown or not requested is null if OpenAI's type allows null, and OpenAI's default otherwise. Lists and objects
    that echo the request are the request's own, not copies.

    Args:
        id: the response's id, `resp_...`.
        created_at: Unix time in seconds.
        reasoning_context: which reasoning the model sees again, `current_turn` or `all_turns`.
        mcp_approval: `require_approval` of MCP servers for which the request does not set it.
    """
    return {
        "id": id,
        "object": "response",
        "created_at": created_at,
        "status": "in_progress",
        "billing": _BILLING,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "input_transformations": None,
        **_echo(request),
        "moderation": None,
        "reasoning": _reasoning(request, reasoning_context),
        "tools": [echoed_tool(tool, mcp_approval) for tool in request.tools],
        "output": [],
        "prompt_cache_diagnostics": None,
        "tool_usage": None,
        "usage": None,
    }


def terminal_event(sequence_number: int, response: dict[str, Any]) -> Event:
    """Return the event that ends the stream of `response`; OpenAI's types have none for a cancelled one."""
    constructor = {"completed": events.completed, "failed": events.failed}.get(response["status"], events.incomplete)
    return constructor(sequence_number, response)


def _reasoning(request: CreateRequest, context: str) -> dict[str, Any]:
    blank = _REASONING[context]
    return blank | request.reasoning | {"context": context} if request.reasoning else blank
