"""The complete stack on the tiny checkpoint that speaks Harmony: client, host, Responses layer and engine."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response

from tests.support.one_pixel import ONE_PIXEL
from tests.support.proc import children_of, has_ended
from tests.support.stack import LiveStack

from .support.lessons import FACTS, report, weather
from .support.processes import kill, wait_for
from .support.stacks import (
    ANSWER,
    ASKED,
    CONTEXT,
    ENDLESS,
    GREEDY,
    MODEL,
    QUESTION,
    REASONING,
    STREAMED,
    TOOL,
    continued_with,
    leave_before_visible_text,
    metrics,
    reasoning_of,
    streamed,
    trained_stack,
    wait_for_engine,
    weather_call,
)

# What the tests share takes longer to start than most of them run.
pytestmark = pytest.mark.day(0)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStack]:
    with trained_stack(tmp_path_factory.mktemp("stack")) as live:
        wait_for_engine(live)
        yield live


@pytest.fixture(scope="module")
def client(stack: LiveStack) -> Iterator[openai.OpenAI]:
    with stack.client() as created:
        yield created


def engine_pid(stack: LiveStack) -> int:
    """Return the process id of the engine, which is a child of one of the server's threads."""
    return children_of(stack.pid, "process.server")[-1]


def test_model_has_name_of_checkpoint(client: openai.OpenAI) -> None:
    assert MODEL in [model.id for model in client.models.list()]


def test_response_has_reasoning_and_answer(client: openai.OpenAI) -> None:
    response = client.responses.create(input=QUESTION, **GREEDY)
    assert response.status == "completed"
    assert response.output_text == ANSWER
    assert reasoning_of(response) == REASONING
    assert response.usage is not None
    assert response.usage.output_tokens_details.reasoning_tokens > 5
    assert response.usage.output_tokens > response.usage.output_tokens_details.reasoning_tokens


def test_streamed_deltas_add_up_to_answer(client: openai.OpenAI) -> None:
    assert streamed(client) == STREAMED


def test_model_calls_function_and_reads_its_result(client: openai.OpenAI) -> None:
    output = continued_with(client, *weather_call(client), weather(7, "rainy"))
    assert output.output_text == report(7, "rainy", "Oslo")
    assert output.usage is not None
    assert output.usage.input_tokens_details.cached_tokens >= 64


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_call_can_be_forced(client: openai.OpenAI, choice: Any) -> None:
    response = client.responses.create(input="Say hello.", tools=[TOOL], tool_choice=choice, **GREEDY)
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert call.name == "get_weather"
    assert list(json.loads(call.arguments)) == ["city"]


def test_tool_choice_none_gives_no_call(client: openai.OpenAI) -> None:
    question = "What is the weather in Oslo?"
    response = client.responses.create(input=question, tools=[TOOL], tool_choice="none", max_output_tokens=60, **GREEDY)
    assert "function_call" not in {item.type for item in response.output}


def test_answer_matches_its_schema(client: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Oslo"]}, "sure": {"type": "boolean"}},
        "required": ["city", "sure"],
        "additionalProperties": False,
    }
    text: Any = {"format": {"type": "json_schema", "name": "capital", "schema": schema, "strict": True}}
    response = client.responses.create(input=QUESTION, text=text, **GREEDY)
    found = json.loads(response.output_text)
    assert found.keys() == {"city", "sure"}
    assert found["city"] in ("Paris", "Oslo")


def test_logprobs_are_those_of_text(client: openai.OpenAI) -> None:
    response = client.responses.create(
        input=QUESTION, include=["message.output_text.logprobs"], top_logprobs=2, **GREEDY
    )
    (part,) = [part for item in response.output if item.type == "message" for part in item.content]
    assert part.type == "output_text"
    assert part.logprobs is not None
    assert "".join(each.token for each in part.logprobs) == ANSWER
    assert all(len(each.top_logprobs) == 2 and each.top_logprobs[0].token == each.token for each in part.logprobs)
    assert all(each.logprob <= 0 for each in part.logprobs)


def test_chat_completion_supports_n_stop_and_usage(client: openai.OpenAI) -> None:
    created = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], n=2, temperature=0, stop=[" of Fr", "xyz"]
    )
    assert [choice.message.content for choice in created.choices] == ["The capital"] * 2
    assert [choice.finish_reason for choice in created.choices] == ["stop"] * 2
    assert created.choices[0].message.model_extra is not None
    assert created.choices[0].message.model_extra["reasoning_content"] == REASONING
    assert created.usage is not None
    assert created.usage.prompt_tokens_details is not None
    assert created.usage.prompt_tokens_details.cached_tokens


def test_max_output_tokens_ends_answer(client: openai.OpenAI) -> None:
    response = client.responses.create(input=QUESTION, max_output_tokens=16, **GREEDY)
    assert response.status == "incomplete"
    assert response.usage is not None
    assert response.usage.output_tokens == 16


