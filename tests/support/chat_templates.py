"""What chat templates and model servers check, each with the words with which it refuses.

A check gets the messages of a chat request and returns the words of its refusal, or None if it takes them.
"""

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

type Json = dict[str, Any]
type Check = Callable[[list[Json]], str | None]


def qwen(messages: list[Json]) -> str | None:
    """Qwen 3.5: one system message, at the beginning, and a question."""
    if any(message["role"] == "system" for message in messages[1:]):
        return "System message must be at the beginning."
    return None if any(message["role"] == "user" for message in messages) else "No user query found in messages."


def mistral(messages: list[Json]) -> str | None:
    """Mistral's templates: user and assistant take turns; calls and their outputs do not count."""
    counted = messages[1:] if messages and messages[0]["role"] == "system" else messages
    turn = 0
    for message in counted:
        if message["role"] == "tool" or message.get("tool_calls"):
            continue
        if (message["role"] == "user") != (turn % 2 == 0):
            return (
                "After the optional system message, conversation roles must alternate user/assistant/user/assistant/..."
            )
        turn += 1
    return None


def mistral_api(messages: list[Json]) -> str | None:
    """Mistral's API: no user message behind an output of a tool."""
    for before, after in pairwise(messages):
        if before["role"] == "tool" and after["role"] not in ("tool", "assistant"):
            return f"Unexpected role '{after['role']}' after role 'tool'"
    return None


def mistral_ids(messages: list[Json]) -> str | None:
    """Mistral's tokenizer: ids of calls have nine letters and digits, and each output has a call."""
    made = {call["id"] for message in messages for call in message.get("tool_calls") or ()}
    for message in messages:
        ids = [call["id"] for call in message.get("tool_calls") or ()]
        ids += [message["tool_call_id"]] if message["role"] == "tool" else []
        for each in ids:
            if not re.fullmatch(r"[a-zA-Z0-9]{9}", each):
                return f"Tool call id was {each} but must be a-z, A-Z, 0-9, with a length of 9."
            if each not in made:
                return "Not the same number of function calls and responses"
    return None


def gemma(messages: list[Json]) -> str | None:
    """Gemma 2: no system messages, and turns."""
    if messages and messages[0]["role"] == "system":
        return "System role not supported"
    for turn, message in enumerate(messages):
        if (message["role"] == "user") != (turn % 2 == 0):
            return "Conversation roles must alternate user/assistant/user/assistant/..."
    return None


def old_roles(messages: list[Json]) -> str | None:
    """Servers that do not know developers."""
    for number, message in enumerate(messages):
        if message["role"] not in ("system", "assistant", "user", "tool", "function"):
            roles = "['system', 'assistant', 'user', 'function', 'tool']"
            return f"'{message['role']}' is not one of {roles} - 'messages.{number}.role'"
    return None


def llama_cpp_text(messages: list[Json]) -> str | None:
    """llama.cpp with a model that reads only text."""
    for message in messages:
        if isinstance(message.get("content"), list):
            for part in message["content"]:
                if part["type"] == "image_url":
                    return (
                        "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
                    )
    return None


def strings(messages: list[Json]) -> str | None:
    """Servers that take only texts."""
    for number, message in enumerate(messages):
        if isinstance(message.get("content"), list):
            return f"Invalid type for 'messages[{number}].content': expected a string, but got an array instead."
    return None


def no_missing_contents(messages: list[Json]) -> str | None:
    """Servers that demand the member itself."""
    if any("content" not in message for message in messages):
        return "Failed to deserialize the JSON body into the target type: messages[1]: missing field `content`"
    return None


def no_nulls(messages: list[Json]) -> str | None:
    """Servers that demand a text beside calls, if they get a content."""
    if any(message.get("content", "") is None for message in messages):
        return "Invalid value for 'content': expected a string, got null."
    return None


def no_blanks(messages: list[Json]) -> str | None:
    """Bedrock: texts that are not empty."""
    for message in messages:
        if isinstance(message.get("content"), str) and not message["content"].strip():
            return "ValidationException: messages: text content blocks must be non-empty"
    return None


def deepseek(messages: list[Json]) -> str | None:
    """DeepSeek 4: each message of the assistant has its reasoning."""
    if all("reasoning_content" in message for message in messages if message["role"] == "assistant"):
        return None
    return "The `reasoning_content` in the thinking mode must be passed back to the API."


def groq(messages: list[Json]) -> str | None:
    """Groq: no member that it does not know."""
    for number, message in enumerate(messages):
        for name in ("reasoning_content", "reasoning_details", "thinking_blocks"):
            if name in message:
                return (
                    f"'messages.{number}' : for 'role:assistant' the following must be satisfied"
                    f"[('messages.{number}' : property '{name}' is unsupported)]"
                )
    return None


CHECKS: Final[dict[str, Check]] = {
    "alternate": mistral,
    "assistant_after_tool": mistral_api,
    "all_reasoning": deepseek,
    "empty_content": no_nulls,
    "nine_character_ids": mistral_ids,
    "no_blank_content": no_blanks,
    "no_developer": old_roles,
    "no_images": llama_cpp_text,
    "no_reasoning": groq,
    "system_first": qwen,
    "text_content": strings,
}
"""By the dialect that answers the refusal, the check that it satisfies."""
