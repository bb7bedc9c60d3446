"""Changes of the parameters of chat requests: added, values mapped, renamed, dropped."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from ...core.late_patterns import LatePattern
from ...core.types import Json
from .adaptation import Adaptation, Form
from .contents import refused_members
from .message_edits import are_same
from .refusal import Refusal

ESSENTIAL: Final = frozenset(
    {
        "max_completion_tokens",
        "max_tokens",
        "messages",
        "model",
        "modalities",
        "reasoning_effort",
        "response_format",
        "stream",
        "tools",
    }
)
"""Parameters without which the answer would be another one. All others only steer."""

DROP: Final = "drop"
MAP: Final = "map"

HINTS: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "stream_options",
        "user",
        "verbosity",
    }
)
"""Parameters that are dropped for any reason: no value of them is worth a failed request."""

STRICT: Final = ("tools.function.strict", "response_format.json_schema.strict")
_INNER: Final = (*STRICT, "messages.content.prompt_cache_breakpoint")
"""Hints within others."""

_TOGETHER: Final = {"logprobs": ("top_logprobs",), "prompt_cache_options": ("prompt_cache_key",)}
"""Parameters that mean nothing without another one."""

EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
"""The efforts that servers know, from the least."""
_LIKE: Final = {"default": "medium", "auto": "medium", "on": "medium", "enabled": "medium", "off": "none"}
"""Other words of servers for an effort."""

_EFFORT_PLACES: Final = frozenset({"reasoning", "reasoning.effort", "effort", "output_config.effort"})

LIMITS: Final = ("max_completion_tokens", "max_tokens")

_NOT_BOTH: Final = LatePattern(r"(?:cannot|can't|not) both\b|only one of\b|mutually exclusive", re.IGNORECASE)
_NO_THINKING: Final = LatePattern(
    r"(?:not|n't) support (?:thinking|reasoning)\b(?! \w)|(?:thinking|reasoning) is not (?:support|enabl|available)",
    re.IGNORECASE,
)
"""Words that say that a model does not reason."""
_MUST_REASON: Final = LatePattern(
    r"\b(?:reasoning|thinking)\b[^.]{0,40}"
    r"\b(?:mandatory|required|always (?:on|enabled)|cannot be (?:disabled|turned off))"
    r"|(?:cannot|can't|not|n't)\b[^.]{0,20}\b(?:disabl|turn\w* off)\w*\b[^.]{0,20}\b(?:reasoning|thinking)\b"
    r"|only works? (?:in|with) (?:thinking|reasoning)\b",
    re.IGNORECASE,
)
"""Words that say that a model always reasons, as OpenRouter and Gemini have them."""
_NO_THINKING_BEFORE: Final = LatePattern(
    r"expected\W{1,3}thinking\W{1,3}or\W{1,3}redacted_thinking|\bmust start with a thinking block", re.IGNORECASE
)
"""Words of Anthropic about a conversation with calls that another model made, or this one without reasoning."""
_MAY_BE_UNSET: Final = LatePattern(r"\bor (?:be )?(?:unset|omitted|left out)\b|\bmay only be set to\b", re.IGNORECASE)
"""Words of Anthropic about a parameter that has hardly any value beside reasoning."""
_LISTS_EFFORTS: Final = LatePattern(r"['\"`]low['\"`], ?['\"`]medium['\"`],? (?:and |or )?['\"`]high['\"`]")
"""A list of efforts, which says of what a refused value is."""
_NO_BUDGET: Final = LatePattern(
    r"\binvalid thinking\.type\b|\bthinking[ _]budget\b[^.]{0,40}\binvalid\b", re.IGNORECASE
)
"""Words of MiniMax and Gemini about what their gateways have made of an effort."""
_BUDGET: Final = LatePattern(r"\b(?:thinking|reasoning)?[_. ]?budget(?:_tokens|\b)", re.IGNORECASE)
"""What gateways make of an effort: a number of tokens."""
_UNKNOWN_ERROR: Final = LatePattern(r"\bunknown error\b", re.IGNORECASE)
"""Words of a failure, in which a server may quote the request."""
_LEAST: Final = "low"
"""The least effort that all models take that always reason."""


def dropped(chat: Json, path: str) -> Json:
    """Return a request without a parameter, at all places that its path has in lists; the same one without any."""
    name, _, rest = path.partition(".")
    if name not in chat:
        return chat
    if not rest:
        gone = {name, *_TOGETHER.get(name, ())}
        return {each: value for each, value in chat.items() if each not in gone}
    inner = chat[name]
    if isinstance(inner, list):
        changed: Any = [dropped(each, rest) if isinstance(each, dict) else each for each in inner]
        same = are_same(changed, inner)
    else:
        changed = dropped(inner, rest) if isinstance(inner, dict) else inner
        same = changed is inner
    return chat if same else chat | {name: changed}


def _may_drop(refusal: Refusal, chat: Json) -> Iterator[str]:
    named = [name for name, value in chat.items() if _is_droppable(refusal, name, value)]
    yield from named[-1:] if _NOT_BOTH.search(refusal.words) else named
    for path in _INNER:
        if refusal.names(path) and dropped(chat, path) is not chat:
            yield path
    yield from refused_members(refusal, chat)
    effort = chat.get("reasoning_effort")
    of_all = effort and _refuses_effort(refusal, effort) and not _instead_of_effort(refusal, effort)
    if of_all or (effort and _NO_THINKING_BEFORE.search(refusal.words)):
        yield "reasoning_effort"


def _is_droppable(refusal: Refusal, name: str, value: Any) -> bool:
    """Return whether a refusal names a parameter that may be dropped for what it says."""
    if name in ESSENTIAL or (name == "tool_choice" and value != "auto") or not refusal.names(name):
        return False
    if name in HINTS or isinstance(value, bool):
        return True
    return _cannot_be_used(refusal) and not (_is_number(value) and refusal.is_of_number(value))


def _cannot_be_used(refusal: Refusal) -> bool:
    """Return whether a refusal says that a parameter cannot be used, not that its value is out of bounds."""
    return bool(_MAY_BE_UNSET.search(refusal.words)) or (refusal.says_unsupported and not refusal.says_bound)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _refuses_effort(refusal: Refusal, effort: str) -> bool:
    return names_effort(refusal, effort) and not _UNKNOWN_ERROR.search(refusal.words)


def names_effort(refusal: Refusal, effort: str) -> bool:
    """Return whether a refusal is about the effort of a request."""
    if not _EFFORT_PLACES.isdisjoint(refusal.places) or refusal.names(
        "reasoning_effort", "reasoning effort", "reasoning.effort", "output_config"
    ):
        return True
    said = (_NO_THINKING, _NO_BUDGET)
    if _must_reason(refusal, effort) or _bounds_budget(refusal) or any(each.search(refusal.words) for each in said):
        return True
    if re.search(rf"['\"`]{effort}['\"`]", refusal.words) and _LISTS_EFFORTS.search(refusal.words):
        return True
    value = rf"\b(?:level|effort|(?:reasoning|think(?:ing)?)(?: (?:value|mode|option))?)\W{{1,4}}{effort}\b"
    return bool(re.search(value, refusal.words, re.IGNORECASE))


def _must_reason(refusal: Refusal, effort: str) -> bool:
    """Return whether a refusal says that the model cannot be asked not to reason."""
    return effort == "none" and bool(_MUST_REASON.search(refusal.words))


def _bounds_budget(refusal: Refusal) -> bool:
    """Return whether a refusal is about the bound of the tokens that a gateway makes of an effort."""
    return refusal.says_bound and bool(_BUDGET.search(refusal.subject))


def _known_efforts(refusal: Refusal, effort: str) -> list[str]:
    """Return the efforts that a refusal names, without the refused one."""
    if _NO_BUDGET.search(refusal.words):
        return []  # What it quotes is no effort.
    words = re.findall(r"[a-z]+", refusal.words.lower())
    counts = {each: words.count(each) for each in (*EFFORTS, *_LIKE)}
    quoted = set(re.findall(r"['\"`\u201c\u2018]([a-z]+)['\"`\u201d\u2019]", refusal.words.lower()))
    named = [each for each, count in counts.items() if count and each != effort]
    # Words such as "max" and "on" are words of sentences too: if the server quotes efforts, only those count.
    if any(each in quoted for each in named):
        return [each for each in named if each in quoted]
    listed = re.findall(r"\b(?:one of|supported|valid|expected|allowed)\b[^.]*", refusal.words.lower())
    known = [each for each in named if any(re.search(rf"\b{each}\b", some) for some in listed)]
    return known or ([_LEAST] if _must_reason(refusal, effort) else [])


def nearest_effort(effort: str, known: list[str]) -> str:
    """Return the one of the known efforts that is nearest; the higher one of two.

    A model that was asked to reason is not asked not to, unless it knows nothing else.
    """
    place = {name: EFFORTS.index(_LIKE.get(name, name)) for name in (effort, *known)}
    reasoning = [name for name in known if (place[name] > 0) or place[effort] == 0] or known
    return min(reasoning, key=lambda name: (abs(place[name] - place[effort]), -place[name]))


def _map_asks(refusal: Refusal, chat: Json) -> Iterator[tuple[str, Any, Any]]:
    """Yield what a value is mapped to if a refusal is about this value; None if the parameter is not sent with it."""
    effort = chat.get("reasoning_effort")
    if effort in EFFORTS and _refuses_effort(refusal, effort):
        yield from (("reasoning_effort", effort, other) for other in _instead_of_effort(refusal, effort))
    for name, value in chat.items():
        if name not in ESSENTIAL and name not in HINTS and _is_number(value) and refusal.names(name):
            yield from ((name, value, other) for other in _instead_of_number(refusal, value))


def _instead_of_effort(refusal: Refusal, effort: str) -> list[str | None]:
    """Return what is sent in place of an effort: None for nothing. It is empty if no effort is taken at all."""
    if known := _known_efforts(refusal, effort):
        return [nearest_effort(effort, known)]
    if _bounds_budget(refusal) and effort in EFFORTS and EFFORTS.index(effort) > EFFORTS.index(_LEAST):
        return [EFFORTS[EFFORTS.index(effort) - 1]]
    return [None] if re.search(rf"(?<!['\"]: )['\"`]{effort}['\"`]", refusal.words) else []


def _instead_of_number(refusal: Refusal, value: float) -> list[float | None]:
    """Return what is sent in place of a number, if a refusal is about this number: the nearest one that it names."""
    others = [number for number in refusal.numbers if number != value]
    if not refusal.is_of_number(value) or not (refusal.says_unsupported or refusal.says_bound):
        return []
    if not others:
        return [None] if refusal.says_unsupported else []
    nearest = min(others, key=lambda number: abs(number - value))
    return [int(nearest) if isinstance(value, int) else nearest]


def _mapped(chat: Json, argument: Any) -> Json:
    name, value, other = argument
    # A value of a profile is the name of a member, so a text.
    if name not in chat or str(chat[name]) != str(value):
        return chat
    return dropped(chat, name) if other is None else chat | {name: other}


def _rename_asks(refusal: Refusal, chat: Json) -> Iterator[tuple[str, str]]:
    for name, other in (LIMITS, LIMITS[::-1]):
        if name in chat and other not in chat and refusal.names(name) and _is_unknown(refusal, other):
            yield name, other


def _is_unknown(refusal: Refusal, other: str) -> bool:
    return _cannot_be_used(refusal) or (other in refusal.words and refusal.says_unsupported)


def _renamed(chat: Json, argument: Any) -> Json:
    name, other = argument
    if name not in chat:
        return chat
    return {(other if each == name else each): value for each, value in chat.items()}


def _added(chat: Json, argument: Any) -> Json:
    name, value = argument
    return chat if name in chat else chat | {name: value}


_DEFAULTS: Final[dict[str, Any]] = {
    "frequency_penalty": 0.0,
    "parallel_tool_calls": True,
    "presence_penalty": 0.0,
    "prompt_cache_key": None,
    "prompt_cache_options": None,
    "prompt_cache_retention": None,
    "safety_identifier": None,
    "service_tier": "default",
    "temperature": 1.0,
    "top_logprobs": 0,
    "top_p": 1.0,
    "user": None,
}
"""What a response says of a parameter with which the model server was not asked."""


def _tell_dropped(response: Json, path: str) -> None:
    for name in (path, *_TOGETHER.get(path, ())):
        if name in _DEFAULTS and name in response:
            response[name] = _DEFAULTS[name]
    if path == "logprobs" and "top_logprobs" in response:
        response["top_logprobs"] = _DEFAULTS["top_logprobs"]
    if path == "reasoning_effort":
        _set_inner(response, "reasoning", "effort", None)
    if path == "verbosity":
        _set_inner(response, "text", "verbosity", "medium")
    if path == STRICT[0]:
        response["tools"] = [tool | {"strict": False} if tool.get("strict") else tool for tool in response["tools"]]


def _tell_added(response: Json, argument: Any) -> None:
    name, value = argument
    if name == "reasoning_effort":
        _set_inner(response, "reasoning", "effort", value)
    elif name == "verbosity":
        _set_inner(response, "text", "verbosity", value)
    elif name in _DEFAULTS and name in response:
        response[name] = value


def _set_inner(response: Json, field: str, name: str, value: Any) -> None:
    """Set a member of a field to a new value; a dict that was sent in an event is never changed."""
    inner = response.get(field)
    if isinstance(inner, dict) and inner.get(name) != value:
        response[field] = inner | {name: value}


def _tell_mapped(response: Json, argument: Any) -> None:
    name, _, other = argument
    if other is None:
        _tell_dropped(response, name)
    elif name == "reasoning_effort":
        _set_inner(response, "reasoning", "effort", _LIKE.get(other, other))
    elif name == "verbosity":
        _set_inner(response, "text", "verbosity", other)
    elif name in response:
        response[name] = other


def _never(_: Refusal, __: Json) -> tuple[()]:
    """Ask for nothing: only an operator knows what is to be added."""
    return ()


PARAMETERS: Final = (
    Adaptation(MAP, _map_asks, _mapped, _tell_mapped),
    Form("rename", _rename_asks, _renamed),
    Adaptation(DROP, _may_drop, dropped, _tell_dropped),
    Adaptation("add", _never, _added, _tell_added),
)
