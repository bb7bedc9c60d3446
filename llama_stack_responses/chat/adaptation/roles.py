"""The roles of messages, in the order that a model's chat template takes.

A template raises an error, which the model server passes on with status 400 or 500. The words are those of the
template's author, so they are read by what they name: a role, and what is wrong with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from ..reasoning_entries import BLOCKS, DETAILS, TEXT_FIELDS
from .adaptation import Adaptation, Form, answers
from .message_edits import INSTRUCTING, each_message, joined, text_of, with_messages
from .refusal import Refusal

BRIDGE: Final = "I have the results."
"""What the model seems to have said between the output of a tool and a message of the user."""
OPENING: Final = "(The conversation begins.)"
"""What the user seems to have said before the first message of the assistant."""
CONTINUE: Final = "Continue."
"""What the user seems to have said behind the last message of the assistant."""

_SYSTEM_ORDER: Final = LatePattern(
    r"system (?:message|role|prompt|instruction)s?\b[^.]{0,80}"
    r"\b(?:begin|first|start|top|once|one|single|multiple|(?:index|position) 0)"
    r"|\b(?:only|multiple|single|one|first|several)\b[^.]{0,40}\bsystem (?:message|role|prompt)"
    r"|role\W{1,3}(?:system|developer)\W{1,3}after\b|\bsystem\W{1,3}role\b[^.]{0,40}\b(?:first|begin|start)"
    r"|\bonly the first message\b[^.]{0,40}\bsystem\b|\binitial optional system\b"
    # MiniMax
    r"|\bsystem role\b[^.]{0,20}\bin the middle\b|\binvalid chat setting\b",
    re.IGNORECASE,
)
_NO_SYSTEM: Final = LatePattern(
    r"(?:\bsystem\b\W{0,3}(?:roles?|messages?|instructions?|prompts?)\b|['\"`]system['\"`])[^.]{0,40}"
    r"(?:\bnot (?:support|allow|enabl|permit|recogni|accept)|unsupported|n't support)"
    r"|(?:not|n't) support\w*[^.]{0,30}"
    r"(?:\bsystem\b\W{0,3}(?:roles?|messages?|instructions?|prompts?)\b|['\"`]system\b)"
    r"|(?:unknown|unsupported|invalid|unrecogni[sz]ed)\W+(?:message )?role\W{1,5}system\b"
    r"|developer instruction is not enabled",
    re.IGNORECASE,
)
_DEVELOPER: Final = LatePattern(
    r"developer\b[^.]{0,60}(?:\bnot\b|unsupported|unknown|unexpected|invalid|n't|unrecogni[sz]ed)"
    r"|(?:\bnot\b|unsupported|unknown|unexpected|invalid|n't|unrecogni[sz]ed)[^.]{0,60}\bdeveloper\b",
    re.IGNORECASE,
)
_ALTERNATE: Final = LatePattern(
    r"\balternat\w+\b.{0,100}\b(?:user|assistant|roles?|messages?)\b"
    r"|\b(?:user|assistant|roles?|messages?)\b.{0,100}\balternat"
    r"|(?:consecutive|successive|two|2 or more|multiple|repeated)\b[^.]{0,30}\b(?:user|assistant)\b"
    r"|\b(?:consecutive|successive|adjacent|two|multiple)\b[^.]{0,40}\bsame role\b"
    r"|\bsame role\b[^.]{0,40}\b(?:consecutive|success|adjacent|in a row|twice)"
    r"|\bassistant after user\b|\buser after assistant\b|\bassistant\W{1,3}after\W{1,3}user\b"
    r"|\b(user|assistant)\W{1,3}(?:can|must|may|should|does)(?: ?no|n')t follow\W{1,3}(?:another )?\W?\1\b",
    re.IGNORECASE | re.DOTALL,
)
_AFTER_TOOL: Final = LatePattern(
    r"role\W{1,3}(?:\w+\.)?user\W{1,3}(?:\w+ ){0,2}after\b[^.]{0,12}\W(?:\w+\.)?tool\b"
    r"|\bassistant\b[^.]{0,20}\bafter\b[^.]{0,12}\btool\b[^.]{0,30}\buser\b"
    r"|\buser\b[^.]{0,40}\b(?:after|follow\w*)\b[^.]{0,30}\btool\b"
    r"|\btool\b[^.]{0,60}\bfollowed by\b[^.]{0,12}\bassistant\b"
    r"|\btool result\b[^.]{0,40}\b(?:same turn|same message)",
    re.IGNORECASE,
)
_USER_FIRST: Final = LatePattern(
    r"\b(?:first|begin|start)\w*\b[^.]{0,60}\buser\b|\bno user (?:query|message)|at least one (?:user|message)\b"
    # DashScope, Gemini
    r"|\bnot contain elements with the role of user\b|\bfunction call turn comes immediately after a user turn\b",
    re.IGNORECASE,
)
_ILLEGAL: Final = r"|\bmessages parameter is illegal\b|\bmessages \u53c2\u6570\u975e\u6cd5"
"""What GLM says of any order that it does not take."""
_FIRST_SYSTEM, _FIRST_USER = (
    LatePattern(each.pattern + _ILLEGAL, re.IGNORECASE) for each in (_SYSTEM_ORDER, _USER_FIRST)
)
_USER_LAST: Final = LatePattern(r"\b(?:last|ends?|final)\b[^.]{0,60}\buser\b|\bprefill", re.IGNORECASE)
_LISTED: Final = LatePattern(
    r"(?:one of|should be|must be|expected|supported:?)\b([^.]{0,200})|\bonly ([a-z, ]{1,60}) roles\b", re.IGNORECASE
)


def _has(chat: Json, *roles: str) -> bool:
    return any(message["role"] in roles for message in chat["messages"])


def _lists_roles_without(refusal: Refusal, role: str) -> bool:
    """Return whether a refusal lists the roles that there are, and this one is not among them."""
    of_role = any(place.endswith("role") for place in refusal.places)
    if not of_role and "role" not in refusal.words and "variant" not in refusal.words:
        return False
    lists = ["".join(found).lower() for found in _LISTED.findall(refusal.words)]
    return any("user" in each and "assistant" in each and role not in each for each in lists)


def _end_of_instructions(messages: list[Json]) -> int:
    """Return the index of the first message that is not of the system or the developer."""
    return next((n for n, message in enumerate(messages) if message["role"] not in INSTRUCTING), len(messages))


# No developer, no system


def _asks_no_developer(refusal: Refusal, chat: Json) -> Iterator[None]:
    if _has(chat, "developer") and (_DEVELOPER.search(refusal.subject) or _lists_roles_without(refusal, "developer")):
        yield None


def _as_system(chat: Json, _: Any) -> Json:
    return each_message(
        chat, lambda message: message | {"role": "system"} if message["role"] == "developer" else message
    )


def _system_first(chat: Json, _: Any) -> Json:
    """Merge the system messages at the beginning, and put each later one into the next user message."""
    messages = chat["messages"]
    end = _end_of_instructions(messages)
    first, rest = messages[:end], messages[end:]
    rest, left = _folded(rest)
    if len(first) + len(left) > 1 or left:
        role = (first or left)[0]["role"]
        texts = [text_of(message["content"]) for message in [*first, *left]]
        first = [{"role": role, "content": "\n\n".join(filter(None, texts))}]
    return with_messages(chat, [*first, *rest])


def _folded(messages: list[Json]) -> tuple[list[Json], list[Json]]:
    """Put each system message into the next user message; return also those behind which there is none."""
    out, waiting = list[Json](), list[Json]()
    for message in messages:
        if message["role"] in INSTRUCTING:
            waiting.append(message)
            continue
        if waiting and message["role"] == "user":
            text = "\n\n".join(text_of(each["content"]) for each in waiting)
            message = message | {"content": joined(text, message["content"])}  # noqa: PLW2901
            waiting.clear()
        out.append(message)
    return out, waiting


def _asks_no_system(refusal: Refusal, chat: Json) -> Iterator[None]:
    if not _has(chat, "system") or _SYSTEM_ORDER.search(refusal.words):
        return
    if _NO_SYSTEM.search(refusal.words) or _lists_roles_without(refusal, "system"):
        yield None


def _no_system(chat: Json, _: Any) -> Json:
    """Put each system message into the next user message, or into one of its own behind all others."""
    messages, left = _folded(chat["messages"])
    text = "\n\n".join(text_of(message["content"]) for message in left)
    return with_messages(chat, [*messages, *([{"role": "user", "content": text}] if left else ())])


# The order of user and assistant


def _user_first(chat: Json, _: Any) -> Json:
    messages = chat["messages"]
    begin = _end_of_instructions(messages)
    if begin < len(messages) and messages[begin]["role"] == "user":
        return chat
    return with_messages(chat, [*messages[:begin], {"role": "user", "content": OPENING}, *messages[begin:]])


def _user_last(chat: Json, _: Any) -> Json:
    messages = chat["messages"]
    if messages and messages[-1]["role"] == "assistant":
        return with_messages(chat, [*messages, {"role": "user", "content": CONTINUE}])
    return chat


def _assistant_after_tool(chat: Json, _: Any) -> Json:
    """Let the assistant say something between the output of a tool and a message of the user."""
    out = list[Json]()
    bridge: Json = {"role": "assistant", "content": BRIDGE}
    if any("reasoning_content" in message for message in chat["messages"]):
        # A server may demand it on each message of the assistant.
        bridge["reasoning_content"] = ""
    for message in chat["messages"]:
        if out and out[-1]["role"] == "tool" and message["role"] in ("user", *INSTRUCTING):
            out.append(bridge)
        out.append(message)
    return with_messages(chat, out)


def _alternate(chat: Json, _: Any) -> Json:
    """Let user and assistant take turns, calls and their outputs aside, behind one system message."""
    changed = _user_first(_assistant_after_tool(_system_first(chat, None), None), None)
    out = list[Json]()
    for message in changed["messages"]:
        before = out[-1] if out else None
        if before and before["role"] == message["role"] and message["role"] in ("user", "assistant"):
            out[-1] = _together(before, message)
        else:
            out.append(message)
    return with_messages(chat, out)


def _together(one: Json, other: Json) -> Json:
    """Return two messages of the same role as one."""
    both = one | other | {"content": joined(one.get("content"), other.get("content")) or None}
    if calls := [*(one.get("tool_calls") or ()), *(other.get("tool_calls") or ())]:
        both["tool_calls"] = calls
    for name in TEXT_FIELDS:
        if texts := [message[name] for message in (one, other) if message.get(name)]:
            both[name] = "\n".join(texts)
    for name in (DETAILS, BLOCKS):
        if lists := [message[name] for message in (one, other) if message.get(name)]:
            both[name] = [entry for each in lists for entry in each]
    return both


ROLES: Final = (
    Adaptation("no_developer", _asks_no_developer, _as_system, walks_messages=True),
    Form("system_first", answers(_FIRST_SYSTEM, _system_first), _system_first, walks_messages=True),
    Adaptation("no_system", _asks_no_system, _no_system, walks_messages=True),
    Form("user_first", answers(_FIRST_USER, _user_first), _user_first, walks_messages=True),
    Form(
        "assistant_after_tool", answers(_AFTER_TOOL, _assistant_after_tool), _assistant_after_tool, walks_messages=True
    ),
    Form("alternate", answers(_ALTERNATE, _alternate), _alternate, walks_messages=True),
    Form("user_last", answers(_USER_LAST, _user_last), _user_last, walks_messages=True),
)
