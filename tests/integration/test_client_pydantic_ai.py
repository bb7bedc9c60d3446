"""pydantic-ai's OpenAIResponsesModel, as it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.asking import MODEL, NAME, messages, sent
from tests.support.clients import python_client
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, reasoning, reply, text, tool_call

pytestmark = pytest.mark.live

type PydanticAI = Callable[..., Any]

SAID: Final = reply(text("It ", "snows."))
WEATHER: Final = reply(reasoning("Hm."), tool_call(0, "c1", "weather", '{"city":', '"Oslo"}'))
PERSON: Final = ('{"name":"Ada",', '"age":36}')


@pytest.fixture
def pydantic_ai(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> PydanticAI:
    """Runs a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply) -> Any:
        upstream.script(NAME, replies)
        return python_client("pydantic-ai", "with_pydantic_ai.py", stack, tmp_path, scenario, MODEL).said

    return run


def test_a_function(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("tools", WEATHER, SAID) == ["It snows.", [True]]
    assert messages(upstream)[-1]["content"] == "Snow in Oslo."
    assert messages(upstream)[-2]["reasoning_content"] == "Hm."


def test_a_chain(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("chained", WEATHER, SAID) == "It snows."
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "tool"]


def test_a_history(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("history", reply(text("1.")), reply(text("2."))) == "2."
    assert [message["content"] for message in messages(upstream)] == ["One?", "1.", "Two?"]


def test_structured_output(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("structured", reply(text(*PERSON))) == ["Person", "Ada", 36]
    assert sent(upstream)["response_format"]["type"] == "json_schema"


def test_output_by_a_tool(pydantic_ai: PydanticAI, upstream: Upstream) -> None:
    assert pydantic_ai("by_tool", reply(tool_call(0, "c1", "final_result", *PERSON))) == ["Person", "Ada", 36]
    assert sent(upstream)["tool_choice"] == "required"


def test_a_stream(pydantic_ai: PydanticAI) -> None:
    assert pydantic_ai("streamed", WEATHER, SAID) == ["It ", "snows."]
