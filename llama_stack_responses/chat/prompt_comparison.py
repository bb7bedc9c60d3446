"""Compare the prompts of two responses as a model server's prompt cache sees them.

A cache reuses a prompt up to the first difference. Source:
https://developers.openai.com/api/docs/guides/prompt-caching/diagnostics
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ..core.types import Json
from ..items.kinds.compaction import COMPACTION
from .estimate import estimated_bytes, tokens_of
from .messages import turn_start
from .profile import Profile

_SETTINGS: Final[Mapping[str, Sequence[str]]] = {
    "model_changed": ("model",),
    "service_tier_changed": ("service_tier",),
    "prompt_cache_key_changed": ("prompt_cache_key",),
    "tools_changed": ("tools",),
    "text_format_changed": ("text", "format"),
    "reasoning_effort_changed": ("reasoning", "effort"),
    "verbosity_changed": ("text", "verbosity"),
}
"""The settings that a cache depends on: their path in the response, by the reason for a miss, in order."""

_INPUT: Final = "input_changed"
_COMPACTED: Final = "context_compacted"

REASONS: Final = (*_SETTINGS, _INPUT, _COMPACTED)
"""The reasons why a prompt is not reused, as OpenAI names them."""

_UNSEEN: Final = frozenset({"id", "status", "phase", "annotations", "logprobs"})
"""Fields of items and of their parts that the model does not see."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the prompt of a response was made of.

    Attributes:
        response: the response, which echoes its settings.
        items: the history and the input.
    """

    response: Json
    items: Sequence[Json]


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference of a prompt from another one.

    Attributes:
        reason: what differs, as a `reason` of OpenAI's `PromptCacheDiagnostics`.
        shared: the estimated part of the prompt before the difference, from 0 to 1.
        tokens: the estimated tokens of the whole prompt.
    """

    reason: str
    shared: float
    tokens: int


def first_difference(prompt: Prompt, compared: Prompt, profile: Profile, *, compacted: bool) -> Difference | None:
    """Return where a prompt stops to begin as the compared one; None if it begins with all of that.

    Args:
        prompt: the prompt of the present response.
        compared: the prompt of an earlier response.
        profile: the profile of the model of `prompt`.
        compacted: whether the server compacted the conversation before the model read `prompt`.
    """
    items, expected = _seen(prompt, profile), _seen(compared, profile)
    around = [prompt.response["tools"], prompt.response["instructions"]]

    def at(reason: str, *before: Any) -> Difference:
        size = estimated_bytes([around, items])
        return Difference(reason, estimated_bytes([*before]) / max(size, 1), tokens_of(size))

    for reason, path in _SETTINGS.items():
        if _value(prompt.response, path) != _value(compared.response, path):
            return at(reason)
    if prompt.response["instructions"] != compared.response["instructions"]:
        return at(_INPUT)
    if compacted:
        return at(_COMPACTED, around)
    same = _length_of_common_beginning(items, expected)
    if same == len(expected):
        return None
    begins_compacted = not same and bool(items) and items[0]["type"] == COMPACTION
    return at(_COMPACTED if begins_compacted else _INPUT, around, items[:same])


def _value(response: Json, path: Iterable[str]) -> Any:
    value: Any = response
    for name in path:
        value = (value or {}).get(name)
    return value


def _seen(prompt: Prompt, profile: Profile) -> list[Json]:
    """Return the items of which the model sees something, with the fields that it sees."""
    beginnings = [number for number, item in enumerate(prompt.items) if item["type"] == COMPACTION]
    items = prompt.items[beginnings[-1] if beginnings else 0 :]
    all_turns = _value(prompt.response, ("reasoning", "context")) == "all_turns"
    first = 0 if all_turns else turn_start(items)
    if profile.reasoning_replay == "none":
        first = len(items)
    return [_of_model(item) for number, item in enumerate(items) if item["type"] != "reasoning" or number >= first]


def _of_model(value: Json) -> Json:
    """Return an item, or a part of it, without what the model does not see."""
    if value.get("type") == "reasoning" and value.get("encrypted_content"):
        # A client may send it back without its text.
        return {name: value[name] for name in ("type", "encrypted_content")}
    fields = {name: field for name, field in value.items() if name not in _UNSEEN and field is not None}
    if isinstance(parts := fields.get("content"), list):
        fields["content"] = [_of_model(part) for part in parts]
    return fields


def _length_of_common_beginning(items: Sequence[Json], others: Sequence[Json]) -> int:
    pairs = enumerate(zip(items, others, strict=False))
    return next((number for number, (item, other) in pairs if item != other), min(len(items), len(others)))
