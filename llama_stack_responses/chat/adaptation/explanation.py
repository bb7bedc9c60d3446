"""The error for a refusal against which no change of the request helps, in OpenAI's terms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from ...core.errors import ApiError
from ...core.late_patterns import LatePattern
from ...core.types import Json
from .enforced import names_format
from .parameters import LIMITS, STRICT, names_effort
from .refusal import Refusal, RefusedError

_FIELDS: Final = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "verbosity": "text.verbosity",
}
"""Responses API names of the chat request fields that differ in name or place."""

_NEVER: Final = frozenset({"model", "messages", "stream"})
_TOOL: Final = LatePattern(r"\btools(?:\[|\.|/)(\d{1,4})\b")
_NO_TOOLS: Final = LatePattern(
    r"(?:not|n't) support (?:tools?|functions?)\b|\bsupport tool use\b|\btool.?call.?parser\b", re.IGNORECASE
)
"""Words that say that a model takes no tools: OpenRouter's with status 404, vLLM's without its options for tools."""
_NO_ENDPOINTS: Final = LatePattern(r"\bno endpoints found that\b", re.IGNORECASE)
"""Words of OpenRouter, with status 404, that say that the model is there but not with what the request has."""
_OPTION: Final = LatePattern(r"(?<![\w-])--[a-z][a-z-]{1,40}")
"""An option of a server's command line (llama.cpp's `--jinja`, vLLM's `--enable-auto-tool-choice`)."""
_START: Final = " Start the model server with this option."
_ADVICE: Final = " A profile with 'parameters' can change what this model server gets: docs/guides/model-servers.md."


def explained(error: RefusedError, chat: Json) -> ApiError:
    """Return the error for the client: a 400 with the server's words, and the field at fault, if it is the request's.

    Args:
        error: the error so far.
        chat: the request that was refused.
    """
    refusal = error.refusal
    param = next(_fields(refusal, chat), None)
    if param is None and _NO_ENDPOINTS.search(refusal.words):
        return _with(error, f"{refusal.shown}{_ADVICE}", None)
    if error.status >= 500 and not (refusal.of_request or refusal.is_placed or (param and refusal.says_unsupported)):
        return error
    if param is None and error.status < 500 and (error.param or not refusal.is_placed):
        return error
    if param is None:
        said = error.message if error.status < 500 else f"{refusal.shown}{_advice(refusal)}"
        return _with(error, said, _field(refusal.places[0]) if refusal.is_placed else None)
    return _with(error, f"{refusal.shown}{_advice(refusal)}", param)


def _advice(refusal: Refusal) -> str:
    """Return what helps against a refusal, as a sentence behind its words; empty if nothing is known."""
    if _OPTION.search(refusal.words):
        return _START
    return _ADVICE if refusal.says_unsupported else ""


def _with(error: RefusedError, message: str, param: str | None) -> ApiError:
    return ApiError(400, message, code=None if error.code == "model_not_found" else error.code, param=param)


def _fields(refusal: Refusal, chat: Json) -> Iterator[str]:
    """Yield the Responses API names of the fields that a refusal names."""
    if any(refusal.names(path) for path in STRICT[:1]) and "tools" in chat:
        tool = _TOOL.search(refusal.words)
        yield f"tools[{tool[1] if tool else _first_strict(chat)}].strict"
    if chat.get("response_format") and names_format(refusal):
        yield "text.format"
    if chat.get("reasoning_effort") and names_effort(refusal, chat["reasoning_effort"]):
        yield "reasoning.effort"
    if "tool_choice" in chat and refusal.names("tool_choice", "tool choice"):
        yield "tool_choice"
    for name in chat:
        if name not in _NEVER and _names(refusal, name):
            yield _FIELDS.get(name, name)
    if chat.get("tools") and _NO_TOOLS.search(refusal.words):
        yield "tools"


def _names(refusal: Refusal, name: str) -> bool:
    if name in LIMITS:
        return any(refusal.names(each, "max tokens", "maximum output") for each in LIMITS)
    return refusal.names(name)


def _first_strict(chat: Json) -> int:
    strict = ("strict" in tool.get(tool.get("type"), {}) for tool in chat["tools"])
    return next((number for number, each in enumerate(strict) if each), 0)


def _field(place: str) -> str | None:
    """Return the Responses API name of a place. Nested ones are dropped, since the structures differ."""
    name = place.partition(".")[0]
    return _FIELDS.get(name, name) or None
