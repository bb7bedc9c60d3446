"""The unmodified OpenAI SDK for Node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.client_replies import SAID
from tests.support.clients import node_client
from tests.support.openai_client import MODEL, NAME
from tests.support.stack import LiveStack
from tests.support.upstream import Reply, Upstream, interleaved_calls, reasoning, reply, text, tool_call

# The client reads what this package writes; test_client_hosts.py has the host's answers.
pytestmark = [pytest.mark.live, pytest.mark.one_host]

type Node = Callable[..., Any]


@pytest.fixture
def node(stack: LiveStack, upstream: Upstream, tmp_path: Path) -> Node:
    """Run a scenario against a model with these replies."""

    def run(scenario: str, *replies: Reply, how: str = "") -> Any:
        upstream.script(NAME, replies)
        return node_client("openai-node", "with_openai_node.mjs", stack, tmp_path, scenario, MODEL, how).result

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


def test_node_sdk_zod_schema_is_parsed_streamed_or_not(node: Node) -> None:
    assert node("zod", reply(text('{"age":', "36}")), reply(text('{"age":', "37}"))) == [{"age": 36}, {"age": 37}]


@pytest.mark.relatives
@pytest.mark.parametrize("how", ["whole", "streamed", "eager"])
def test_node_sdk_tool_runner_runs_calls_until_the_answer(node: Node, how: str) -> None:
    both = interleaved_calls(("c1", "weather", '{"city":', '"Oslo"}'), ("c2", "weather", '{"city":', '"Rome"}'))
    assert node("runner", reply(reasoning("Hm."), both), SAID, how=how) == [["Oslo", "Rome"], "It snows."]


def test_node_sdk_resumes_the_stream_of_a_background_response(node: Node) -> None:
    assert node("resumed", SAID) == ["It snows.", "It snows.", 4]


def test_node_sdk_conversation_has_the_turn(node: Node) -> None:
    assert node("conversation", SAID) == [["user", "assistant"], True]


def test_node_sdk_websocket_lanes_have_their_own_responses(node: Node, upstream: Upstream) -> None:
    upstream.script(f"{NAME}-other", reply(text("Elsewhere.")))
    refused = ["error", 400, "temperature"]
    assert node("lanes", SAID, reply(text("Still."))) == [0, "It snows.", "Still.", "Elsewhere.", refused]
    messages = upstream.requests(NAME)[-1].body["messages"]
    assert [message["content"] for message in messages] == ["Hi", "Well?", "It snows.", "And?"]


def test_node_sdk_raises_the_api_error(node: Node) -> None:
    assert node("refused", SAID) == ["BadRequestError", 400, "temperature", "decimal_above_max_value"]
