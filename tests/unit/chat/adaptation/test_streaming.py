"""Model servers that do not stream, or not with tools."""

from typing import Any, Final

import pytest

from llama_stack_responses.chat.adaptation.adaptation import Step
from llama_stack_responses.chat.adaptation.refusal import Refusal
from llama_stack_responses.chat.adaptation.registry import adapted, asked_by

type Json = dict[str, Any]

PLAIN: Final[Json] = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
TOOLS: Final[Json] = PLAIN | {"tools": [{"type": "function", "function": {"name": "weather", "parameters": {}}}]}


@pytest.mark.parametrize(
    ("text", "places", "kind"),
    [
        # Bedrock, OCI_GenAI_access_gateway issue 10, OpenAI
        ("This model doesn't support tool use in streaming mode.", (), "no_stream_with_tools"),
        ("Tool call with streaming is currently not supported by cohere.command-r-plus", (), "no_stream_with_tools"),
        ("Unsupported value: 'stream' does not support true with this model.", ("stream",), "no_stream"),
        ("Streaming is not supported for this endpoint.", (), "no_stream"),
    ],
)
def test_server_that_does_not_stream_is_asked_for_an_answer_in_one_piece(
    text: str, places: tuple[str, ...], kind: str
) -> None:
    refusal = Refusal(400, text, places=places)
    assert asked_by(refusal, TOOLS) == [Step(kind)]
    chat, applied = adapted(TOOLS, [Step(kind)])
    assert (chat["stream"], "stream_options" in chat, applied) == (False, False, (Step(kind),))
    assert adapted(PLAIN, [Step(kind)])[0]["stream"] is (kind == "no_stream_with_tools")
    assert adapted(chat, [Step(kind)]) == (chat, ())


@pytest.mark.parametrize(
    "text",
    [
        "Image input is not available when streaming",
        "response_format is not supported with streaming",
        "logprobs are not allowed while streaming",
        "images are not supported during streaming",
    ],
)
def test_what_is_refused_in_a_stream_is_kept_and_the_stream_is_not(text: str) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    messages = [{"role": "user", "content": [image]}]
    chat = PLAIN | {"messages": messages, "response_format": {"type": "json_object"}, "logprobs": True}
    assert asked_by(Refusal(400, text), chat) == [Step("no_stream")]


@pytest.mark.parametrize("text", ["Unsupported parameter: 'stream_options'", "The stream was closed by the user."])
def test_refusal_of_something_else_keeps_the_stream(text: str) -> None:
    kinds = {step.kind for step in asked_by(Refusal(400, text), TOOLS)}
    assert not kinds & {"no_stream", "no_stream_with_tools"}
