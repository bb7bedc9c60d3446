"""What a refusal asks for is remembered if it is of the model, and not if it is of one request or one moment."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.lasting import media_marks
from llama_stack_responses.chat.adaptation.refusal import Refusal
from llama_stack_responses.chat.adaptation.registry import asked_by, lasts
from tests.support.one_pixel import ONE_PIXEL

type Json = dict[str, Any]

TOOL: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
FORM: Final[Json] = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
IMAGE: Final[Json] = {"type": "image_url", "image_url": {"url": ONE_PIXEL}}
PLAIN: Final[Json] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
SEEN: Final[Json] = PLAIN | {"messages": [{"role": "user", "content": [IMAGE]}]}
TOOLS: Final[Json] = PLAIN | {"tools": [TOOL]}


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (SEEN | {"tools": [TOOL]}, "Function calling is not supported together with image input"),
        (
            TOOLS | {"response_format": FORM},
            "Function calling with a response mime type: 'application/json' is unsupported",
        ),
        (TOOLS | {"response_format": FORM}, "json mode cannot be combined with tool/function calling"),
        (
            TOOLS | {"reasoning_effort": "low"},
            "Function tools with reasoning_effort are not supported for gpt-5.4 in /v1/chat/completions.",
        ),
        (
            PLAIN | {"temperature": 0.5, "reasoning_effort": "low"},
            "Unsupported parameter: 'temperature' is not supported when reasoning effort is set.",
        ),
        (
            PLAIN | {"temperature": 0.5, "reasoning_effort": "low"},
            "`temperature` may only be set to 1 when thinking is enabled.",
        ),
        (
            TOOLS | {"tool_choice": "required", "reasoning_effort": "low"},
            "Thinking may not be enabled when tool_choice forces tool use.",
        ),
        (
            PLAIN | {"temperature": 0.5, "top_p": 0.5},
            "`temperature` and `top_p` cannot both be specified for this model. Please use only one.",
        ),
        (PLAIN | {"logprobs": True, "reasoning_effort": "low"}, "logprobs are not supported with reasoning models"),
        (TOOLS | {"parallel_tool_calls": True}, "strict is not supported when parallel_tool_calls is enabled"),
        (PLAIN | {"response_format": FORM}, "`response_format` does not support streaming"),
    ],
)
def test_refusal_of_two_parts_together_is_not_remembered(chat: Json, words: str) -> None:
    refusal = Refusal(400, words)
    steps = asked_by(refusal, chat)
    assert steps
    assert not any(lasts(step, refusal, chat) for step in steps)


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (
            PLAIN | {"response_format": FORM},
            "'response_format' of type 'json_schema' is not supported with this model.",
        ),
        (TOOLS, "Tools with strict=True are not supported by this model"),
        (TOOLS | {"temperature": 0.5, "top_p": 0.5}, "Unsupported parameters: temperature, top_p"),
        (
            TOOLS | {"parallel_tool_calls": True, "reasoning_effort": "low"},
            "litellm.UnsupportedParamsError: ollama does not support parameters: ['parallel_tool_calls'], for model=m.",
        ),
        (TOOLS, "This model doesn't support tool use in streaming mode."),
        (TOOLS, "Tool call with streaming is currently not supported by cohere.command-r-plus"),
        (PLAIN | {"user": "u", "reasoning_effort": "low"}, "'user' is not supported with reasoning models"),
        (
            TOOLS | {"user": "u", "temperature": 0.5},
            "unknown field `user`, expected one of `model`, `messages`, `tools`, `temperature` when streaming",
        ),
    ],
)
def test_refusal_of_one_part_is_remembered(chat: Json, words: str) -> None:
    refusal = Refusal(400, words)
    steps = asked_by(refusal, chat)
    assert steps
    assert all(lasts(step, refusal, chat) for step in steps)


def test_of_two_parts_the_one_that_only_steers_is_dropped() -> None:
    chat = PLAIN | {"temperature": 0.5, "reasoning_effort": "low"}
    words = "Unsupported parameter: 'temperature' is not supported when reasoning effort is set."
    assert asked_by(Refusal(400, words), chat) == [Step("drop", "temperature")]


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        (PLAIN, "Temporary failure: streaming disabled during maintenance"),
        (PLAIN, "stream not allowed while the model is warming up"),
        (TOOLS | {"parallel_tool_calls": True}, "parallel_tool_calls temporarily unavailable"),
        (PLAIN | {"temperature": 0.5}, "temperature service unavailable"),
        (PLAIN | {"reasoning_effort": "low"}, "Reasoning is not available right now"),
        (TOOLS | {"tool_choice": "required"}, "tool_choice required could not be satisfied by the model"),
        (PLAIN | {"user": "u"}, "user: overloaded, please retry"),
        (
            TOOLS | {"tool_choice": "required"},
            "The model did not produce a tool call although tool_choice was required",
        ),
    ],
)
def test_refusal_of_one_moment_is_not_remembered(chat: Json, words: str) -> None:
    refusal = Refusal(400, words)
    assert not any(lasts(step, refusal, chat) for step in asked_by(refusal, chat))


@pytest.mark.parametrize(
    "words",
    [
        "System is busy and not accepting requests, please retry",
        "The system does not support this request at the moment",
        "system overloaded: not accepting new work",
        "operating system not supported by sandbox",
        "Unknown error (reasoning_effort=low)",
    ],
)
def test_words_about_a_server_ask_for_no_change(words: str) -> None:
    messages = [{"role": "system", "content": "Be kind."}, *PLAIN["messages"]]
    assert asked_by(Refusal(400, words), PLAIN | {"messages": messages, "reasoning_effort": "low"}) == []


@pytest.mark.parametrize(
    "words",
    [
        "Invalid image: the file does not have a valid image header",
        "The provided data does not have a valid image signature",
        "Could not fetch: the response does not have image content",
        "Server cannot accept image: checksum mismatch",
        "cannot see image: URL returned 403",
        "This image is not allowed by the content policy",
        "Our policy does not allow this image",
        "The safety system does not allow images like this one",
        "We do not accept image content that violates our policies",
        "The image is not available at the given URL",
        "image not available",
        "Image is not supported: CMYK color space",
        "images are not supported in message 3 with role tool",
        "image not enabled for your tier",
        "Images not accepted: daily quota of 100 images used up",
    ],
)
def test_words_about_one_image_or_a_rule_keep_the_images(words: str) -> None:
    assert Step("no_images") not in asked_by(Refusal(400, words), SEEN)


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        ("user", "user must be a string"),
        ("safety_identifier", "safety_identifier must be a string of at most 64 characters"),
        ("prompt_cache_key", "prompt_cache_key: expected string"),
        ("service_tier", "Invalid type for 'service_tier': expected a string"),
    ],
)
def test_refused_hint_is_dropped_alone(hint: str, words: str) -> None:
    assert asked_by(Refusal(400, words), SEEN | {hint: "x"}) == [Step("drop", hint)]


@pytest.mark.parametrize(
    "words",
    [
        "Invalid 'temperature': 1.5 is unsupported, value must be <= 1",
        "temperature must be \u2264 1 (unsupported value 1.5)",
        "temperature=1.5 not allowed, allowed range [0, 1]",
    ],
)
def test_value_out_of_bounds_is_no_unknown_parameter(words: str) -> None:
    assert asked_by(Refusal(400, words), PLAIN | {"temperature": 1.5}) == []


def test_place_of_the_whole_leaves_the_word_for_the_part() -> None:
    """Cerebras."""
    refusal = Refusal(400, "Tools with strict=True are not supported by this model", places=("tools",))
    assert asked_by(refusal, TOOLS) == [Step("drop", "tools.function.strict")]


def test_media_are_told_apart_by_their_ends() -> None:
    other = {"type": "image_url", "image_url": {"url": f"{ONE_PIXEL}A"}}
    marks = [set(media_marks(SEEN | {"messages": [{"content": [each]}]})) for each in (IMAGE, IMAGE, other)]
    assert marks[0] == marks[1] != marks[2]
