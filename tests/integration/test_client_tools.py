"""Client tools other than functions: their streams, stored items, and outputs in the next request."""

from dataclasses import dataclass
from typing import Any, Final

import openai
import pytest

from tests.support.one_pixel import ONE_PIXEL
from tests.support.openai_client import MODEL, NAME, Json, create, function, messages, sent, stream
from tests.support.stack import LiveStack
from tests.support.upstream import Upstream, interleaved_calls, reply, text, tool_call
from tests.support.websocket_client import WebSocketClient

pytestmark = pytest.mark.live

PATCH: Final[Any] = {"type": "custom", "name": "patch", "description": "Patches."}
FILES: Final[Any] = {
    "type": "namespace",
    "name": "mcp__files",
    "description": "Files.",
    "tools": [function("read", "path")],
}
SAID: Final = reply(text("Done."))


def test_custom_tool_call_is_streamed_and_continued(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "patch", '{"inp', 'ut":"a\\', 'nb"}')), SAID])
    streamed = stream(client, model=MODEL, input="Hi", tools=[PATCH])
    [call] = streamed.response["output"]
    assert (call["type"], call["input"]) == ("custom_tool_call", "a\nb")
    assert streamed.texts("custom_tool_call_input") == ["a", "\nb"]
    output: Any = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Patched."}
    create(client, model=MODEL, input=[output], tools=[PATCH], previous_response_id=streamed.response["id"])
    called, result = messages(upstream)[1:]
    assert called["tool_calls"][0]["function"] == {"name": "patch", "arguments": '{"input":"a\\nb"}'}
    assert result["content"] == "Patched."
    with client.responses.stream(model=MODEL, input="Hi", tools=[PATCH]) as helper:
        assert helper.get_final_response().output_text == "Done."


def test_truncated_custom_call_is_left_out_of_the_history(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "patch", '{"input":"a'), [{"finish_reason": "length"}]), SAID])
    response = stream(client, model=MODEL, input="Hi", tools=[PATCH]).response
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    create(client, model=MODEL, input="Go on.", tools=[PATCH], previous_response_id=response["id"])
    assert [message["role"] for message in messages(upstream)] == ["user", "user"]


def test_continuing_without_the_output_of_a_custom_call_is_400_unless_the_user_goes_on(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "patch", '{"input":"a"}')), SAID])
    response = create(client, model=MODEL, input="Hi", tools=[PATCH])
    with pytest.raises(openai.BadRequestError, match="No tool output found for custom tool call c1"):
        client.responses.create(model=MODEL, previous_response_id=response["id"])
    create(client, model=MODEL, input="Hi", tools=[PATCH], previous_response_id=response["id"])
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "tool", "user"]


def test_namespace_function_is_called_by_its_qualified_name(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, [reply(tool_call(0, "c1", "mcp__files__read", '{"path":"a"}')), SAID])
    streamed = stream(client, model=MODEL, input="Hi", tools=[FILES])
    [call] = streamed.response["output"]
    assert (call["namespace"], call["name"], call["arguments"]) == ("mcp__files", "read", '{"path":"a"}')
    output: Any = {"type": "function_call_output", "call_id": "c1", "output": "A."}
    create(client, model=MODEL, input=[output], tools=[FILES], previous_response_id=streamed.response["id"])
    assert messages(upstream)[1]["tool_calls"][0]["function"]["name"] == "mcp__files__read"
    with client.responses.stream(model=MODEL, input="Hi", tools=[FILES]) as helper:
        helper.until_done()


@dataclass(frozen=True)
class ClientCall:
    """A call that the client runs.

    Attributes:
        written: the id of the call, its function, and the pieces of its arguments.
        type: the type of its item.
        output: the item of its output, with the id.
        read: what the model reads of the output.
    """

    written: tuple[str, str, str, str]
    type: str
    output: Json
    read: str


ALL_TOOLS: Final[list[Any]] = [
    PATCH,
    FILES,
    {"type": "shell"},
    {"type": "apply_patch"},
    {"type": "local_shell"},
    {"type": "computer"},
]
ALL_CALLS: Final = (
    ClientCall(
        ("c1", "patch", '{"input":', '"a"}'),
        "custom_tool_call",
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "1"},
        "1",
    ),
    ClientCall(
        ("c2", "mcp__files__read", '{"path":', '"a"}'),
        "function_call",
        {"type": "function_call_output", "call_id": "c2", "output": "2"},
        "2",
    ),
    ClientCall(
        ("c3", "shell", '{"commands":', '["ls"]}'),
        "shell_call",
        {
            "type": "shell_call_output",
            "call_id": "c3",
            "output": [{"stdout": "3", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}],
        },
        "Exit code: 0\n3",
    ),
    ClientCall(
        ("c4", "apply_patch", '{"type":"delete_file",', '"path":"a"}'),
        "apply_patch_call",
        {"type": "apply_patch_call_output", "call_id": "c4", "status": "completed"},
        "Status: completed",
    ),
    ClientCall(
        ("c5", "local_shell", '{"command":', '["ls"]}'),
        "local_shell_call",
        {"type": "local_shell_call_output", "id": "c5", "output": "5"},
        "5",
    ),
    ClientCall(
        ("c6", "computer", '{"actions":[{"type":', '"screenshot"}]}'),
        "computer_call",
        {
            "type": "computer_call_output",
            "call_id": "c6",
            "output": {"type": "computer_screenshot", "image_url": ONE_PIXEL},
        },
        "(see the attachment in the next message)",
    ),
)


