"""An answer that was not streamed, as the only chunk of a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import httpx2

from llama_stack_openai_chat.errors import from_answer, reported

from ..core.errors import ApiError


@dataclass(frozen=True, slots=True)
class _Choice:
    delta: Any
    finish_reason: str | None
    logprobs: Any
    error: Any


@dataclass(frozen=True, slots=True)
class _Chunk:
    id: str
    model: str
    choices: list[_Choice]
    usage: Any
    timings: Any
    service_tier: str | None


async def in_one(completion: Any) -> AsyncGenerator[Any]:
    """Yield a completion as the single chunk of a stream."""
    if not completion.choices and (error := reported(completion.to_dict())):
        raise from_answer(httpx2.Request("POST", ""), error)
    if not completion.choices:
        raise ApiError(502, "The inference provider's answer has no choices.")
    choices = [_choice(each) for each in completion.choices]
    timings, tier = (getattr(completion, name, None) for name in ("timings", "service_tier"))
    yield _Chunk(completion.id, completion.model, choices, completion.usage, timings, tier)


def _choice(choice: Any) -> _Choice:
    return _Choice(choice.message, choice.finish_reason, choice.logprobs, getattr(choice, "error", None))
