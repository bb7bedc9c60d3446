"""Which changes the words of a refusal ask for: those of what it names, and none of one image, a rule or the server."""

from __future__ import annotations

from typing import Any, Final

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.refusal import Refusal
from llama_stack_responses.chat.adaptation.registry import asked_by
from tests.support.one_pixel import ONE_PIXEL

type Json = dict[str, Any]

TOOL: Final[Json] = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
IMAGE: Final[Json] = {"type": "image_url", "image_url": {"url": ONE_PIXEL}}
PLAIN: Final[Json] = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
SEEN: Final[Json] = PLAIN | {"messages": [{"role": "user", "content": [IMAGE]}]}
TOOLS: Final[Json] = PLAIN | {"tools": [TOOL]}


def test_of_two_parts_the_one_that_only_steers_is_dropped() -> None:
    chat = PLAIN | {"temperature": 0.5, "reasoning_effort": "low"}
    words = "Unsupported parameter: 'temperature' is not supported when reasoning effort is set."
    assert asked_by(Refusal(400, words), chat) == [Step("drop", "temperature")]


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


def test_place_of_the_whole_leaves_the_word_for_the_part() -> None:
    """Cerebras."""
    refusal = Refusal(400, "Tools with strict=True are not supported by this model", places=("tools",))
    assert asked_by(refusal, TOOLS) == [Step("drop", "tools.function.strict")]
