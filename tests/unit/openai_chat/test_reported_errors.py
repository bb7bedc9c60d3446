"""Errors of model servers keep their words and their status, in whatever form they come."""

from __future__ import annotations

import json
from typing import Any, Final

import httpx2
import openai
import pytest

from llama_stack_openai_chat.chunks import chat_chunk
from llama_stack_openai_chat.connection import Head
from llama_stack_openai_chat.errors import from_answer, from_status, message_of, reported, status_in, words_of
from llama_stack_openai_chat.events import EventReader

WORDS: Final = "the GPU fell off"
RAW: Final = json.dumps({"error": {"message": WORDS, "type": "invalid_request_error"}})
FORMS: Final[dict[str, tuple[Any, int | None]]] = {
    "OpenAI": ({"error": {"message": WORDS, "type": "server_error", "code": None}}, None),
    "status as code": ({"error": {"message": WORDS, "code": 503}}, 503),
    "status as text": ({"error": {"message": WORDS, "code": "429"}}, 429),
    "text": ({"error": WORDS}, None),
    "nested": ({"error": {"error": {"message": WORDS}}}, None),
    "MiniMax": ({"base_resp": {"status_code": 1002, "status_msg": WORDS}, "choices": None}, 429),
    "MiniMax, http_code": ({"type": "error", "error": {"message": WORDS, "http_code": "400"}}, 400),
    "GLM": ({"error": {"code": "1302", "message": WORDS}}, 429),
    "GLM gateway": ({"code": 500, "msg": WORDS, "success": False}, 500),
    "vLLM": ({"object": "error", "message": WORDS, "type": "BadRequestError", "code": 400}, 400),
    "FastAPI": ({"detail": WORDS}, None),
    "FastAPI list": ({"detail": [{"loc": ["body", "top_p"], "msg": WORDS, "type": "missing"}]}, None),
    "OpenRouter, text": (
        {"error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": WORDS}}},
        429,
    ),
    "OpenRouter, JSON": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": RAW, "provider_name": "Azure"},
            }
        },
        400,
    ),
    "AWS": ({"__type": "ValidationException", "code": 400, "Message": WORDS}, 400),
    "FastChat": ({"text": WORDS, "error_code": 50001}, None),
    "Databricks": ({"error_code": "BAD_REQUEST", "message": WORDS}, None),
    "SiliconFlow": ({"code": 20015, "message": WORDS, "data": None}, None),
    "Spring": ({"timestamp": "2026", "status": 400, "error": "Bad Request", "message": WORDS, "path": "/v1"}, 400),
    "Spring, 500": ({"status": 500, "error": "Internal Server Error", "message": WORDS}, 500),
    "NestJS": ({"statusCode": 400, "error": "Bad Request", "message": [WORDS]}, 400),
    "details": ({"error": "Validation failed", "details": [{"field": "GPU", "message": WORDS}]}, None),
    "OAuth": ({"error": "invalid_request", "error_description": WORDS}, None),
    "reversed": ({"error": WORDS, "message": "Bad Request"}, None),
    "Google": (
        {"error": {"code": 400, "message": WORDS, "details": [{"@type": "x/DebugInfo", "detail": WORDS * 2}]}},
        400,
    ),
    "error_msg": ({"error_msg": WORDS}, None),
    "errorMessage": ({"errorMessage": WORDS}, None),
    "statusCode": ({"statusCode": 429, "message": WORDS}, 429),
    "MiniMax, beside choices": (
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "base_resp": {"status_code": 1027, "status_msg": WORDS}},
        400,
    ),
    "Spark": ({"code": 10014, "message": WORDS, "choices": [{"delta": {}, "finish_reason": "stop"}]}, None),
    "vLLM, beside choices": ({"object": "error", "message": WORDS, "choices": [{"delta": {"content": "a"}}]}, None),
    "no success beside choices": ({"success": False, "msg": WORDS, "choices": [{"delta": {}}]}, None),
    "status of success, and an error": ({"error": {"code": 200, "message": WORDS}}, None),
    "FastAPI object": ({"detail": {"error": {"message": WORDS}}}, None),
}
REQUEST: Final = httpx2.Request("POST", "http://model/v1")


@pytest.mark.parametrize("form", FORMS)
def test_error_keeps_its_words_and_status(form: str) -> None:
    value, status = FORMS[form]
    error = reported(value)
    assert words_of(error).removeprefix("body.top_p: ") == WORDS
    assert status_in(error) == status
    assert from_answer(REQUEST, error).status_code == (status or 502)


