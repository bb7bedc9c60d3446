"""Conversion of the model server's JSON to the objects that the host's providers return (`openai` package).

The objects are built without validation, which would be too slow for a chunk per token. Missing fields get their
defaults; unknown fields stay as extra fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from openai.types import Completion, CompletionUsage
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionTokenLogprob
from openai.types.chat.chat_completion_chunk import (
    Choice,
    ChoiceDelta,
    ChoiceDeltaFunctionCall,
    ChoiceDeltaToolCall,
    ChoiceDeltaToolCallFunction,
    ChoiceLogprobs,
)
from openai.types.chat.chat_completion_token_logprob import TopLogprob
from openai.types.completion_usage import CompletionTokensDetails, PromptTokensDetails
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

Json = dict[str, Any]
Build = Callable[[Any], Any]

_new: Final = object.__new__
# The four slots of a model's instance, set directly.
_set_values, _set_fields, _set_extra, _set_private = (
    BaseModel.__dict__[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)


class TextOfParts(str):
    """Content that a server sends as a list of parts: the text of the text parts.

    It is a string, so that the host's router can concatenate it.

    Attributes:
        parts: all parts, as received.
    """

    parts: list[Any]

    @classmethod
    def of(cls, content: Any) -> Any:
        """Convert a list of parts, or one part; return text unchanged.

        Raises:
            TypeError: it is neither.
        """
        if isinstance(content, str):
            return content
        if isinstance(content, dict) and isinstance(content.get("text"), str):
            content = [content]
        if not isinstance(content, list):
            raise TypeError("The content is not text.")
        texts = [text for each in content if isinstance(each, dict) and isinstance(text := each.get("text"), str)]
        joined = cls("".join(texts))
        joined.parts = content
        return joined

    def __bool__(self) -> bool:
        """Return whether there is a part, even one without text."""
        return bool(self.parts)


def _shape(model: type[BaseModel], required: Mapping[str, Any] | None = None, **inner: Build) -> Build:
    """Return a function that builds a model from JSON.

    Args:
        model: the model class.
        required: values of missing fields that have no default.
        inner: functions that build the values of single fields.
    """
    fields = model.model_fields
    defaults = {
        name: None if field.default is PydanticUndefined else field.default for name, field in fields.items()
    } | dict(required or {})
    count, builders = len(defaults), tuple(inner.items())

    def build(raw: Any) -> Any:
        values = defaults | raw
        extra: Json = {}
        if len(values) != count:
            extra = {name: values.pop(name) for name in raw if name not in defaults}
        for name, each in builders:
            value = values[name]
            if value is not None:
                values[name] = each(value)
        # The result is the same as that of pydantic's `model_construct`.
        shape = _new(model)
        _set_values(shape, values)
        _set_fields(shape, set(raw))
        _set_extra(shape, extra)
        _set_private(shape, None)
        return shape

    return build


def _each(build: Build, max_entries: int) -> Build:
    def built(raw: Any) -> list[Any]:
        if len(raw) > max_entries:
            raise ValueError(f"The model server's stream has a chunk with {len(raw)} entries, over {max_entries}.")
        return [build(each) for each in raw if each is not None]

    return built


def _numbered(build: Build, max_entries: int) -> Build:
    """Return a function that builds a list of models with an `index`, by which the host's router groups them.

    TGI sends a single call without a list around it.
    """
    built = _each(build, max_entries)

    def numbered(raw: Any) -> list[Any]:
        entries: list[Any] = built([raw] if isinstance(raw, dict) else raw)
        for each in entries:
            if isinstance(each.index, list | dict):
                raise TypeError("An index is not a number.")
        return entries

    return numbered


_COUNTS: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
_DIGITS: Final = 16
_MAX_CHOICES: Final = 128
_MAX_CALLS: Final = 1024
_MAX_TOKENS: Final = 32_768
"""Maximum number of each in one chunk: a few bytes of JSON become an object of a kilobyte."""

_LOGPROB: Final = _shape(
    ChatCompletionTokenLogprob, {"top_logprobs": []}, top_logprobs=_each(_shape(TopLogprob), _MAX_CHOICES)
)
_CALL: Final = _shape(ChoiceDeltaToolCall, function=_shape(ChoiceDeltaToolCallFunction))
_CHOICE: Final = _shape(
    Choice,
    {"index": 0, "delta": {}},
    delta=_shape(
        ChoiceDelta,
        content=TextOfParts.of,
        tool_calls=_numbered(_CALL, _MAX_CALLS),
        function_call=_shape(ChoiceDeltaFunctionCall),
    ),
    logprobs=_shape(ChoiceLogprobs, content=_each(_LOGPROB, _MAX_TOKENS), refusal=_each(_LOGPROB, _MAX_TOKENS)),
)


def _if_object(build: Build) -> Build:
    """Return a function that builds a model from an object; None from anything else."""
    return lambda raw: build(raw) if isinstance(raw, dict) else None


_USAGE: Final = _shape(
    CompletionUsage,
    {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    prompt_tokens_details=_if_object(_shape(PromptTokensDetails)),
    completion_tokens_details=_if_object(_shape(CompletionTokensDetails)),
)


def _counted(usage: Json) -> Json:
    """Return a usage whose counts are integers, with which the host calculates, without those that are no counts."""
    odd = {name: _count(usage[name]) for name in _COUNTS if type(usage.get(name, 0)) is not int}
    if not odd:
        return usage
    counts = {name: count for name, count in odd.items() if count is not None}
    return {name: value for name, value in usage.items() if name not in odd} | counts


def _count(value: Any) -> int | None:
    """Return a count, which some servers send as a float or as text; None if it is none."""
    try:
        return int(value) if isinstance(value, float) or (isinstance(value, str) and len(value) <= _DIGITS) else None
    except (ValueError, OverflowError):
        return None


_CHUNK: Final = _shape(
    ChatCompletionChunk,
    {"id": "", "created": 0, "model": "", "object": "chat.completion.chunk", "choices": []},
    choices=_numbered(_CHOICE, _MAX_CHOICES),
    usage=_if_object(lambda raw: _USAGE(_counted(raw))),
)


def _as_chunk(raw: Any) -> Any:
    """Return a whole answer as a chunk."""
    return {**raw, "choices": [_with_delta(each) for each in raw["choices"]], "object": "chat.completion.chunk"}


def _with_delta(choice: Any) -> Any:
    """Return a choice with a message, or a text as of an older API, as one with a delta.

    Perplexity sends the message so far beside each delta.
    """
    if isinstance(delta := choice.get("delta"), str):
        return {**choice, "delta": {"content": delta}}
    if delta:
        return {name: value for name, value in choice.items() if name != "message"}
    if isinstance(message := choice.get("message"), dict):
        return {**choice, "delta": message}
    return {**choice, "delta": {"content": text}} if isinstance(text := choice.get("text"), str) else choice


def chat_chunk(raw: Any) -> ChatCompletionChunk:
    """Build one chunk of a chat completion's stream. One that is null or an empty list says nothing.

    Raises:
        ValueError: the JSON is not a chunk.
    """
    raw = raw or {}
    try:
        if (choices := raw.get("choices")) and (
            "delta" not in (first := choices[0]) or "message" in first or type(first["delta"]) is str
        ):
            raw = _as_chunk(raw)
        chunk: ChatCompletionChunk = _CHUNK(raw)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError("The model server's stream contains an event that is not a chunk.") from error
    return chunk


def whole[Answer: (ChatCompletion, Completion)](model: type[Answer], raw: Json) -> Answer:
    """Build an answer that was not streamed.

    Raises:
        ValueError: it has no choices.
    """
    choices = raw.get("choices")
    if not isinstance(choices, list) or not all(isinstance(each, dict) for each in choices):
        raise ValueError("The model server's answer has no choices.")
    return model.construct(**raw)
