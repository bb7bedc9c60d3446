"""The chat request of one model round."""

from __future__ import annotations

from typing import Final

from ..core.types import Json
from ..items.kinds.custom_tool_call import CUSTOM_INPUT
from ..requests.request import FORWARDED, CreateRequest
from .profile import Profile

_CACHE: Final = ("mode", "ttl")
"""The members of `prompt_cache_options` that a chat request has too."""


def chat_request(
    request: CreateRequest,
    profile: Profile,
    messages: list[Json],
    offer: tuple[list[Json], str | None],
    max_tokens: int | None,
) -> Json:
    """Return the chat request, streamed as the profile requires, always with usage.

    Args:
        request: the client's request.
        profile: the properties of the model.
        messages: the whole conversation so far.
        offer: the functions that the model may see, and the `tool_choice` mode.
        max_tokens: what is left of the response's limit on output tokens, or None.
    """
    chat: Json = {
        "model": request.model,
        "messages": messages,
        **profile.streaming(client_streams=request.stream or request.background),
        **request.passthrough,
    }
    chat |= {name: value for name in FORWARDED if (value := getattr(request, name)) is not None}
    options = request.prompt_cache_options or {}
    if cache := {name: option for name, option in options.items() if name in _CACHE}:
        chat["prompt_cache_options"] = cache
    if max_tokens is not None:
        chat[profile.max_tokens_field] = max_tokens
    if request.reasoning and request.reasoning.get("effort"):
        chat["reasoning_effort"] = request.reasoning["effort"]
    tools, choice = offer
    _add_tools(chat, request, [_chat_tool(tool, profile) for tool in tools], choice)
    _add_text(chat, request)
    _add_logprobs(chat, request)
    return chat


def _add_tools(chat: Json, request: CreateRequest, tools: list[Json], choice: str | None) -> None:
    if not tools:
        return
    chat["tools"] = tools
    if choice is not None:
        chat["tool_choice"] = choice
    if request.parallel_tool_calls is not None:
        chat["parallel_tool_calls"] = request.parallel_tool_calls


def _chat_tool(tool: Json, profile: Profile) -> Json:
    if tool["type"] != "custom" or profile.custom_tools == "custom":
        return tool
    custom = tool["custom"]
    text: Json = {"type": "string", "description": "The whole input of the tool, as plain text."}
    parameters = {
        "type": "object",
        "properties": {CUSTOM_INPUT: text},
        "required": [CUSTOM_INPUT],
        "additionalProperties": False,
    }
    description = "\n\n".join(filter(None, [custom.get("description"), _grammar(custom.get("format"))]))
    function = {"name": custom["name"], "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def _grammar(form: Json | None) -> str:
    if form is None:
        return ""
    grammar = form["grammar"]
    what = "Lark grammar" if grammar["syntax"] == "lark" else "regular expression"
    return f"'{CUSTOM_INPUT}' must match this {what}:\n{grammar['definition']}"


def _add_text(chat: Json, request: CreateRequest) -> None:
    text = request.text or {}
    if verbosity := text.get("verbosity"):
        chat["verbosity"] = verbosity
    form = text.get("format") or {"type": "text"}
    if form["type"] == "json_object":
        chat["response_format"] = {"type": "json_object"}
    elif form["type"] == "json_schema":
        names = ("name", "description", "schema", "strict")
        schema = {name: form[name] for name in names if form.get(name) is not None}
        chat["response_format"] = {"type": "json_schema", "json_schema": schema}


def _add_logprobs(chat: Json, request: CreateRequest) -> None:
    if request.wants_logprobs:
        chat["logprobs"] = True
        if request.top_logprobs:
            chat["top_logprobs"] = request.top_logprobs
