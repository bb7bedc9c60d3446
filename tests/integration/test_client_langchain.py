"""LangChain's unmodified ChatOpenAI with `use_responses_api`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_replies import SAID, WEATHER
from tests.support.clients import python_client
from tests.support.openai_client import MODEL, NAME, messages, sent
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reasoning, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(1), pytest.mark.one_host]

type LangChain = Callable[..., Any]


@pytest.fixture
def langchain(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> LangChain:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply) -> Any:
        upstream.script(NAME, replies)
        return python_client("langchain", "with_langchain.py", stack, tmp_path, scenario, MODEL).result

    return run


def test_langchain_answer_is_read(langchain: LangChain) -> None:
    assert langchain("answer", SAID) == ["It snows.", 2, "resp_"]


def test_langchain_stream_has_text_deltas(langchain: LangChain) -> None:
    assert langchain("streamed", SAID) == [["It ", "snows."], "It snows."]


@pytest.mark.parametrize("way", ["tools", "stateless", "chained"])
def test_langchain_function_is_called(langchain: LangChain, upstream: Upstream, way: str) -> None:
    assert langchain(way, WEATHER, SAID) == "It snows."
    user, called, result = messages(upstream)
    assert (user["content"], result["content"]) == ("Hi", "Snow in Oslo.")
    assert called["reasoning_content"] == "Hm."


def test_langchain_reasoning_summary_is_read(langchain: LangChain) -> None:
    assert langchain("summarized", reply(reasoning("H", "m."), text("Hello"))) == ["Hm.", "Hello"]


def test_langchain_custom_tool_is_called(langchain: LangChain, upstream: Upstream) -> None:
    assert langchain("custom", reply(tool_call(0, "c1", "count", '{"input":"abc"}')), SAID) == "It snows."
    assert "3 characters." in json.dumps(messages(upstream)[-1]["content"])


def test_langchain_structured_output_is_parsed(langchain: LangChain, upstream: Upstream) -> None:
    assert langchain("structured", reply(text('{"name":"Ada",', '"age":36}'))) == ["Person", "Ada", 36]
    assert sent(upstream)["response_format"]["type"] == "json_schema"
