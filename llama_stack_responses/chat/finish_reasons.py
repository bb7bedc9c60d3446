"""What the finish reasons of model servers mean: data, one table for all vendors."""

from __future__ import annotations

from typing import Final, Literal

from ..stream.deltas import FinishReason

type Meaning = FinishReason | Literal["failed", "malformed_call"]

_BY_MEANING: Final[dict[Meaning, tuple[str, ...]]] = {
    "stop": (
        *("stop", "eos", "end_turn", "completed"),
        *("eos_token", "stop_sequence"),  # TGI, Anthropic
        "complete",  # Cohere
        "finish_reason_stop",  # Gemini's enumeration
    ),
    "tool_calls": ("tool_calls", "function_call", "tool_call", "tool_use"),  # the last two: Cohere, Anthropic
    "length": (
        *("length", "max_tokens", "max_output_tokens", "max_completion_tokens"),
        "model_length",  # Mistral: at the end of the model's context
        *("max_length", "max_new_tokens", "token_limit"),
        *("max_context_length", "context_length", "context_length_exceeded"),
        "model_context_window_exceeded",  # Anthropic, z.ai
        "error_limit",  # Cohere
        "repetition_truncation",  # MiMo
    ),
    "content_filter": (
        *("content_filter", "content_filtered", "refusal"),
        "sensitive",  # GLM (Zhipu's API reference)
        *("safety", "recitation", "blocklist", "prohibited_content", "spii", "language"),  # Gemini's `FinishReason`
        *("image_safety", "image_prohibited_content", "image_recitation"),
        "guardrail_intervened",  # Bedrock
        "error_toxic",  # Cohere
    ),
    "cancelled": ("abort", "aborted", "cancelled", "canceled", "user_cancel"),
    "failed": (
        *("error", "timeout", "failed", "server_error"),
        "network_error",  # GLM
        "insufficient_system_resource",  # DeepSeek
        *("other", "finish_reason_unspecified"),  # Gemini
    ),
    "malformed_call": ("malformed_function_call", "unexpected_tool_call", "too_many_tool_calls"),  # Gemini
}

MEANINGS: Final = {reason: meaning for meaning, reasons in _BY_MEANING.items() for reason in reasons}
"""Meanings by the lower-case reason; `failed` stands for an answer that the server gave up, `malformed_call` for a call
that it could not read."""


def meaning_of(reason: str) -> Meaning | None:
    """Return what a finish reason means; None if it is not known.

    Some gateways write `content-filter`, Gemini also `function_call_filter: MALFORMED_FUNCTION_CALL`.
    """
    last = reason.lower().replace(":", ".").rpartition(".")[2].strip()
    return MEANINGS.get(last.replace("-", "_").replace(" ", "_"))