def test_error_with_a_part_of_its_text_as_the_key_is_read() -> None:
    """As Ollama sent it (its issue 11781)."""
    error = reported({"error parsing tool call": "invalid character 'c'"})
    assert words_of(error) == "error parsing tool call: invalid character 'c'"


@pytest.mark.parametrize(
    "value",
    [
        {"error_count": "none"},
        {"error parsing": "x", "id": "c"},
        {"choices": [], "usage": {}},
        {"choices": [{}], "base_resp": {"status_code": 0, "status_msg": ""}},
        {"base_resp": {"status_code": 0, "status_msg": "success"}, "choices": []},
        {"type": "ping"},
        {"error": {"code": 0, "message": ""}, "choices": [{}]},
        {"error": {"code": "Success", "message": "OK"}, "choices": [{}]},
        {"code": 0, "message": "Success", "choices": [{}]},
        {"code": 200, "msg": "success", "usage": {"prompt_tokens": 9}},
        {"code": 200, "msg": "fine", "choices": [{}]},
        {"message": "Hello", "choices": [{}]},
        {"error": None, "choices": []},
        {"id": "c", "object": "chat.completion.chunk", "choices": []},
        [],
        "error",
        None,
    ],
)
def test_what_is_no_error_is_none(value: Any) -> None:
    assert reported(value) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<html><head><title>413 Request Entity Too Large</title></head></html>", "413 Request Entity Too Large"),
        (b"\n<p>Too <b>large</b></p>", "Too large"),
        (b"", "(No reason was given for the status 413.)"),
        (b"{", "{"),
    ],
)
def test_refusal_that_is_no_json_is_a_text(content: bytes, said: str) -> None:
    error = from_status(REQUEST, Head(413), content)
    assert words_of(error.body) == said


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": {"content": WORDS}}, WORDS),
        ({"text": WORDS}, WORDS),
        ({"error": {"text": WORDS, "id": "r 1"}}, WORDS),
        ({"error": {"description": WORDS, "type": "bad"}}, WORDS),
        ({"errors": {"user": [WORDS]}}, WORDS),
        ({"errors": [{"title": "Bad", "explanation": WORDS}]}, WORDS),
        ({"result": {"status": "failed", "cause": {"why": WORDS}}}, WORDS),
        ({"error": {"text": WORDS, "traceback": "in " * 99, "help_url": "see it " * 99}}, WORDS),
        ({"error": str({"error": WORDS, "category": "x"})}, WORDS),
        ({"error": {"message": str({"error": {"message": WORDS, "code": 400}})}}, WORDS),
        ({"detail": str({"message": WORDS})}, WORDS),
        ({"error": {"n": 1}}, '{"n":1}'),
        ({"error": {"code": "odd"}}, '{"code":"odd"}'),
        ({"error": "{'n': 1"}, "{'n': 1"),
        ([{"error": {"text": WORDS}}], WORDS),
    ],
    ids=str,
)
def test_error_in_an_odd_form_keeps_its_words(body: Any, said: str) -> None:
    error = from_status(REQUEST, Head(400), json.dumps(body).encode())
    assert message_of(error) == said
    assert error.message == f"Error code: 400 - {said}"


def test_list_of_invalid_fields_as_python_stays_as_it_is() -> None:
    listed = str([{"loc": ["body", "user"], "msg": "Extra inputs"}])
    for text in (listed, str({"detail": listed})):
        assert "'loc'" in message_of(from_status(REQUEST, Head(400), json.dumps({"error": text}).encode()))


def test_texts_of_a_wide_error_are_read_in_part() -> None:
    wide = {f"n{number}": {"text": "It is odd"} for number in range(10_000)}
    assert message_of(from_status(REQUEST, Head(400), json.dumps(wide).encode())) == "It is odd"
    last = {**dict.fromkeys(map(str, range(100)), 1), "text": "It is odd"}
    assert message_of(from_status(REQUEST, Head(400), json.dumps(last).encode())).startswith('{"0":1')


def test_error_of_tencent_in_an_answer_is_one() -> None:
    value = {"Response": {"Error": {"Code": "InvalidParameter", "Message": "It is odd"}, "RequestId": "r"}}
    assert words_of(reported(value)) == "It is odd"


def test_field_of_a_list_is_named() -> None:
    assert words_of({"error": "Validation failed", "details": [{"field": "user", "message": "is not known"}]}) == (
        "user: is not known"
    )


