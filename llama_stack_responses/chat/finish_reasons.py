"""What the finish reasons of model servers mean: data, one table for all vendors."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, Final, Literal

from ..stream.deltas import FinishReason
from .pieces import member, text

type Meaning = FinishReason | Literal["failed", "malformed_call"]

_BY_MEANING: Final[dict[Meaning, tuple[str, ...]]] = {
    "stop": (
        *("stop", "eos", "end_turn", "completed"),
        *("eos_token", "stop_sequence"),  # TGI, Anthropic
        "complete",  # Cohere
        "finish_reason_stop",  # Gemini's enumeration
        "normal",  # Qianfan
        *("end_id", "stop_words"),  # TensorRT-LLM
        *("eos_found", "stop_string_found"),  # LM Studio
        *("word", "stopped_eos", "stopped_word"),  # llama.cpp's own API
    ),
    "tool_calls": ("tool_calls", "function_call", "tool_call", "tool_use"),  # the last two: Cohere, Anthropic
    "length": (
        *("length", "max_tokens", "max_output_tokens", "max_completion_tokens"),
        "model_length",  # Mistral: at the end of the model's context
        *("max_length", "max_new_tokens", "token_limit"),
        *("max_context_length", "context_length", "context_length_exceeded"),
        "model_context_window_exceeded",  # Anthropic, z.ai
        "error_limit",  # Cohere
        *("max_predicted_tokens_reached", "context_length_reached"),  # LM Studio
        *("reason_max_len", "reason_max_context", "reason_time_limit", "time_limit"),  # xAI, watsonx
        *("repetition_truncation", "repetition"),  # MiMo, vLLM
        "pause_turn",  # Anthropic
        *("limit", "stopped_limit", "context_full"),  # llama.cpp's own API, in some gateways
        "incomplete",
    ),
    "content_filter": (
        *("content_filter", "content_filtered", "refusal"),
        "sensitive",  # GLM (Zhipu's API reference)
        *("safety", "recitation", "blocklist", "prohibited_content", "spii", "language"),  # Gemini's `FinishReason`
        *("image_safety", "image_prohibited_content", "image_recitation", "model_armor", "escalation"),
        "guardrail_intervened",  # Bedrock
        "error_toxic",  # Cohere
    ),
    "failed": (
        *("error", "timeout", "failed", "server_error"),
        # The engine of vLLM or SGLang has aborted the request: it shuts down, sleeps, or an operator asked for it.
        *("abort", "aborted"),
        *("cancelled", "canceled", "user_cancel"),  # TensorRT-LLM, Cohere; this server cancels by disconnecting
        *("model_unloaded", "user_stopped"),  # LM Studio
        "network_error",  # GLM
        "insufficient_system_resource",  # DeepSeek
        *("other", "finish_reason_unspecified", "image_other", "no_image", "malformed_response"),  # Gemini
        "malformed_model_output",  # Bedrock
    ),
    "malformed_call": (
        *("malformed_function_call", "unexpected_tool_call", "too_many_tool_calls"),  # Gemini
        "malformed_tool_use",  # Bedrock
    ),
}

MEANINGS: Final = {reason: meaning for meaning, reasons in _BY_MEANING.items() for reason in reasons}
"""Meanings by the lower-case reason; `failed` stands for an answer that the server aborted, `malformed_call` for a call
that it could not read."""

_BY_WORD: Final[tuple[tuple[Meaning, re.Pattern[str]], ...]] = (
    (
        "failed",
        re.compile(
            "error|fail|abort|cancel|timed?_?out|unavail|overload|interrupt|exception|malformed|unload|disconnect|memory"
            "|preempt|kill|shut_?down|crash|evict|expired?|dead|(?:^|_)(?:oom|died?|load|lost|reset|panic|reject)"
        ),
    ),
    (
        "content_filter",
        re.compile("filter|safety|polic|prohibit|block|moderat|sensitive|toxic|harm|refus|violat"),
    ),
    (
        "length",
        re.compile(
            "length|limit|max|trunc|cut|repeti|context|budget|exceed|exhaust|quota|incompl|unfinish|partial"
            "|(?:^|_)full(?:_|$)"
        ),
    ),
)
"""What a word of an unknown reason says, in this order. An answer that may be cut is never taken as complete."""

_WORST_FIRST: Final[tuple[Meaning, ...]] = ("failed", "malformed_call", "content_filter", "length")
_NONE: Final = frozenset({"null", "none", "not_finished", "in_progress"})
"""What some servers send with each chunk instead of null: DashScope, watsonx."""
_FLAGS: Final = frozenset({"stopped_limit", "stopped_eos", "stopped_word", "context_full"})
"""Names of members that are themselves the reason if they are true or above 0 (llama.cpp's own API, of old)."""
_NAMES: Final = (
    *("finish_reason", "finishReason", "native_finish_reason", "done_reason", "finish_details", "stop_type"),
    *sorted(_FLAGS),
)
"""Names of a finish reason: of OpenAI, Gemini, the server behind OpenRouter, Ollama, an older API of OpenAI, and
llama.cpp's own API.
"""
_STOPS: Final = ("stop_reason", "stopReason")
"""Names of it in other APIs (Anthropic, Bedrock)."""
_ALL_NAMES: Final = frozenset((*_NAMES, *_STOPS))
_SELDOM: Final = _ALL_NAMES - {"finish_reason", "stop_reason"}
_CHARACTERS: Final = 100
"""Characters of a reason that are read."""
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def meaning_of(reason: str) -> Meaning | None:
    """Return what a finish reason means; None if it is not known.

    Some gateways write `content-filter`, LM Studio `maxPredictedTokensReached`, Gemini also `function_call_filter:
    MALFORMED_FUNCTION_CALL`.
    """
    return MEANINGS.get(_word(reason))


def guessed_meaning(reason: str) -> Meaning:
    """Return what the words of an unknown finish reason say: `stop`, unless they indicate a cut or a failure."""
    return next((meaning for meaning, pattern in _BY_WORD if pattern.search(_word(reason))), "stop")


def worse(before: str | None, reason: str) -> str:
    """Return which of two reasons says the worse of an answer: its first reason and a later one.

    Of two that say the same, and of two with which an answer is complete, the later one counts.
    """
    return before if before and _rank(before) < _rank(reason) else reason


def _rank(reason: str) -> int:
    meaning = meaning_of(reason) or guessed_meaning(reason)
    return _WORST_FIRST.index(meaning) if meaning in _WORST_FIRST else len(_WORST_FIRST)


def _word(reason: str) -> str:
    last = _CAPITAL.sub("_", reason).lower().replace(":", ".").rpartition(".")[2].strip()
    return last.replace("-", "_").replace(" ", "_")


def may_end(choice: dict[str, Any], chunk: dict[str, Any]) -> bool:
    """Return whether the JSON of a choice or of its chunk may have a finish reason outside of its delta.

    It is asked for each token. vLLM has null under two names in each choice.
    """
    return bool(
        choice.get("finish_reason")
        or choice.get("stop_reason")
        or not _SELDOM.isdisjoint(choice)
        or not _ALL_NAMES.isdisjoint(chunk)
    )


def reason_of(chunk: Any, choice: Any) -> str | None:
    """Return the finish reason of a chunk that has one; None if it stands for none.

    That of the choice counts, under its own name, unless it calls an answer complete that another one calls cut: that
    of the server behind a gateway (OpenRouter, LiteLLM), or one at another place or with another name.

    Args:
        chunk: the chunk.
        choice: its choice; None if it has none.
    """
    given, own = member(choice, "finish_reason"), _more(choice)
    others = (own, _more(member(choice, "delta")), own.get("provider_specific_fields"), _more(chunk))
    places = [each for each in others if type(each) is dict and any(map(each.get, _ALL_NAMES.intersection(each)))]
    if not (given or places):
        return None  # as in most chunks
    found = [_written(given), *_found(places, _NAMES)]
    reasons = [each for each in found if each and _word(each) not in _NONE]
    if not reasons:
        # vLLM has the stop sequence there, beside a reason.
        return next(filter(None, _found(places, _STOPS)), None)
    cut = (each for each in reasons if not _is_complete(meaning_of(each) or "stop"))
    return next(cut, reasons[0]) if _is_complete(meaning_of(reasons[0])) else reasons[0]


def _more(value: Any) -> Mapping[str, Any]:
    """Return the members of an object that it has no fields for; all those of a dict."""
    return value if isinstance(value, dict) else getattr(value, "__pydantic_extra__", None) or {}


def _found(places: Iterable[Mapping[str, Any]], names: Iterable[str]) -> Iterator[str]:
    for name, place in product(names, places):
        if value := place.get(name):
            yield name if name in _FLAGS else _written(value)


def _written(value: Any) -> str:
    """Return a reason as text. SGLang's own API has an object with a `type`; of anything else, the words count."""
    if not value or isinstance(value, str):
        return value[:_CHARACTERS] if value else ""
    return (text(value, "type") or reprlib.repr(value))[:_CHARACTERS]


def _is_complete(meaning: Meaning | None) -> bool:
    return meaning in ("stop", "tool_calls")
