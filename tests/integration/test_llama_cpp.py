"""A real model server: llama.cpp with a small model."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.llama_server import CONTEXT_TOKENS
from tests.support.openai_client import Json, ValidatedStream, create, function, stored, stream
from tests.support.process import Child
from tests.support.stack import STARTER, Host, LiveStack
from tests.support.waiting import wait_until

# The model server does not depend on the host; test_openai_chat.py crosses it.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(3), pytest.mark.one_host]

REPOSITORY = Path(__file__).parents[2]
LOADING_SECONDS = 180
NOT_KEPT = httpx.Limits(max_keepalive_connections=0)
"""No keep-alive: the model server may close an idle connection just as the next request is sent."""
GREEDY: Json = {"temperature": 0, "max_output_tokens": 48}
END_OF_TURN = "2"
"""The end-of-turn token. Without it, the model generates until its context is full, for half a minute or more."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A direct client of the model server."""
    log = tmp_path_factory.mktemp("llama") / "llama.log"
    child = Child([sys.executable, "-m", "tests.support.llama_server", "0"], log=log, cwd=REPOSITORY)

    def address() -> str | None:
        match = re.search(r"^listening (\S+)$", log.read_text(errors="replace"), re.MULTILINE)
        return match and match[1]

    try:
        url = child.wait_ready(address, seconds=LOADING_SECONDS)
        with httpx.Client(base_url=url, timeout=60, limits=NOT_KEPT, trust_env=False, verify=False) as http:
            yield http
    finally:
        child.stop()