def test_texts_of_a_deep_error_are_read_in_part() -> None:
    names = ("message", "Message", "msg", "status_msg", "detail", "details", "error_message", "error_msg")
    reads = 0

    class Counted(dict[str, Any]):
        def get(self, *args: Any) -> Any:
            nonlocal reads
            reads += args[0] == "error_code"
            return super().get(*args)

    def nested(depth: int) -> Any:
        return Counted({name: nested(depth - 1) for name in names}) if depth else ""

    assert words_of(nested(5)) == ""
    assert 1 < reads < 200


def events(stream: str) -> list[Any]:
    reader = EventReader(chat_chunk, lambda: REQUEST)
    found: list[Any] = []
    for start in range(0, len(stream), 7):
        found += reader.read(stream[start : start + 7].encode())
        if reader.done:
            return found
    return [*found, *reader.read(b"")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "frame", ["data: {}\n\n", "error: {}\n\n", "event: error\ndata: {}\n\n", "{}\n\n", "{}", "{}\ndata: [DONE]\n\n"]
)
def test_error_within_stream_keeps_its_words(form: str, frame: str) -> None:
    with pytest.raises(openai.APIError, match=WORDS):
        events('data: {"choices":[{"delta":{"content":"a"}}]}\n\n' + frame.replace("{}", json.dumps(FORMS[form][0])))


@pytest.mark.parametrize("text", [f"event: error\ndata: {WORDS}\n\n", f"error: {WORDS}\n\n"])
def test_error_as_text_keeps_its_words(text: str) -> None:
    with pytest.raises(openai.APIError, match=WORDS):
        events(text)


def test_words_instead_of_an_event_are_kept() -> None:
    with pytest.raises(openai.APIError, match="'Internal Server Error'"):
        events('data: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: Internal Server Error\n\n')


def test_json_over_several_lines_instead_of_stream_keeps_its_words() -> None:
    with pytest.raises(openai.APIError, match=WORDS):
        events(json.dumps(FORMS["OpenAI"][0], indent=2))


def test_page_instead_of_stream_keeps_its_title() -> None:
    with pytest.raises(openai.APIError, match="502 Bad Gateway"):
        events("<html>\n<head><title>502 Bad Gateway</title></head>\n\n<body>data: no</body></html>\n")


def test_empty_frame_is_ignored() -> None:
    [chunk] = events('data: \n\ndata:\n\ndata: {"choices":[{"delta":{"content":"a"}}]}\n\ndata: [DONE]\n\n')
    assert chunk.choices[0].delta.content == "a"


@pytest.mark.parametrize("done", ["[done]", "DONE", '"[DONE]"', " [DONE] "])
def test_end_of_the_stream_in_other_forms_is_one(done: str) -> None:
    [chunk] = events(f'data: {{"choices":[{{"delta":{{"content":"a"}}}}]}}\n\ndata: {done}\n\ndata: no\n\n')
    assert chunk.choices[0].delta.content == "a"


@pytest.mark.parametrize("sign", ["ping", '"ping"', "[HEARTBEAT]", "[START]", ": keep-alive", "keepalive"])
def test_sign_of_life_as_data_is_none_of_the_answer(sign: str) -> None:
    *signs, chunk = events(f'data: {sign}\n\ndata: {{"choices":[{{"delta":{{"content":"a"}}}}]}}\n\n')
    assert [each.choices for each in signs] == [[]]
    assert chunk.choices[0].delta.content == "a"


@pytest.mark.parametrize("data", ["[ERROR]", "unauthorized", '"no"'])
def test_data_that_is_no_sign_of_life_fails(data: str) -> None:
    with pytest.raises((openai.APIError, ValueError)):
        events(f"data: {data}\n\n")


@pytest.mark.parametrize(
    "choice",
    [{"delta": "a"}, {"delta": {"content": {"type": "text", "text": "a"}}}, {"delta": {"content": {"text": "a"}}}],
)
def test_text_in_place_of_an_object_is_read(choice: Any) -> None:
    usage = {"prompt_tokens": 1, "prompt_tokens_details": [], "completion_tokens_details": "none"}
    [chunk] = events(f"data: {json.dumps({'choices': [choice], 'usage': usage})}\n\n")
    assert chunk.choices[0].delta.content == "a"
    assert chunk.usage.prompt_tokens_details is None


def test_whole_answer_within_stream_is_chunk() -> None:
    answer = {"object": "chat.completion", "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}]}
    [chunk] = events(f"data: {json.dumps(answer)}\n\ndata: [DONE]\n\n")
    assert (chunk.choices[0].delta.content, chunk.choices[0].finish_reason) == ("a", "stop")
