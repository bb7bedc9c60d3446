"""Counting the tokens of an input without generating."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support.openai_client import create, function, sent
from tests.support.upstream import Upstream
from tests.support.upstream_server import tokens
from tests.support.wire import Json, Wire, error_of

pytestmark = pytest.mark.live

MODEL = "local/echo"
TURNS: Any = [
    {"role": "user", "content": "What is the capital of Portugal?"},
    {"role": "assistant", "content": "Lisbon."},
    {"role": "user", "content": "And of Norway?"},
]


def test_input_token_count_equals_the_prompt_of_the_model_server(client: openai.OpenAI, upstream: Upstream) -> None:
    request: Json = {"model": MODEL, "input": TURNS, "instructions": "Be kind.", "tools": [function("weather", "city")]}
    counted = client.responses.input_tokens.count(**request)
    assert counted.object == "response.input_tokens"
    assert upstream.requests() == []
    create(client, **request)
    assert counted.input_tokens == tokens(sent(upstream, "echo"))


def test_input_token_count_accepts_the_fields_of_a_background_response(client: openai.OpenAI) -> None:
    fields = {"background": True, "background_options": {"completion_window": "2h"}}
    counted = client.responses.input_tokens.count(model=MODEL, input="Hello", extra_body=fields)
    assert counted == client.responses.input_tokens.count(model=MODEL, input="Hello")


def test_input_token_count_includes_the_history(client: openai.OpenAI, upstream: Upstream) -> None:
    before = create(client, model=MODEL, input="Hello there")["id"]
    upstream.reset()
    request: Json = {"model": MODEL, "input": "And now?", "previous_response_id": before}
    counted = client.responses.input_tokens.count(**request).input_tokens
    create(client, **request)
    assert counted == tokens(sent(upstream, "echo"))
    assert counted > client.responses.input_tokens.count(model=MODEL, input="And now?").input_tokens


def test_input_token_count_without_tokenizer_is_an_estimate(client: openai.OpenAI) -> None:
    """The host's own provider has no tokenizer."""
    text = "The quick brown fox jumps over the lazy dog. " * 100
    estimated = client.responses.input_tokens.count(model="vllm/echo", input=text).input_tokens
    assert 900 < estimated < 1_300


def test_input_token_count_uses_the_tokenizer_of_the_profile(client: openai.OpenAI) -> None:
    """Each word is one token. The estimate would be one and a half."""
    short, long = (
        client.responses.input_tokens.count(model="vllm/tokenized", input=" hello" * words).input_tokens
        for words in (500, 5_000)
    )
    assert 500 < short < 520
    assert long - short == 4_500


def test_invalid_input_token_requests_are_refused(client: openai.OpenAI, wire: Wire, upstream: Upstream) -> None:
    count = client.responses.input_tokens.count
    wrong: list[tuple[Json, type[openai.APIStatusError], str, str]] = [
        ({"input": "Hi"}, openai.BadRequestError, "model", "missing_required_parameter"),
        ({"model": MODEL}, openai.BadRequestError, "input", "missing_required_parameter"),
        ({"model": MODEL, "input": 5}, openai.BadRequestError, "input", "invalid_type"),
        ({"model": "nowhere/x", "input": "Hi"}, openai.NotFoundError, "model", "model_not_found"),
        (
            {"model": MODEL, "input": "Hi", "personality": "friendly"},
            openai.BadRequestError,
            "personality",
            "unsupported_parameter",
        ),
        (
            {"model": MODEL, "input": "Hi", "previous_response_id": "resp_000000000000000000000000"},
            openai.BadRequestError,
            "previous_response_id",
            "previous_response_not_found",
        ),
    ]
    for request, kind, param, code in wrong:
        with pytest.raises(kind) as refused:
            count(**request)
        assert (refused.value.param, refused.value.code) == (param, code)
    error_of(wire.http.post("/responses/input_tokens", content=b"["), 400)
    assert upstream.requests() == []


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
def test_input_tokens_path_is_not_read_as_a_response_id(wire: Wire, method: str) -> None:
    found = error_of(wire.http.request(method, "/responses/input_tokens"), 405)
    assert found["code"] == "method_not_supported"