@pytest.fixture(scope="module")
def client(
    host: Host, stack_env: dict[str, str], llama: httpx.Client, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    """An OpenAI client of a stack over the model server."""
    env = {**stack_env, "INFERENCE_URL": str(llama.base_url.join("v1"))}
    with LiveStack(STARTER, env, tmp_path_factory.mktemp("stack"), host=host) as live, live.client() as client:
        yield client


@pytest.fixture(scope="module")
def model(client: openai.OpenAI) -> str:
    """The id of the one model that the stack lists."""
    [found] = client.models.list()
    assert found.id.startswith("local/")
    return found.id


def text_of(response: Json) -> str:
    """Return the text of a response's single message."""
    [message] = response["output"]
    [part] = message["content"]
    found: str = part["text"]
    return found


def test_llama_cpp_chain_and_resent_history_read_the_same_tokens(client: openai.OpenAI, model: str) -> None:
    introduction = "My name is Ada and I live in Lisbon. Say hello to me in one short sentence."
    question = "What is the name of my city?"
    first = stream(client, model=model, input=introduction, **GREEDY)
    output = text_of(first.response)
    assert len(first.texts("output_text")) > 3
    assert "".join(first.texts("output_text")) == output
    before = first.response["id"]
    second = stream(client, model=model, input=question, previous_response_id=before, **GREEDY).response
    assert "Lisbon" in text_of(second)
    turns = (("user", introduction), ("assistant", output), ("user", question))
    resent = create(client, model=model, input=[{"role": role, "content": text} for role, text in turns], **GREEDY)
    # The prompt has the same tokens whether the server or the client kept the history.
    assert resent["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    for response in (first.response, second, resent):
        assert response["status"] == "completed"
        assert stored(client, response["id"]) == response


def test_llama_cpp_reads_a_prewarmed_prompt_from_its_cache(client: openai.OpenAI, model: str) -> None:
    request: Json = {"model": model, "instructions": "Answer in one word. " * 40}
    options: Any = {"prewarm": True}
    prepared = create(client, **request, input="The code is 1234.", prompt_cache_options=options)
    assert (prepared["status"], prepared["output"]) == ("completed", [])
    read = prepared["usage"]["input_tokens"]
    assert read > 200
    question: Any = [{"role": "user", "content": text} for text in ("The code is 1234.", "What is the code?")]
    answered = create(client, **request, input=question, **GREEDY)
    assert answered["usage"]["input_tokens_details"]["cached_tokens"] > 0.9 * read


def test_llama_cpp_cache_diagnostics_name_what_changed(client: openai.OpenAI, model: str) -> None:
    request: Json = {"model": model, "instructions": "Answer in one word. " * 40, **GREEDY}
    first = create(client, **request, input="The code is 1234.")
    options: Any = {"comparison_response_id": first["id"]}
    turn: Json = {"previous_response_id": first["id"], "prompt_cache_options": options}
    continued = create(client, **request, **turn, input="What is the code?")
    assert continued["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    dated = create(client, **(request | {"instructions": "It is noon. " * 60}), **turn, input="What is the code?")
    diagnostics = dated["prompt_cache_diagnostics"]
    assert (diagnostics["type"], diagnostics["reason"]) == ("cache_miss", "input_changed")
    assert diagnostics["comparison_reusable_tokens"] == first["usage"]["input_tokens"]
    assert diagnostics["cache_missed_tokens"] == dated["usage"]["input_tokens"]


def test_llama_cpp_input_token_count_equals_the_usage(client: openai.OpenAI, model: str) -> None:
    texts: list[Any] = [
        {"role": "user", "content": "Ünïcödé, 你好 <|im_end|>"},
        {"role": "assistant", "content": "Hello."},
    ]
    request: Json = {"instructions": "Be kind.", "input": [*texts, {"role": "user", "content": "And now?"}]}
    counted = client.responses.input_tokens.count(model=model, **request)
    assert counted.object == "response.input_tokens"
    assert counted.input_tokens == create(client, model=model, **request, **GREEDY)["usage"]["input_tokens"]


def test_llama_cpp_truncation_auto_fits_the_context(client: openai.OpenAI, model: str) -> None:
    turns: Any = [{"role": "user", "content": text} for text in ("word " * CONTEXT_TOKENS, "word " * 100, "Say hello.")]
    request: Json = {"model": model, "input": turns, **GREEDY}
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(**request)
    assert refused.value.code == "context_length_exceeded"
    assert 100 < create(client, **request, truncation="auto")["usage"]["input_tokens"] < 200


def test_llama_cpp_required_call_and_its_output_are_accepted(client: openai.OpenAI, model: str) -> None:
    tool = function("get_weather", "city")
    question: Json = {"input": "How is the weather in Lisbon?", "tools": [tool], "tool_choice": "required"}
    called = stream(client, model=model, **question, **GREEDY)
    assert called.response["status"] == "completed"
    [call] = called.response["output"]
    assert call["name"] == "get_weather"
    assert list(json.loads(call["arguments"])) == ["city"]
    assert "".join(called.texts("function_call_arguments")) == call["arguments"]

    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "Sunny, 24 degrees."}
    continued = stream(
        client, model=model, input=[output], previous_response_id=called.response["id"], **GREEDY
    ).response
    assert text_of(continued)
    assert stored(client, continued["id"]) == continued


def test_llama_cpp_answer_follows_the_json_schema(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "enum": ["Ada", "Bob"]}, "age": {"enum": [36, 37]}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
    person = {"format": {"type": "json_schema", "name": "person", "schema": schema, "strict": True}}
    answer = stream(client, model=model, input="Ada is 36 years old.", text=person, **GREEDY).response
    assert answer["status"] == "completed"
    found = json.loads(text_of(answer))
    assert sorted(found) == ["age", "name"]
    assert found["name"] in ("Ada", "Bob")
    assert found["age"] in (36, 37)


def test_llama_cpp_logprobs_cover_the_text(client: openai.OpenAI, model: str) -> None:
    request: Json = {"top_logprobs": 3, "include": ["message.output_text.logprobs"], **GREEDY, "max_output_tokens": 16}
    streamed = stream(client, model=model, input="Say hello.", **request)
    [message] = streamed.response["output"]
    tokens = message["content"][0]["logprobs"]
    check_tokens(tokens, text_of(streamed.response))
    assert [token["token"] for token in delta_tokens(streamed)] == [token["token"] for token in tokens]


def check_tokens(tokens: list[Json], text: str) -> None:
    """Check that the tokens make up the text, and that each is the likeliest, because sampling is greedy."""
    assert "".join(token["token"] for token in tokens) == text
    for token in tokens:
        assert len(token["top_logprobs"]) == 3
        assert token["logprob"] <= 0
        assert token["token"] == max(token["top_logprobs"], key=lambda each: float(each["logprob"]))["token"]


def delta_tokens(streamed: ValidatedStream) -> list[Json]:
    """Return the log probabilities of the deltas."""
    return [token for name, data in streamed.frames if name.endswith("text.delta") for token in data["logprobs"]]


def test_llama_cpp_token_limit_makes_the_response_incomplete(client: openai.OpenAI, model: str) -> None:
    request: Json = {"input": "Tell me a long story.", "temperature": 0, "max_output_tokens": 16}
    for response in (stream(client, model=model, **request).response, create(client, model=model, **request)):
        assert response["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == 16
        assert text_of(response)


def test_llama_cpp_client_disconnect_stops_the_generation(
    client: openai.OpenAI, model: str, llama: httpx.Client
) -> None:
    endless: Json = {"temperature": 0, "extra_body": {"logit_bias": {END_OF_TURN: -100}}}
    with client.responses.create(model=model, input="Count.", stream=True, **endless) as events:
        created = next(events)
        assert created.type == "response.created"
        while next(events).type != "response.output_text.delta":
            pass
        assert generating(llama)
    wait_until(lambda: not generating(llama))
    wait_until(lambda: has_ended(client, created.response.id))
    left = stored(client, created.response.id)
    assert left["status"] == "cancelled"
    assert text_of(left)
    # The model server takes the next request.
    assert create(client, model=model, input="Say hello.", **GREEDY)["output"]


def generating(llama: httpx.Client) -> bool:
    """Return whether the model server is generating."""
    return any(slot["is_processing"] for slot in llama.get("/slots").json())


def has_ended(client: openai.OpenAI, response_id: str) -> bool:
    """Return whether the response is stored with its end."""
    try:
        return client.responses.retrieve(response_id).status != "in_progress"
    except openai.NotFoundError:
        return False
