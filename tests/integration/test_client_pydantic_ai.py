"""pydantic-ai's unmodified OpenAIResponsesModel."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.client_replies import SAID, WEATHER
from tests.support.clients import python_client
from tests.support.openai_client import MODEL, NAME, messages, sent
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.extended, pytest.mark.day(0), pytest.mark.one_host]

type PydanticAI = Callable[..., Any]

PERSON: Final = ('{"name":"Ada",', '"age":36}')


@pytest.fixture
def pydantic_ai(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> PydanticAI:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply) -> Any:
        upstream.script(NAME, replies)
        return python_client("pydantic-ai", "with_pydantic_ai.py", stack, tmp_path, scenario, MODEL).result

    return run


def test_pydantic_ai_function_is_called(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("tools", WEATHER, SAID) == ["It snows.", [True]]
    assert messages(upstream)[-1]["content"] == "Snow in Oslo."
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_pydantic_ai_continues_a_stored_response(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("chained", WEATHER, SAID) == "It snows."
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "tool"]


def test_pydantic_ai_message_history_is_sent_again(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("history", reply(text("1.")), reply(text("2."))) == "2."
    assert [message["content"] for message in messages(upstream)] == ["One?", "1.", "Two?"]


def test_pydantic_ai_structured_output_is_parsed(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("structured", reply(text(*PERSON))) == ["Person", "Ada", 36]
    assert sent(upstream)["response_format"]["type"] == "json_schema"


def test_pydantic_ai_output_by_tool_is_parsed(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("by_tool", reply(tool_call(0, "c1", "final_result", *PERSON))) == ["Person", "Ada", 36]
    assert sent(upstream)["tool_choice"] == "required"


def test_pydantic_ai_stream_has_text_deltas(pydantic_ai: PydanticAI) -> None:
    assert pydantic_ai("streamed", WEATHER, SAID) == ["It ", "snows."]
