"""The response object, with every field of OpenAI's from the start."""

from __future__ import annotations

from typing import Any, Final

from ..echoed_tools import echoed
from ..mcp_approvals import Approval
from ..schema.request import CreateRequest
from . import events
from .events import Event

_BILLING: Final = {"payer": "developer"}
_TEXT: Final = {"format": {"type": "text"}, "verbosity": "medium"}
_REASONING: Final = {
    context: {"effort": None, "summary": None, "context": context} for context in ("current_turn", "all_turns")
}
"""Settings of reasoning, by what of it the model sees again. Like `_TEXT`, responses without their own share them."""

UNDECIDED: Final[dict[str, Any]] = {
    "completed_at": None,
    "incomplete_details": None,
    "error": None,
    "tool_usage": None,
}
"""The fields that a response gets when it ends, with their values before."""


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
        "background": request.background,
        "billing": _BILLING,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "input_transformations": None,
        **_echo(request, reasoning_context),
        "tools": [echoed(tool, mcp_approval) for tool in request.tools],
        "output": [],
        "prompt_cache_diagnostics": None,
        "tool_usage": None,
        "usage": None,
    }


def terminal_event(sequence_number: int, response: dict[str, Any]) -> Event:
    """Return the event that ends the stream of `response`; OpenAI's types have none for a cancelled one."""
    constructor = {"completed": events.completed, "failed": events.failed}.get(response["status"], events.incomplete)
    return constructor(sequence_number, response)


def _echo(request: CreateRequest, reasoning_context: str) -> dict[str, Any]:
    """Return the fields that echo the request, with defaults where the client gave no value."""
    return {
        "access_programs": request.access_programs or None,
        "conversation": {"id": request.conversation} if request.conversation else None,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "image": _image(request),
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "metadata": request.metadata,
        "model": request.model,
        "moderation": None,
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        "prompt": request.prompt,
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_options": _cache_options(request),
        "prompt_cache_retention": request.prompt_cache_retention,
        "reasoning": _reasoning(request, reasoning_context),
        "safety_identifier": request.safety_identifier,
        "service_tier": _service_tier(request),
        "store": request.store,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": _TEXT | request.text if request.text else _TEXT,
        "tool_choice": request.tool_choice or "auto",
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation,
        "user": request.user,
    }


def _reasoning(request: CreateRequest, context: str) -> dict[str, Any]:
    blank = _REASONING[context]
    return blank | request.reasoning | {"context": context} if request.reasoning else blank


def _image(request: CreateRequest) -> dict[str, Any] | None:
    """Return the policy in effect: `auto` is a request, not a policy."""
    image = request.image
    return image if image and image.get("context_compression") == "disabled" else None


def _cache_options(request: CreateRequest) -> dict[str, Any] | None:
    options = request.prompt_cache_options
    if options is None:
        return None
    echoed = {name: option for name, option in options.items() if name != "prewarm"}
    return {"mode": "implicit", "ttl": "30m", **echoed}


def _service_tier(request: CreateRequest) -> str:
    """Return the tier that serves the request until the model server reports another one."""
    tier = request.service_tier or "auto"
    return {"auto": "default", "fast": "priority"}.get(tier, tier)
