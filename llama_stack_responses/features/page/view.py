"""The view of one response: its items as people read them, its facts, and its timing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ...core.json_values import is_large
from ...core.owner import Owner
from ...core.types import Json
from ...generation.timeline import round_fields
from ...items.view import objects
from ...store.list_rows import Row, answered, failed_calls, first_words, row_of
from ...store.loaded_response import StoredResponse
from . import blocks
from .blocks import Budget
from .item_views import MAX_ITEMS, ViewContext, item_views

_LARGE_BYTES: Final = 20_000
"""Bytes of a setting, as JSON, from which it is left out."""

_MAX_TOOLS: Final = 200
_INSTRUCTIONS_CHARACTERS: Final = 200_000

_NAMED: Final = ("background", "completed_at", "conversation", "created_at", "error", "id", "incomplete_details")
_SHOWN: Final = ("instructions", "metadata", "model", "object", "output", "previous_response_id", "service_tier")
_USED: Final = ("prompt_cache_diagnostics", "tool_usage", "usage")
_NOT_SETTINGS: Final = frozenset({*_NAMED, *_SHOWN, *_USED, "status", "tools"})
"""Fields of a response that are not settings, or that a view shows in their own place."""


def summary_of(stored: StoredResponse, inputs: Sequence[Json]) -> Row:
    """Return a response's row of the list."""
    row = row_of(stored.response, first_words(inputs), stored.timing, answered(inputs))
    return {"id": stored.response["id"], **row, "version": stored.version}


def items_of(stored: StoredResponse, inputs: Sequence[Json], context: ViewContext) -> Json:
    """Return a response's own input and its output as a page shows them, and how many items are left out.

    Args:
        stored: the response.
        inputs: its own input.
        context: what the views share; the rest of it is filled in for this response.
    """
    response = stored.response
    form = ((response.get("text") or {}).get("format") or {}).get("type", "text")
    durations = {tool[2]: tool[1] - tool[0] for tool in (stored.timing or {}).get("tools", ()) if tool[1] is not None}
    input_views = item_views(inputs, context)
    failed = frozenset(str(item.get("id")) for item in failed_calls(response["output"], stored.timing))
    own = replace(context, structured=form != "text", durations=durations, failed=failed)
    output_views = item_views(response["output"], own)
    left_out = max(0, len(inputs) - MAX_ITEMS) + max(0, len(response["output"]) - MAX_ITEMS)
    return {"items": [*input_views, *output_views], "output_from": len(input_views), "items_left_out": left_out}


def facts_of(response: Json) -> Json:
    """Return the known properties of a response, without its items."""
    incomplete, conversation = response.get("incomplete_details"), response.get("conversation")
    fields = ("status", "model", "created_at", "completed_at", "background", "service_tier", "error")
    return {
        **{name: response.get(name) for name in fields},
        "incomplete_reason": incomplete.get("reason") if incomplete else None,
        "usage": _usage(response.get("usage")),
        "tool_usage": _tool_usage(response.get("tool_usage")),
        "prompt_cache_diagnostics": response.get("prompt_cache_diagnostics"),
        "settings": {name: _setting(value) for name, value in response.items() if name not in _NOT_SETTINGS},
        "tools": [_tool(tool) for tool in objects(response.get("tools"))][:_MAX_TOOLS],
        "metadata": response.get("metadata") or {},
        "conversation": conversation["id"] if conversation else None,
        "previous_response_id": response.get("previous_response_id"),
    }


def instructions_of(response: Json, budget: Budget) -> Json | None:
    """Return the response's instructions as text; None if there are none."""
    instructions = response.get("instructions")
    if not instructions:
        return None
    text = instructions if isinstance(instructions, str) else blocks.indented(instructions)
    beginning, cut = budget.cut(text, _INSTRUCTIONS_CHARACTERS)
    return {"text": beginning, "truncated": cut}


def timing_of(timing: Mapping[str, Any] | None) -> Json | None:
    """Return the recorded times of a response; None if there are none."""
    if timing is None:
        return None
    rounds = [_round(each) for each in timing.get("rounds", ())]
    names = ("start_ms", "end_ms", "item_id", "type", "name", "failed")
    return {
        "total_ms": timing.get("total_ms"),
        "queue_ms": timing.get("queue_ms"),
        "tries": timing.get("tries", 1),
        "rounds": rounds,
        "tools": [dict(zip(names, each, strict=False)) for each in timing.get("tools", ())],
        "adaptations": list(timing.get("adaptations", ())),
        "truncated": bool(timing.get("truncated")),
        "omitted_tools": [blocks.short(each) for each in timing.get("omitted_tools", ())],
    }


def owner_of(owner: Owner) -> Json:
    """Return an owner's name and tenant."""
    return {"name": owner.principal, "tenant": owner.tenant}


def _round(recorded: Sequence[Any]) -> Json:
    fields = round_fields(recorded)
    first, end, tokens = fields["first_token_ms"], fields["end_ms"], fields["output_tokens"]
    writes = None if first is None or end is None else (end - first) / 1000
    fields["tokens_per_second"] = round(tokens / writes, 1) if tokens and writes and writes > 0 else None
    return fields


def _usage(usage: Mapping[str, Any] | None) -> Json | None:
    if not usage:
        return None
    inputs, outputs = usage.get("input_tokens_details") or {}, usage.get("output_tokens_details") or {}
    return {
        "input_tokens": usage["input_tokens"],
        "cached_tokens": inputs.get("cached_tokens", 0),
        "output_tokens": usage["output_tokens"],
        "reasoning_tokens": outputs.get("reasoning_tokens", 0),
        "total_tokens": usage["total_tokens"],
    }


def _tool_usage(usage: Mapping[str, Any] | None) -> Json | None:
    """Return the tokens of images and the number of searches; None if they are unknown."""
    if not usage:
        return None
    return {"image_tokens": usage["image_gen"]["total_tokens"], "searches": usage["web_search"]["num_requests"]}


def _setting(value: Any) -> Any:
    return {"truncated": True} if is_large(value, _LARGE_BYTES) else value


def _tool(tool: Mapping[str, Any]) -> Json:
    names = ("type", "name", "description", "server_label", "server_url")
    return {name: blocks.short(tool[name]) for name in names if isinstance(tool.get(name), str)}
