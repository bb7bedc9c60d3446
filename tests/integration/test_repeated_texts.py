"""Answers of model servers arrive once and whole, however the servers send them."""

from __future__ import annotations

import json
from typing import Any, Final

import openai
import pytest

from tests.support.openai_client import Json, create, function, stored, stream
from tests.support.upstream import Chunk, Reply, Upstream, reasoning, reply, text, tool_call

pytestmark = pytest.mark.live

ANSWER: Final = "Hello there, world"


def in_lists(*texts: str) -> list[Chunk]:
    """Return texts, each in a chunk whose content is a list of parts."""
    return [{"content": [{"type": "text", "text": each}]} for each in texts]


REPEATED: Final[dict[str, list[list[Chunk]]]] = {
    "cumulative": [text("Hel", "Hello", "Hello there", ANSWER)],
    "cumulative, in two chunks": [text("Hello", ANSWER)],
    "again at the end": [text("Hello", " there,", " world", ANSWER)],
    "again with the finish reason": [
        text("Hello", " there,", " world"),
        [{"delta": {"content": ANSWER}, "finish_reason": "stop"}],
    ],
    "once, and again": [text(ANSWER, ANSWER)],
    "cumulative reasoning": [reasoning("Let", "Let me", "Let me see"), text("Hello", " there,", " world")],
    "reasoning again": [reasoning("Let", " me", " see", "Let me see"), text(ANSWER)],
    "in lists, cumulative": [in_lists("Hello", "Hello there", ANSWER)],
    "in lists, again at the end": [in_lists("Hello", " there,", " world", ANSWER)],
    "again without the whitespace around it": [text("Hello", " there,", " world", "\n", ANSWER)],
    "reasoning as `reasoning`": [reasoning("Let", " me", " see", "Let me see", field="reasoning"), text(ANSWER)],
}
THRICE: Final = ["Row, ", "row, ", "row your boat\n", "Row, row, row your boat\n", "Row!"]


def answer_of(response: Json) -> str:
    [message] = [item for item in response["output"] if item["type"] == "message"]
    assert response["status"] == "completed"
    return str(message["content"][0]["text"])


def reasoning_of(response: Json) -> list[str]:
    return [part["text"] for item in response["output"] if item["type"] == "reasoning" for part in item["content"]]


@pytest.mark.parametrize("form", REPEATED)
def test_repeated_text_arrives_once(client: openai.OpenAI, upstream: Upstream, provider: str, form: str) -> None:
    upstream.script("repeats", reply(*REPEATED[form]))
    streamed = stream(client, model=f"{provider}/repeats", input="Hi")
    assert answer_of(streamed.response).rstrip() == ANSWER
    assert "".join(streamed.texts("output_text")).rstrip() == ANSWER
    assert reasoning_of(streamed.response) == (["Let me see"] if "reasoning" in form else [])
    assert stored(client, streamed.response["id"]) == streamed.response


def test_text_that_repeats_itself_arrives_whole(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script("repeats", reply(text(*THRICE)))
    assert answer_of(stream(client, model=f"{provider}/repeats", input="Hi").response) == "".join(THRICE)


def test_repeated_text_before_a_call_arrives_once(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script("repeats", reply(text("Let me", " see.", "Let me see."), tool_call(0, "c1", "f", "{}")))
    response = stream(client, model=f"{provider}/repeats", input="Hi", tools=[function("f")]).response
    assert [item["type"] for item in response["output"]] == ["message", "function_call"]
    assert answer_of(response) == "Let me see."


def test_cumulative_text_that_changes_fails_the_response(
    client: openai.OpenAI, upstream: Upstream, provider: str
) -> None:
    upstream.script("repeats", reply(text("Hel", "Hello", "Hello there", "Bye")))
    response = stream(client, model=f"{provider}/repeats", input="Hi").response
    assert response["status"] == "failed"
    assert "stream: never" in response["error"]["message"]


# Bodies of other kinds


CHOICE: Final = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
WHOLE: Final = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [CHOICE]}
KINDS: Final = ["application/json", "text/html; charset=utf-8", "text/event-stream", "text/plain", ""]


@pytest.mark.parametrize("kind", KINDS)
def test_events_of_any_content_type_are_an_answer(
    client: openai.OpenAI, upstream: Upstream, provider: str, kind: str
) -> None:
    upstream.script("bodies", reply(*REPEATED["again at the end"], headers={"content-type": kind}))
    streamed = stream(client, model=f"{provider}/bodies", input="Hi")
    assert answer_of(streamed.response) == ANSWER
    assert streamed.texts("output_text") == ["Hello", " there,", " world"]


@pytest.mark.parametrize("kind", KINDS)
def test_whole_answer_in_place_of_a_stream_is_an_answer(
    client: openai.OpenAI, upstream: Upstream, provider: str, kind: str
) -> None:
    upstream.script("bodies", Reply(body=WHOLE, headers={"content-type": kind}))
    streamed = stream(client, model=f"{provider}/bodies", input="Hi")
    assert answer_of(streamed.response) == ANSWER
    assert stored(client, streamed.response["id"]) == streamed.response


def test_whole_answer_within_a_stream_is_an_answer(client: openai.OpenAI, upstream: Upstream, provider: str) -> None:
    upstream.script("bodies", reply([{"raw": f"data: {json.dumps(WHOLE)}\n\n"}], usage=None))
    assert answer_of(create(client, model=f"{provider}/bodies", input="Hi")) == ANSWER


WORDS: Final = "Too many requests for this key."
LIMITED: Final = {"base_resp": {"status_code": 1002, "status_msg": WORDS}}


@pytest.mark.parametrize("streams", [True, False])
def test_error_in_place_of_an_answer_keeps_its_words_and_status(
    client: openai.OpenAI, upstream: Upstream, streams: bool
) -> None:
    upstream.script("bodies", Reply(body=LIMITED))
    params: Any = {"model": "local/bodies", "input": "Hi", "stream": streams}
    with pytest.raises(openai.RateLimitError, match=WORDS):
        client.responses.create(**params)


@pytest.mark.parametrize("kind", ["text/event-stream", "text/plain", ""])
def test_error_in_place_of_events_fails_the_response_with_its_words(
    client: openai.OpenAI, upstream: Upstream, kind: str
) -> None:
    upstream.script("bodies", Reply(body=LIMITED, headers={"content-type": kind}))
    response = stream(client, model="local/bodies", input="Hi").response
    assert response["status"] == "failed"
    assert WORDS in response["error"]["message"]