def test_parallel_calls_of_all_client_tools_are_streamed_and_continued(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    calls, outputs = interleaved_calls(*(each.written for each in ALL_CALLS)), [each.output for each in ALL_CALLS]
    upstream.script(NAME, [reply(calls), SAID])
    response = stream(client, model=MODEL, input="Hi", tools=ALL_TOOLS).response
    types = {item["call_id"]: item["type"] for item in response["output"]}
    assert types == {each.written[0]: each.type for each in ALL_CALLS}
    again = create(client, model=MODEL, input=outputs, tools=ALL_TOOLS, previous_response_id=response["id"])
    read = {each["tool_call_id"]: each["content"] for each in messages(upstream) if each["role"] == "tool"}
    assert read == {each.written[0]: each.read for each in ALL_CALLS}
    listed = client.responses.input_items.list(again["id"], limit=100).data
    assert len(listed) == 1 + len(calls_of(response)) + len(outputs)


def test_stream_helper_of_the_client_collects_calls_of_all_client_tools(
    client: openai.OpenAI, upstream: Upstream
) -> None:
    upstream.script(NAME, reply(interleaved_calls(*(each.written for each in ALL_CALLS))))
    with client.responses.stream(model=MODEL, input="Hi", tools=ALL_TOOLS) as helper:
        kinds = [item.type for item in helper.get_final_response().output]
    assert sorted(kinds) == sorted(each.type for each in ALL_CALLS)


def calls_of(response: Json) -> list[Json]:
    """Return the calls of a response."""
    return [item for item in response["output"] if "call_id" in item]


def test_incomplete_tool_search_without_call_id_is_left_out(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, SAID)
    question = {"role": "user", "content": "Hi"}
    cut = {"type": "tool_search_call", "arguments": {}, "status": "incomplete"}
    first = create(client, model=MODEL, input=[cut, question])
    assert messages(upstream) == [question]
    create(client, model=MODEL, input="Go on.", previous_response_id=first["id"])
    assert [message["role"] for message in messages(upstream)] == ["user", "assistant", "user"]


def test_tool_search_of_server_loads_deferred_function(client: openai.OpenAI, upstream: Upstream) -> None:
    tools: list[Any] = [function("weather", "city", defer_loading=True), {"type": "tool_search"}]
    upstream.script(
        NAME,
        [
            reply(tool_call(0, "c1", "tool_search", '{"paths":["weather"]}')),
            reply(tool_call(0, "c2", "weather", '{"city":"Oslo"}')),
            SAID,
        ],
    )
    streamed = stream(client, model=MODEL, input="Hi", tools=tools)
    kinds = [item["type"] for item in streamed.response["output"]]
    assert kinds == ["tool_search_call", "tool_search_output", "function_call"]
    output: Any = {"type": "function_call_output", "call_id": "c2", "output": "Snow."}
    create(client, model=MODEL, input=[output], tools=tools, previous_response_id=streamed.response["id"])
    offered = [[tool["function"]["name"] for tool in each.body["tools"]] for each in upstream.requests(NAME)]
    assert offered == [["tool_search"], ["weather", "tool_search"], ["weather", "tool_search"]]
    roles = [message["role"] for message in messages(upstream)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_tool_choice_of_a_custom_tool_offers_only_it(client: openai.OpenAI, upstream: Upstream) -> None:
    upstream.script(NAME, reply(tool_call(0, "c1", "patch", '{"input":"a"}')))
    choice: Any = {"type": "custom", "name": "patch"}
    create(client, model=MODEL, input="Hi", tools=[PATCH, FILES], tool_choice=choice)
    chat = sent(upstream)
    assert ([tool["function"]["name"] for tool in chat["tools"]], chat["tool_choice"]) == (["patch"], "required")


def test_additional_tool_replaces_a_declared_one_in_chains_and_on_a_websocket(
    client: openai.OpenAI, upstream: Upstream, stack: LiveStack
) -> None:
    upstream.script(NAME, SAID)
    tools = [function("f", "old")]
    again: Json = {"type": "additional_tools", "role": "developer", "tools": [function("f", "new")]}
    asked: Any = {"model": MODEL, "tools": tools}
    first = create(client, input=[again, {"role": "user", "content": "Hi"}], **asked)
    create(client, input="Go on.", previous_response_id=first["id"], **asked)
    with WebSocketClient(stack) as websocket:
        websocket.ask(input=[again, {"role": "user", "content": "Hi"}], **asked)
        before = websocket.response()
        websocket.ask(input="Go on.", previous_response_id=before["id"], **asked)
        websocket.response()
    offered = [request.body["tools"] for request in upstream.requests(NAME)[-4:]]
    assert [list(each["function"]["parameters"]["properties"]) for [each] in offered] == [["new"]] * 4
