"""The parameters of a request, and values that are refused by field before generation."""

from datetime import date
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llama_stack_gpt_oss.engine.config import GenerationDefaults
from llama_stack_gpt_oss.errors import InvalidRequest
from llama_stack_gpt_oss.process.grammars import GRAMMAR_CHARACTERS
from llama_stack_gpt_oss.requests import ParsedRequest, RequestParser
from llama_stack_gpt_oss.stops import StopWatch
from llama_stack_gpt_oss.vocabulary import Vocabulary

from .support.lessons import WEATHER

TODAY = date(2026, 1, 1)
LONG_SCHEMA = {
    "type": "json_schema",
    "json_schema": {"schema": {"type": "object", "description": "word " * (GRAMMAR_CHARACTERS // 5)}},
}
CALL_OF_LONG_NAME = {"role": "assistant", "tool_calls": [{"function": {"name": "f" * 257}}]}
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def parser(vocabulary: Vocabulary) -> RequestParser:
    defaults = GenerationDefaults(stop_ids=frozenset([200002, 200012]), temperature=0.7, top_p=0.9)
    return RequestParser(vocabulary, defaults, context=1000)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def chat(parser: RequestParser, **fields: Any) -> ParsedRequest:
    return parser.chat(SimpleNamespace(**{"messages": HELLO, **fields}), TODAY)


def test_missing_parameters_default_to_checkpoint(parser: RequestParser) -> None:
    params = chat(parser).request.params
    assert (params.temperature, params.top_p, params.stop_ids) == (0.7, 0.9, frozenset([200002, 200012]))
    assert (params.max_tokens, params.top_logprobs, params.priority, params.cache_salt) == (1000, None, 0, "")
    assert chat(parser).request.params.seed != params.seed


def test_given_parameters_are_used(parser: RequestParser) -> None:
    request = chat(
        parser,
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=7,
        n=3,
        stop="x",
        max_tokens=5,
        max_completion_tokens=9,
        logprobs=True,
        top_logprobs=2,
        priority=-1,
        cache_salt="me",
        stream_options={"include_usage": True},
    )
    params = request.request.params
    assert (params.temperature, params.top_p, params.seed, params.max_tokens) == (0.0, 0.5, 7, 9)
    assert (params.top_logprobs, params.priority, params.cache_salt) == (2, -1, "me")
    assert (params.top_k, params.min_p) == (40, 0.1)
    assert chat(parser, top_k=-1).request.params.top_k == 0
    assert (len(set(request.request.ids)), request.stops, request.logprobs, request.include_usage) == (
        3,
        ("x",),
        True,
        True,
    )


def test_tool_choice_none_hides_tools_from_model(parser: RequestParser) -> None:
    without, automatic = (chat(parser, tools=[WEATHER], tool_choice=choice) for choice in ("none", "auto"))
    assert without.tools == ()
    assert len(without.request.prompt) < len(automatic.request.prompt)
    assert automatic.tools[0].name == "get_weather"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"n": 0}, "n"),
        ({"seed": "x"}, "seed"),
        ({"seed": 1 << 70}, "seed"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"frequency_penalty": 2.1}, "frequency_penalty"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"5": True}}, "logit_bias"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"logit_bias": {"201088": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {str(token): 1 for token in range(301)}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"cache_salt": "x" * 1025}, "cache_salt"),
        ({"response_format": LONG_SCHEMA}, "response_format"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [{"function": {"name": "f", "parameters": ["x"]}}]}, "tools[0].function.parameters"),
        ({"tools": [{"function": {"name": "f" * 257}}]}, "tools[0].function.name"),
        ({"messages": [CALL_OF_LONG_NAME]}, "messages[0].tool_calls[0]"),
    ],
)
def test_invalid_value_is_refused_with_its_field(parser: RequestParser, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        chat(parser, **fields)
    assert refusal.value.param == param


def test_penalties_and_biases_are_read(parser: RequestParser, vocabulary: Vocabulary) -> None:
    """Special tokens are not penalised. Without a penalty, nothing of them is sent to an engine of an older version."""
    params = chat(
        parser, frequency_penalty=-2, presence_penalty=0.5, logit_bias={"5": -100, "200002": 1}
    ).request.params
    assert (params.frequency_penalty, params.presence_penalty) == (-2.0, 0.5)
    assert params.logit_bias == ((5, -100.0), (200002, 1.0))
    assert params.unpenalised == set(vocabulary.special.values())
    neutral = chat(
        parser, frequency_penalty=0, presence_penalty=0.0, logit_bias={}, repetition_penalty=1
    ).request.params
    assert (neutral.logit_bias, neutral.unpenalised) == ((), frozenset())


def test_too_long_prompt_is_refused_with_token_counts(parser: RequestParser) -> None:
    with pytest.raises(
        InvalidRequest, match=r"The prompt has at least 1,\d\d\d tokens, and the context of 1,000"
    ) as refusal:
        chat(parser, messages=[{"role": "user", "content": "word " * 1100}])
    assert refusal.value.code == "context_length_exceeded"


@pytest.mark.parametrize("broken", ["half a pair: \ud83d", nested(200), nested(5000)])
def test_text_that_cannot_be_rendered_is_refused(parser: RequestParser, broken: Any) -> None:
    schema = {"properties": {"a": {"description": broken}}} if isinstance(broken, str) else broken
    with pytest.raises(InvalidRequest, match=r"cannot be written as a gpt-oss prompt|nested too deeply"):
        chat(parser, tools=[{"function": {"name": "f", "parameters": schema}}])


@pytest.mark.parametrize("text", ["a" * 300_000, "1" * 300_000, "\u3042" * 300_000, "aB" * 150_000])
def test_long_text_without_a_break_is_refused(parser: RequestParser, text: str) -> None:
    """The parts of a message are one text."""
    parts = [{"type": "text", "text": text[start : start + 1000]} for start in range(0, len(text), 1000)]
    with pytest.raises(InvalidRequest, match="more than 262,144 characters without a break"):
        chat(parser, messages=[{"role": "user", "content": parts}])
    with pytest.raises(InvalidRequest, match="more than 262,144 characters without a break"):
        parser.completion(SimpleNamespace(prompt=text))


def test_half_a_surrogate_pair_in_bare_prompt_is_refused(parser: RequestParser) -> None:
    with pytest.raises(InvalidRequest, match="not valid Unicode"):
        parser.completion(SimpleNamespace(prompt="half a pair: \ud83d"))


@pytest.mark.parametrize("prompt", ["Hi there", ["Hi there"], [13347, 1354], [[13347, 1354]]])
def test_bare_prompt_is_text_or_tokens(parser: RequestParser, prompt: Any) -> None:
    tokens = parser.completion(SimpleNamespace(prompt=prompt)).request.prompt
    assert len(tokens) == 2


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [13347, 201088]}, "prompt"),
        ({"prompt": [[-1]]}, "prompt"),
        ({"prompt": [1 << 70]}, "prompt"),
        ({"prompt": "a", "echo": True}, "echo"),
        ({"prompt": "a", "logprobs": True}, "logprobs"),
    ],
)
def test_invalid_bare_prompt_is_refused(parser: RequestParser, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parser.completion(SimpleNamespace(**fields))
    assert refusal.value.param == param


@given(st.text("abc", max_size=20), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3), st.data())
def test_text_ends_at_first_stop_however_it_is_cut(text: str, stops: list[str], data: st.DataObject) -> None:
    watch, out, rest = StopWatch(stops), "", text
    while rest and not watch.hit:
        size = data.draw(st.integers(1, len(rest)))
        out += watch.feed(rest[:size])
        rest = rest[size:]
    places = [text.find(stop) for stop in stops if stop in text]
    assert watch.hit == bool(places)
    # Of two stops that end in one piece the first counts; in separate pieces, the one completed first.
    assert text.startswith(out)
    assert all(stop not in out for stop in stops)
    if not places:
        assert out + watch.finish() == text
