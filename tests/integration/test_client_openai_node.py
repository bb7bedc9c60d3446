"""The unmodified OpenAI SDK for Node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.clients import node_client
from tests.support.openai_client import MODEL, NAME
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, interleaved_calls, reasoning, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

type Node = Callable[..., Any]

SAID: Final = reply(text("It ", "snows."))


@pytest.fixture
def node(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> Node:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply) -> Any:
        upstream.script(NAME, replies)
        return node_client("openai-node", "with_openai_node.mjs", stack, tmp_path, scenario, MODEL).result

    return run


def test_node_sdk_continues_a_response(node: Node) -> None:
    assert node("chained", reply(text("1.")), reply(text("2."))) == ["1.", "2.", 3]


def test_node_sdk_stream_has_deltas_and_items(node: Node) -> None:
    whole = reply(reasoning("Hm."), text("It ", "snows."), tool_call(0, "c1", "weather", '{"city":"Oslo"}'))
    deltas, kinds, output = node("streamed", whole)
    assert (deltas, output) == (["It ", "snows."], "It snows.")
    assert kinds == ["reasoning", "message", "function_call"]


def test_node_sdk_parallel_calls_are_separated(node: Node) -> None:
    both = interleaved_calls(("c1", "weather", '{"city":', '"Oslo"}'), ("c2", "weather", '{"city":', '"Rome"}'))
    assert node("calls", reply(both)) == [["c1", '{"city":"Oslo"}'], ["c2", '{"city":"Rome"}']]


def test_node_sdk_follows_a_background_response(node: Node) -> None:
    assert node("background", SAID) == ["queued", "response.created", "response.completed", "It snows."]


def test_node_sdk_structured_output_is_parsed(node: Node) -> None:
    assert node("parsed", reply(text('{"age":', "36}"))) == {"age": 36}


def test_node_sdk_raises_the_api_error(node: Node) -> None:
    assert node("refused", SAID) == ["BadRequestError", 400, "temperature", "decimal_above_max_value"]
