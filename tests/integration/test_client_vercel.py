"""The unmodified Vercel AI SDK with its OpenAI provider, which sends item references, and its open provider."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_replies import PROGRAM, SAID, WEATHER
from tests.support.clients import node_client
from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import MODEL, NAME, messages, sent
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reasoning, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(1), pytest.mark.one_host]

type Vercel = Callable[..., Any]


@pytest.fixture(params=["openai", "open-responses"])
def provider(request: pytest.FixtureRequest) -> str:
    """The SDK's provider."""
    return str(request.param)


@pytest.fixture
def vercel(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> Vercel:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, provider: str, *replies: Reply) -> Any:
        upstream.script(NAME, replies)
        return node_client("vercel", "with_vercel.mjs", stack, tmp_path, scenario, MODEL, provider).result

    return run


def test_vercel_answer_is_read(vercel: Vercel, provider: str) -> None:
    assert vercel("answer", provider, SAID) == ["It snows.", 2, "stop"]


def test_vercel_function_is_called(vercel: Vercel, upstream: Upstream, provider: str) -> None:
    assert vercel("tools", provider, WEATHER, SAID) == ["It snows.", 2]
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "tool"]
    assert messages(upstream)[-1]["content"] == "Snow in Oslo."
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_vercel_stream_has_text_deltas(vercel: Vercel, provider: str) -> None:
    assert vercel("streamed", provider, WEATHER, SAID) == ["It ", "snows."]


def test_vercel_structured_output_is_parsed(vercel: Vercel, upstream: Upstream, provider: str) -> None:
    assert vercel("structured", provider, reply(text('{"name":"Ada",', '"age":36}'))) == {"name": "Ada", "age": 36}
    assert sent(upstream)["response_format"]["type"] == "json_schema"


def test_vercel_image_reaches_the_model(vercel: Vercel, upstream: Upstream, provider: str) -> None:
    assert vercel("image", provider, SAID) == "It snows."
    assert messages(upstream)[0]["content"][1]["image_url"]["url"] == ONE_PIXEL


def test_vercel_raises_the_api_error(vercel: Vercel, provider: str) -> None:
    status, message = vercel("refused", provider, SAID)
    assert (status, "above maximum value" in message) == (400, True)


def test_vercel_function_with_store_false_is_called(vercel: Vercel, upstream: Upstream) -> None:
    assert vercel("stateless", "openai", WEATHER, SAID) == "It snows."
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_vercel_reasoning_summary_is_read(vercel: Vercel) -> None:
    assert vercel("summarized", "openai", reply(reasoning("H", "m."), text("Hello"))) == ["Hm.", "Hello"]


def test_vercel_custom_tool_is_called(vercel: Vercel, upstream: Upstream) -> None:
    assert vercel("custom", "openai", reply(tool_call(0, "c1", "count", '{"input":"abc"}')), SAID) == "It snows."
    assert messages(upstream)[-1]["content"] == "3 characters."


@pytest.mark.parametrize("scenario", ["programs", "statelessPrograms", "streamedPrograms"])
def test_vercel_runs_the_functions_of_a_program(vercel: Vercel, upstream: Upstream, scenario: str) -> None:
    assert vercel(scenario, "openai", PROGRAM, SAID) == ["It snows.", 2]
    assert messages(upstream)[-1]["content"] == "18"