def test_bare_completion_works(client: openai.OpenAI) -> None:
    created = client.completions.create(model=MODEL, prompt="What is", max_tokens=5, temperature=0)
    assert created.usage is not None
    assert created.usage.completion_tokens <= 5
    streamed = list(client.completions.create(model=MODEL, prompt="What is", max_tokens=5, temperature=0, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed if chunk.choices) == created.choices[0].text


def test_too_long_prompt_is_400_with_token_counts(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=r"context") as refusal:
        client.responses.create(input="word " * 5000, **GREEDY)
    assert refusal.value.code == "context_length_exceeded"
    assert "4,096" in refusal.value.message


def test_image_input_is_400(client: openai.OpenAI) -> None:
    image: Any = {
        "type": "input_image",
        "image_url": ONE_PIXEL,
        "detail": "auto",
    }
    with pytest.raises(openai.BadRequestError, match="gpt-oss accepts only text"):
        client.responses.create(input=[{"role": "user", "content": [image]}], **GREEDY)


def test_concurrent_answers_equal_single_ones(client: openai.OpenAI) -> None:
    def ask(number: int) -> tuple[str, str]:
        question, _, answer = FACTS[number % len(FACTS)]
        return client.responses.create(input=question, **GREEDY).output_text, answer

    with ThreadPoolExecutor(8) as pool:
        for text, answer in pool.map(ask, range(16)):
            assert text == answer


def test_metrics_can_be_read_from_outside(stack: LiveStack) -> None:
    command = [sys.executable, "-m", "llama_stack_gpt_oss.process.status", str(stack.state_dir)]
    found = json.loads(subprocess.check_output(command))
    assert found["generated_tokens"] > 0
    assert 0 < found["cached_tokens"] < found["prompt_tokens"]


def test_client_disconnect_ends_generation(stack: LiveStack) -> None:
    body = {"input": FACTS[3][0], "stream": True, "temperature": 1.5, "model": MODEL}
    with httpx.Client(timeout=60, trust_env=False) as http:
        with http.stream("POST", f"{stack.base_url}/v1/responses", json=body) as response:
            next(response.iter_lines())
        wait_for(lambda: metrics(stack)["running"] == 0)
    assert metrics(stack)["pages_used"] == 0


def test_chat_stream_begins_with_role_and_ends_with_its_client(stack: LiveStack) -> None:
    (choice,) = leave_before_visible_text(stack, "/v1/chat/completions", messages=ASKED)["choices"]
    assert (choice["delta"]["role"], choice["delta"]["content"]) == ("assistant", "")


def test_stream_of_bare_completion_begins_without_text_and_ends_with_its_client(stack: LiveStack) -> None:
    (choice,) = leave_before_visible_text(stack, "/v1/completions", prompt="What is")["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", None)


def killed_at_its_first_word(client: openai.OpenAI, engine: int) -> Response:
    """Return the response whose engine is killed at its first delta."""
    events = client.responses.create(model=MODEL, input=FACTS[3][0], stream=True)
    for event in events:
        if event.type == "response.reasoning_text.delta":
            kill(engine)
            break
    (last,) = [event for event in events if event.type in ("response.failed", "response.completed")]
    return last.response


def test_killed_engine_fails_response_and_restarts(stack: LiveStack, client: openai.OpenAI) -> None:
    patient = client.with_options(max_retries=9)  # on a busy machine, an engine starts for minutes
    for _ in range(5):
        pid = engine_pid(stack)
        last = killed_at_its_first_word(client, pid)
        assert patient.responses.create(input=QUESTION, **GREEDY).output_text == ANSWER
        assert has_ended(pid)
        assert not has_ended(engine_pid(stack))
        if last.status != "completed":
            break  # on a busy machine, the whole answer may have been sent before the engine is killed
    assert last.status == "failed"
    assert last.error is not None
    assert "engine ended in the middle of its answer" in last.error.message
    assert "gpt-oss: loading" in stack.log.read_text()


def test_schema_that_cannot_be_enforced_is_400(client: openai.OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)b"}}}
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(openai.BadRequestError, match="The schema cannot be enforced"):
        client.chat.completions.create(messages=ASKED, response_format=form, **GREEDY)


def test_schema_that_allows_too_much_is_an_error_and_no_answer(stack: LiveStack, client: openai.OpenAI) -> None:
    parts = [{"properties": {f"{letter}{number}": True for number in range(256)}} for letter in "ab"]
    schema = {"name": "x", "schema": {"type": "object", "allOf": parts}}
    text: Any = {"format": {"type": "json_schema", **schema}}
    form: Any = {"type": "json_schema", "json_schema": schema}
    with pytest.raises(openai.BadRequestError, match="The schema allows too much at once"):
        client.responses.create(input=QUESTION, text=text, **GREEDY)
    stream = client.chat.completions.create(messages=ASKED, response_format=form, stream=True, **GREEDY)
    with pytest.raises(openai.APIError, match="The schema allows too much at once"):
        list(stream)
    wait_for(lambda: metrics(stack)["running"] == metrics(stack)["pages_used"] == 0)


def test_killed_engine_is_named_in_errors_of_other_routes(stack: LiveStack, client: openai.OpenAI) -> None:
    """An answer that is not streamed has a status; a stream that has begun has an event."""
    wait_for_engine(stack)
    endless: Any = {"logit_bias": ENDLESS, "max_tokens": CONTEXT // 2, **GREEDY}
    with ThreadPoolExecutor(2) as pool:
        chat = pool.submit(lambda: client.chat.completions.create(messages=ASKED, **endless))
        bare = pool.submit(lambda: client.completions.create(prompt="a", **endless))
        stream = client.chat.completions.create(messages=ASKED, stream=True, **endless)
        wait_for(lambda: metrics(stack)["running"] == 3)
        kill(engine_pid(stack))
        with pytest.raises(openai.APIError, match="The gpt-oss engine ended in the middle of its answer"):
            list(stream)
        for answer in (chat, bare):
            with pytest.raises(openai.InternalServerError, match="The gpt-oss engine ended in the middle") as failure:
                answer.result()
            assert failure.value.status_code == 503
